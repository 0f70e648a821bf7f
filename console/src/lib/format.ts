// How numbers, money, times and durations look everywhere.

const whole = new Intl.NumberFormat(undefined, { maximumFractionDigits: 0 });
const tenths = new Intl.NumberFormat(undefined, { maximumFractionDigits: 1 });
const bits = new Intl.NumberFormat(undefined, { style: 'percent', maximumFractionDigits: 1 });

/** number groups digits. Strings are integers that may exceed 2^53. */
export function number(n: number | string | bigint | undefined | null): string {
  if (n === undefined || n === null || n === '') return '–';
  if (typeof n === 'string') {
    try {
      return whole.format(BigInt(n));
    } catch {
      return n;
    }
  }
  return whole.format(n);
}

/** rate shows one decimal place below ten. */
export function rate(n: number | undefined | null): string {
  if (n === undefined || n === null) return '–';
  return n !== 0 && Math.abs(n) < 10 ? tenths.format(n) : whole.format(n);
}

/** percent shows a share of 0 to 1. A share that is not everything never looks like it. */
export function percent(share: number): string {
  if (share > 0.999 && share < 1) return bits.format(0.999);
  return bits.format(share);
}

// The currencies whose minor unit is not a hundredth, by ISO 4217, as in internal/reward/currency.go. Browsers
// know the digits that people write, which are others: none for IQD, of which ISO 4217 has three.
const unusual = {
  0: 'BIF CLP DJF GNF ISK JPY KMF KRW PYG RWF UGX UYI VND VUV XAF XOF XPF XAG XAU XBA XBB XBC XBD XDR XPD XPT XSU XTS XUA XXX',
  3: 'BHD IQD JOD KWD LYD OMR TND',
  4: 'CLF UYW',
};
const since = 'MRU SLE UYW VED VES XAD XCG ZWG'; // younger than the list of some browsers
const digits = new Map<string, number>([
  ...[...Intl.supportedValuesOf('currency'), ...since.split(' ')].map((code) => [code, 2] as const),
  ...Object.entries(unusual).flatMap(([n, codes]) => codes.split(' ').map((code) => [code, Number(n)] as const)),
]);

/** digitsOf is the number of digits behind the decimal point of a currency; undefined for a code that no currency has. */
export function digitsOf(currency: string | undefined): number | undefined {
  return digits.get(currency ?? '');
}

const decimals = [0, 1, 2, 3, 4].map((n) => new Intl.NumberFormat(undefined, { minimumFractionDigits: n, maximumFractionDigits: n }));

/** major writes minor units in major ones, as a field takes them: "1050" of EUR is "10.50". */
export function major(amount: number | string, currency: string | undefined): `${number}` {
  const behind = digitsOf(currency) ?? 0;
  const text = String(amount);
  const padded = text.replace('-', '').padStart(behind + 1, '0');
  const at = padded.length - behind;
  return `${text.startsWith('-') ? '-' : ''}${padded.slice(0, at)}${behind ? '.' : ''}${padded.slice(at)}` as `${number}`;
}

/** money shows minor units as people read them: "10.50 EUR", "1,050 KRW"; those of an unknown currency as they are. */
export function money(amount: number | string | undefined | null, currency?: string): string {
  if (amount === undefined || amount === null || !currency) return number(amount);
  return `${decimals[digitsOf(currency) ?? 0]!.format(major(amount, currency))} ${currency}`;
}

/** plural writes "1 target", "2 targets". */
export function plural(n: number | string, one: string, many = one + 's'): string {
  return `${number(n)} ${String(n) === '1' ? one : many}`;
}

const dayAndTime = new Intl.DateTimeFormat(undefined, { dateStyle: 'medium', timeStyle: 'medium' });
const timeOnly = new Intl.DateTimeFormat(undefined, { timeStyle: 'medium' });

/** moment is a time in the local zone; today's without the day. */
export function moment(at: string | Date): string {
  const d = new Date(at);
  return d.toDateString() === new Date().toDateString() ? timeOnly.format(d) : dayAndTime.format(d);
}

const dayOnly = new Intl.DateTimeFormat(undefined, { month: 'short', day: 'numeric' });
const minuteOnly = new Intl.DateTimeFormat(undefined, { timeStyle: 'short' });

/** tick labels the axis of a chart with that many seconds between two labels: no more than tells them apart. */
export function tick(d: Date, step: number): string {
  if (step >= 86_400 || (d.getHours() === 0 && d.getMinutes() === 0 && d.getSeconds() === 0)) return dayOnly.format(d);
  return (step < 60 ? timeOnly : minuteOnly).format(d);
}

/** utc is a time in UTC, for hovering and copying. */
export function utc(at: string | Date): string {
  return new Date(at).toISOString().replace('T', ' ').replace(/\.\d+Z$/, ' UTC').replace(/Z$/, ' UTC');
}

/** duration writes seconds in at most two units: "2 h 5 min", "12 s". */
export function duration(seconds: number): string {
  const s = Math.max(0, Math.round(seconds));
  if (s < 60) return `${s} s`;
  if (s < 3600) return s % 60 && s < 600 ? `${Math.floor(s / 60)} min ${s % 60} s` : `${Math.floor(s / 60)} min`;
  if (s < 86400) return s % 3600 >= 60 ? `${Math.floor(s / 3600)} h ${Math.floor((s % 3600) / 60)} min` : `${Math.floor(s / 3600)} h`;
  const days = Math.floor(s / 86400);
  const hours = Math.floor((s % 86400) / 3600);
  return hours ? `${days} d ${hours} h` : `${days} d`;
}

/** ago writes how long ago a time is, by the browser's clock: in steps, so that a table of times does not flicker every second. */
export function ago(at: string | Date, now: number): string {
  const seconds = (now - new Date(at).getTime()) / 1000;
  if (seconds < 0) return `in ${duration(-seconds)}`;
  if (seconds < 5) return 'now';
  const step = seconds < 60 ? 5 : seconds < 600 ? 60 : 1;
  return `${duration(Math.floor(seconds / step) * step)} ago`;
}

/** millis writes a latency. */
export function millis(ms: number | undefined | null): string {
  if (ms === undefined || ms === null) return '–';
  return ms < 10_000 ? `${whole.format(ms)} ms` : duration(ms / 1000);
}

/**
 * plain writes out the characters of a stranger's text that nobody sees: those that control a terminal, or the
 * direction in which the text around them is read.
 */
export function plain(text: string | undefined | null): string {
  return (text ?? '').replace(/[\u0000-\u0009\u000b-\u001f\u007f-\u009f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ufeff]/g, (c) => `\\u${c.charCodeAt(0).toString(16).padStart(4, '0')}`);
}

/** seconds writes a wait: milliseconds or tenths while it is short. */
export function seconds(s: number | undefined | null): string {
  if (s === undefined || s === null) return '–';
  if (s > 0 && s < 1) return `${Math.max(1, Math.round(s * 1000))} ms`;
  return s < 10 ? `${tenths.format(s)} s` : duration(s);
}

/** words makes "UNKNOWN" readable: "unknown". */
export function words(code: string): string {
  return code.toLowerCase().replaceAll('_', ' ');
}
