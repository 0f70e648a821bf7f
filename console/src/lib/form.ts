// What people write into fields, as the API takes it.

import { currencyNamed, digitsOf, major } from './format';
import { t } from './language.svelte';

const plain = /^\d+$/;
const grouped = /^\d{1,3}(?:[,.'’\s]\d{3})+$/;

/** whole reads "1,000" as 1000, and an empty field as undefined. Other text is refused: it would be taken for "none". */
export function whole(text: string, label: string): number | undefined {
  const typed = text.trim();
  if (typed === '') return undefined;
  const n = plain.test(typed) || grouped.test(typed) ? Number(typed.replaceAll(/\D/g, '')) : NaN;
  if (!Number.isSafeInteger(n)) throw new Error(t('form.notWhole', { label, text: typed }));
  return n;
}

/** minor reads "1,000.5" of EUR as 100050 minor units, and an empty field as undefined. Without known digits, it reads whole numbers. */
export function minor(text: string, label: string, currency: string | undefined): number | undefined {
  const typed = text.trim();
  if (typed === '') return undefined;
  const digits = digitsOf(currency) ?? 0;
  const [, before, after = ''] = /^(\d+|\d{1,3}(?:,\d{3})+)(?:\.(\d+))?$/.exec(typed) ?? [];
  if (before === undefined) throw new Error(t('form.notAmount', { label, text: typed, example: major(1050, currency) }));
  if (after.length > digits) throw new Error(t('form.tooFine', { label, text: typed, digits }));
  const n = Number(before.replaceAll(',', '') + after.padEnd(digits, '0'));
  if (!Number.isSafeInteger(n)) throw new Error(t('form.tooLarge', { label, text: typed }));
  return n;
}

const signs: Record<string, string> = { 원: 'KRW', '₩': 'KRW', $: 'USD', '€': 'EUR', '¥': 'JPY', '£': 'GBP' };

/** currencyOf reads a currency as people write it: its code, or its sign. An empty field is undefined. */
export function currencyOf(text: string): string | undefined {
  const typed = text.trim();
  return (signs[typed] ?? typed.toUpperCase()) || undefined;
}

/** unitsOf says in which units a field with an amount is. */
export function unitsOf(currency: string | undefined): string {
  if (!currency) return t('units.points');
  return digitsOf(currency) === undefined ? t('units.minor', { currency }) : t('units.major', { currency: currencyNamed(currency), example: major(1050, currency) });
}

const day = 86_400;

/** days reads "1.5" as 129600 seconds, and an empty field as undefined. */
export function days(text: string, label: string): number | undefined {
  const typed = text.trim();
  if (typed === '') return undefined;
  const seconds = /^\d+(\.\d+)?$/.test(typed) ? Math.round(Number(typed) * day) : NaN;
  if (!(seconds > 0) || !Number.isSafeInteger(seconds)) throw new Error(t('form.notDays', { label, text: typed }));
  return seconds;
}

/** inDays writes seconds as days, so that reading them gives the same seconds. */
export function inDays(seconds: number | undefined): string {
  return seconds ? String(+(seconds / day).toFixed(6)) : '';
}

/** share reads percent, "2.5" as 0.025, and an empty field as undefined. */
export function share(text: string, label: string): number | undefined {
  const typed = text.trim().replace(/%$/, '').replace(',', '.').trim();
  if (typed === '') return undefined;
  const n = Number(typed) / 100;
  if (!(n >= 0 && n <= 1)) throw new Error(t('form.notPercent', { label, text: text.trim() }));
  return n;
}

/** instant reads a field of local time. */
export function instant(text: string): string | undefined {
  return text ? new Date(text).toISOString() : undefined;
}

/** local writes a time for a field of local time. */
export function local(at: string | undefined): string {
  if (!at) return '';
  const d = new Date(at);
  return new Date(d.getTime() - d.getTimezoneOffset() * 60_000).toISOString().slice(0, d.getSeconds() ? 19 : 16);
}

export interface Pair {
  name: string;
  value: string;
}

/** pairsOf makes rows of metadata, by name. */
export function pairsOf(metadata: Record<string, string> | undefined): Pair[] {
  return Object.entries(metadata ?? {})
    .sort(([a], [b]) => (a < b ? -1 : 1))
    .map(([name, value]) => ({ name, value }));
}

/** metadataOf reads rows; those without a name are left out, and a name that comes twice is refused. */
export function metadataOf(pairs: Pair[]): Record<string, string> {
  const out: Record<string, string> = {};
  for (const { name, value } of pairs) {
    const n = name.trim();
    if (!n) {
      if (value.trim()) throw new Error(t('form.noName', { value: value.trim() }));
      continue;
    }
    if (Object.hasOwn(out, n)) throw new Error(t('form.twice', { name: n }));
    out[n] = value;
  }
  return out;
}

/** metadataChange is what turns one into the other: null removes an entry. */
export function metadataChange(from: Record<string, string> | undefined, to: Record<string, string>): Record<string, string | null> {
  const out: Record<string, string | null> = {};
  for (const [name, value] of Object.entries(to)) if (from?.[name] !== value) out[name] = value;
  for (const name of Object.keys(from ?? {})) if (!Object.hasOwn(to, name)) out[name] = null;
  return out;
}
