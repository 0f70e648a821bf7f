// What this browser showed of a promotion when somebody last looked at it to decide, and what is different now.

import type { Promotion } from '../lib/api';
import { dated, money, number, plain } from '../lib/format';
import { t } from '../lib/language.svelte';

type Snapshot = Pick<Promotion, 'name' | 'totalCount' | 'amountTotal' | 'currency' | 'startsAt' | 'endsAt' | 'maxAmount' | 'ratePerSecond' | 'canary'> & { at: string };

export interface Change {
  what: string;
  before: string;
  now: string;
}

const storage = (id: string) => 'largesse.seen.' + id;

/** lookedAt is what was shown last; undefined if nothing was. */
export function lookedAt(id: string): Snapshot | undefined {
  try {
    return JSON.parse(localStorage.getItem(storage(id)) ?? 'null') ?? undefined;
  } catch {
    return undefined;
  }
}

/** look remembers what is shown. */
export function look(p: Promotion): void {
  const { name, totalCount, amountTotal, currency, startsAt, endsAt, maxAmount, ratePerSecond, canary } = p;
  localStorage.setItem(storage(p.id), JSON.stringify({ name, totalCount, amountTotal, currency, startsAt, endsAt, maxAmount, ratePerSecond, canary, at: new Date().toISOString() } satisfies Snapshot));
}

/** changes lists what is different now. */
export function changes(before: Snapshot, now: Promotion): Change[] {
  const none = t('common.none');
  const fields = [
    [t('field.name'), (p: Snapshot | Promotion) => plain(p.name)],
    [t('col.targets'), (p: Snapshot | Promotion) => number(p.totalCount)],
    [t('col.amount'), (p: Snapshot | Promotion) => money(p.amountTotal, p.currency)],
    [t('field.starts'), (p: Snapshot | Promotion) => (p.startsAt ? dated(p.startsAt) : none)],
    [t('campaign.ends'), (p: Snapshot | Promotion) => (p.endsAt ? dated(p.endsAt) : none)],
    [t('field.budget'), (p: Snapshot | Promotion) => (p.maxAmount ? money(p.maxAmount, p.currency) : none)],
    [t('field.rate'), (p: Snapshot | Promotion) => (p.ratePerSecond ? number(p.ratePerSecond) : none)],
    [t('field.canary'), (p: Snapshot | Promotion) => (p.canary ? number(p.canary.targets) : none)],
  ] as const;
  return fields.map(([what, read]) => ({ what, before: read(before), now: read(now) })).filter((c) => c.before !== c.now);
}
