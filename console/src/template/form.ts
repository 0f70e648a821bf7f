// The settings of a coupon template as people write them, and as the API takes them.

import type { Schemas, Template } from '../lib/api';
import { days, inDays, instant, local, metadataChange, metadataOf, pairsOf, whole, type Pair } from '../lib/form';
import { t } from '../lib/language.svelte';

/** Form is what the fields hold. */
export interface Form {
  name: string;
  quantity: string;
  perUser: string;
  opens: string;
  closes: string;
  valid: string;
  notes: string;
  hold: string;
  mode: Template['mode'];
  away: Template['whenRedisAway'];
  reissue: boolean;
  who: 'first' | 'draw';
  drawFrom: string;
  codes: 'long' | 'short' | 'file';
  prefix: string;
  length: string;
  alphabet: string;
  pairs: Pair[];
}

/** formOf fills the fields with what a template has, or with what a new one begins with. */
export const formOf = (c?: Template): Form => ({
  name: c?.name ?? '', quantity: '', perUser: String(c?.perUserLimit ?? 1), opens: local(c?.opensAt), closes: local(c?.closesAt), valid: inDays(c?.validForSeconds), notes: c?.notes ?? '',
  hold: c?.holdSeconds ? String(c.holdSeconds) : '', mode: c?.mode ?? 'STREAM', away: c?.whenRedisAway ?? 'DATABASE', reissue: c?.reissueAfterCancel ?? true,
  who: 'first', drawFrom: '', codes: 'long', prefix: '', length: '', alphabet: '', pairs: pairsOf(c?.metadata),
});

const hold = (f: Form) => whole(f.hold, t('field.hold'));
const valid = (f: Form) => days(f.valid, t('field.valid'));
const perUser = (f: Form) => whole(f.perUser, t('field.perUser'));

/** creation is what is sent for a new template. */
export function creation(f: Form): Schemas['CreateTemplate'] {
  const metadata = metadataOf(f.pairs);
  const short = { prefix: f.prefix.trim() || undefined, length: whole(f.length, t('field.codeLength')), alphabet: f.alphabet.trim() || undefined };
  return {
    name: f.name.trim(), totalQuantity: whole(f.quantity, t('drop.quantity')) ?? 0, perUserLimit: perUser(f), opensAt: instant(f.opens), closesAt: instant(f.closes), validForSeconds: valid(f),
    notes: f.notes.trim() || undefined, mode: f.mode, whenRedisAway: f.away, holdSeconds: hold(f), reissueAfterCancel: f.reissue, metadata: Object.keys(metadata).length ? metadata : undefined,
    draw: f.who === 'draw' ? { from: instant(f.drawFrom) ?? '' } : undefined, codes: f.codes === 'short' ? short : undefined,
  };
}

/** alteration is what is sent for a template that was seen: only what differs. */
export function alteration(c: Template, f: Form): Schemas['ChangeTemplate'] {
  const before = formOf(c);
  const differs = (field: 'name' | 'perUser' | 'opens' | 'closes' | 'valid' | 'notes' | 'hold') => f[field].trim() !== before[field].trim();
  const metadata = metadataChange(c.metadata, metadataOf(f.pairs));
  return {
    ...(differs('name') ? { name: f.name.trim() } : {}), ...(differs('perUser') ? { perUserLimit: perUser(f) ?? 1 } : {}),
    ...(differs('opens') ? { opensAt: instant(f.opens) ?? null } : {}), ...(differs('closes') ? { closesAt: instant(f.closes) ?? null } : {}),
    ...(differs('valid') ? { validForSeconds: valid(f) ?? null } : {}), ...(differs('notes') ? { notes: f.notes.trim() } : {}),
    ...(differs('hold') ? { holdSeconds: hold(f) ?? null } : {}), ...(f.mode !== before.mode ? { mode: f.mode } : {}),
    ...(f.away !== before.away ? { whenRedisAway: f.away } : {}), ...(f.reissue !== before.reissue ? { reissueAfterCancel: f.reissue } : {}),
    ...(Object.keys(metadata).length ? { metadata } : {}),
  };
}
