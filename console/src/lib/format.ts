// How numbers, money, times and durations look everywhere, in the language of the page.

import { language, t } from './language.svelte';

const made = new Map<string, ReturnType<typeof make>>();
const make = (locale: string) => ({
  whole: new Intl.NumberFormat(locale, { maximumFractionDigits: 0 }),
  tenths: new Intl.NumberFormat(locale, { maximumFractionDigits: 1 }),
  twoDigits: new Intl.NumberFormat(locale, { maximumSignificantDigits: 2 }),
  currencies: new Intl.DisplayNames(locale, { type: 'currency' }),
  percents: new Intl.NumberFormat(locale, { style: 'percent', maximumFractionDigits: 1 }),
  decimals: [0, 1, 2, 3, 4].map((n) => new Intl.NumberFormat(locale, { minimumFractionDigits: n, maximumFractionDigits: n })),
  dayAndTime: new Intl.DateTimeFormat(locale, { year: 'numeric', month: 'short', day: 'numeric', hour: 'numeric', minute: '2-digit', second: '2-digit' }),
  dated: new Intl.DateTimeFormat(locale, { year: 'numeric', month: 'short', day: 'numeric', weekday: 'short', hour: 'numeric', minute: '2-digit', timeZoneName: 'shortGeneric' }),
  forCustomer: new Intl.DateTimeFormat(locale, { year: 'numeric', month: 'short', day: 'numeric', weekday: 'short', hour: 'numeric', minute: '2-digit' }),
  time: new Intl.DateTimeFormat(locale, { hour: 'numeric', minute: '2-digit', second: '2-digit' }),
  zone: new Intl.DateTimeFormat(locale, { timeZoneName: 'shortGeneric' }),
  date: new Intl.DateTimeFormat(locale, { dateStyle: 'medium' }),
  day: new Intl.DateTimeFormat(locale, { month: 'short', day: 'numeric' }),
  minute: new Intl.DateTimeFormat(locale, { timeStyle: 'short' }),
  second: new Intl.DateTimeFormat(locale, { timeStyle: 'medium' }),
});

/** formats are those of the language. */
function formats(): ReturnType<typeof make> {
  const { locale } = language;
  let found = made.get(locale);
  if (!found) made.set(locale, (found = make(locale)));
  return found;
}

/** number groups digits. Strings are integers that may exceed 2^53. */
export function number(n: number | string | bigint | undefined | null): string {
  if (n === undefined || n === null || n === '') return '–';
  const { whole } = formats();
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
  const { tenths, whole } = formats();
  return n !== 0 && Math.abs(n) < 10 ? tenths.format(n) : whole.format(n);
}

/** percent shows a share of 0 to 1. A share that is not everything never looks like it. */
export function percent(share: number): string {
  return formats().percents.format(share > 0.999 && share < 1 ? 0.999 : share);
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

/** major writes minor units in major ones, as a field takes them: "1050" of EUR is "10.50". */
export function major(amount: number | string, currency: string | undefined): `${number}` {
  const behind = digitsOf(currency) ?? 0;
  const text = String(amount);
  const padded = text.replace('-', '').padStart(behind + 1, '0');
  const at = padded.length - behind;
  return `${text.startsWith('-') ? '-' : ''}${padded.slice(0, at)}${behind ? '.' : ''}${padded.slice(at)}` as `${number}`;
}

/** money shows minor units as people read them: "10.50 EUR", "1,050 KRW" ("1,050원" in Korean); those of an unknown currency as they are. */
export function money(amount: number | string | undefined | null, currency?: string): string {
  if (amount === undefined || amount === null || !currency) return number(amount);
  const text = formats().decimals[digitsOf(currency) ?? 0]!.format(major(amount, currency));
  return language.now === 'ko' && currency === 'KRW' ? `${text}원` : `${text}\u00a0${currency}`;
}

/** currencyNamed is how people name a currency: its code, in Korean 원 or 유로. */
export function currencyNamed(currency: string): string {
  if (language.now !== 'ko') return currency;
  return currency === 'KRW' ? '원' : (formats().currencies.of(currency) ?? currency);
}

/** capital writes the first letter large, as labels begin. */
export function capital(text: string): string {
  return text.slice(0, 1).toLocaleUpperCase(language.now) + text.slice(1);
}

/** moment is a time in the browser's zone; today's without the day. */
export function moment(at: string | Date): string {
  const d = new Date(at);
  const { dayAndTime, time } = formats();
  return (d.toDateString() === new Date().toDateString() ? time : dayAndTime).format(d);
}

/** exact is a time in the browser's zone with its day and its seconds, as in a report. */
export const exact = (at: string | Date): string => formats().dayAndTime.format(new Date(at));

/** dated is a time with its day and its zone, but no seconds: one that is planned, or that is read later. */
export const dated = (at: string | Date): string => formats().dated.format(new Date(at));

/** forCustomer is a time as it is told to a customer, who lives in the zone of the shop. */
export const forCustomer = (at: string | Date): string => formats().forCustomer.format(new Date(at));

/** day is a date without a time, such as 2026-11-29. */
export const day = (date: string): string => formats().date.format(new Date(date + 'T00:00'));

/** zoneNamed is the time zone of the browser as people say it, such as Germany Time. */
export const zoneNamed = (): string => formats().zone.formatToParts().find((p) => p.type === 'timeZoneName')?.value ?? zone;

/** zone is the time zone of the browser, in which people write times. */
export const zone = Intl.DateTimeFormat().resolvedOptions().timeZone;

/** tick labels the axis of a chart with that many seconds between two labels: no more than tells them apart. */
export function tick(d: Date, step: number): string {
  const { day, minute, second } = formats();
  if (step >= 86_400 || (d.getHours() === 0 && d.getMinutes() === 0 && d.getSeconds() === 0)) return day.format(d);
  return (step < 60 ? second : minute).format(d);
}

/** utc is a time in UTC, for hovering and copying. */
export function utc(at: string | Date): string {
  return new Date(at).toISOString().replace('T', ' ').replace(/\.\d+Z$/, ' UTC').replace(/Z$/, ' UTC');
}

/** duration writes seconds in at most two units: "2 h 5 min", "12 s". */
export function duration(seconds: number): string {
  const all = Math.max(0, Math.round(seconds));
  const [d, h, m, s] = [Math.floor(all / 86_400), Math.floor((all % 86_400) / 3600), Math.floor((all % 3600) / 60), all % 60];
  if (all < 60) return t('time.seconds', { s });
  if (all < 3600) return s && all < 600 ? t('time.minutesSeconds', { m, s }) : t('time.minutes', { m });
  if (all < 86_400) return m ? t('time.hoursMinutes', { h, m }) : t('time.hours', { h });
  return h ? t('time.daysHours', { d, h }) : t('time.days', { d });
}

/** ago writes how long ago a time is, by the browser's clock: in steps, so that a table of times does not flicker every second. */
export function ago(at: string | Date, now: number): string {
  const seconds = (now - new Date(at).getTime()) / 1000;
  if (seconds < 0) return t('time.in', { duration: duration(-seconds) });
  if (seconds < 5) return t('time.now');
  const step = seconds < 60 ? 5 : seconds < 600 ? 60 : 1;
  return t('time.ago', { duration: duration(Math.floor(seconds / step) * step) });
}

/** millis writes a latency: "850 ms", in Korean "0.85초". */
export function millis(ms: number | undefined | null): string {
  if (ms === undefined || ms === null) return '–';
  return ms < 10_000 ? t('time.millis', { n: language.now === 'ko' ? formats().twoDigits.format(ms / 1000) : number(ms) }) : duration(ms / 1000);
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
  if (s > 0 && s < 1) return millis(Math.max(1, Math.round(s * 1000)));
  return s < 10 ? t('time.seconds', { s: formats().tenths.format(s) }) : duration(s);
}
