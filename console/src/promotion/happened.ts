// What people did to a promotion or a drop, and what a promotion did by itself: marks in its charts, and a list.

import type { Schemas } from '../lib/api';
import { capital, currencyNamed, dated, money, number, percent, plain } from '../lib/format';
import { named, t } from '../lib/language.svelte';
import { labels } from './labels';

export interface Happening {
  at: string;
  what: string;
  detail: string;
}

function shown(name: string, value: unknown, currency: string | undefined): string {
  if (value === null || value === '') return t('common.none');
  if (name === 'amount' || name === 'maxAmount') return money(String(value), currency);
  if (name === 'currency') return currencyNamed(String(value));
  if (name.endsWith('At')) return dated(String(value));
  if (name === 'canary') {
    const { targets, maxFailureRate } = value as Schemas['CreateCanary'];
    return t('approvals.canary', { n: targets, share: percent(maxFailureRate ?? 0) });
  }
  if (typeof value === 'object') return Object.entries(value).map(([key, v]) => `${key}: ${v ?? t('common.none')}`).join(', ');
  return String(value);
}

function changes(set: Record<string, unknown>, before: string | undefined): string {
  const fields: Record<string, string> = { ...labels(), canary: t('fact.canary') };
  const currency = typeof set.currency === 'string' ? set.currency : before;
  return Object.entries(set).map(([name, value]) => `${fields[name] ?? name}: ${shown(name, value, currency)}`).join(', ');
}

/** happened words the actions of a report, with what somebody changed, or why they paused or rejected. */
export const happened = (actions: Schemas['ReportAction'][], currency?: string): Happening[] =>
  actions.map(({ at, actor, action, count, reason, fileName, changes: set }) => {
    const what = capital(named('audit', action)) + (count === undefined ? '' : ` (${number(count)})`);
    return { at, what: actor ? t('happened.by', { what, name: plain(actor) }) : what, detail: plain(reason ?? fileName ?? (set ? changes(set, currency) : '')) };
  });
