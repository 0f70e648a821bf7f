// What people did to a promotion, and what it did by itself: marks in its charts, and a list.

import type { Promotion, Schemas } from '../lib/api';
import { dated, plain } from '../lib/format';
import { named, t } from '../lib/language.svelte';
import { labels } from './labels';

export interface Happening {
  at: string;
  what: string;
  detail: string;
}

const acts = new Set([
  'start-promotion', 'pause-promotion', 'resume-promotion', 'cancel-promotion', 'close-promotion', 'approve-promotion',
  'reject-promotion', 'change-promotion', 'retry-payouts', 'upload-targets', 'resolve-payout',
]);

const newest = 40;

function changes(detail: string): string {
  const fields: Record<string, string> = { ...labels(), canary: t('fact.canary'), webhookUrl: t('field.webhook') };
  const shown = (name: string, value: unknown): string => {
    if (value === null || value === '') return t('common.none');
    if (name.endsWith('At')) return dated(String(value));
    return typeof value === 'object' ? JSON.stringify(value) : String(value);
  };
  try {
    return Object.entries(JSON.parse(detail) as Record<string, unknown>)
      .map(([name, value]) => `${fields[name] ?? name}: ${shown(name, value)}`)
      .join(', ');
  } catch {
    return detail; // it was long, and is cut
  }
}

/** detailOf is what somebody changed, or why they paused or rejected. */
function detailOf({ action, detail = '' }: Schemas['AuditLine']): string {
  if (action === 'change-promotion') return changes(detail);
  return /^\{"reason":("(?:[^"\\]|\\.)*")\}$/.test(detail) ? (JSON.parse(detail) as { reason: string }).reason : '';
}

/** happened lists the newest happenings, the oldest first. */
export function happened(audit: Schemas['AuditLine'][], p: Pick<Promotion, 'status' | 'startedAt' | 'finishedAt'>): Happening[] {
  const list: (Happening & { act: string })[] = [];
  for (const l of audit) {
    const failed = !l.endedAt || (l.status ?? 500) >= 400;
    const dryRun = l.action === 'upload-targets' && l.detail?.includes('"dryRun":true');
    if (!acts.has(l.action) || failed || dryRun) continue;
    list.push({ at: l.at, act: l.action, what: t('happened.by', { what: named('happened', l.action), name: plain(l.actor) || named('role', 'anonymous') }), detail: plain(detailOf(l)) });
  }
  const listed = (at: string, act: string) => list.some((d) => d.act === act &&  Math.abs(Date.parse(d.at) - Date.parse(at)) < 3000);
  if (p.startedAt && !listed(p.startedAt, 'start-promotion')) list.push({ at: p.startedAt, act: '', what: named('happened', 'start-promotion'), detail: '' });
  if (p.finishedAt && !listed(p.finishedAt, 'cancel-promotion')) list.push({ at: p.finishedAt, act: '', what: p.status === 'CANCELLED' ? t('happened.settled') : t('happened.finished'), detail: '' });
  return list.sort((a, b) => (a.at < b.at ? -1 : 1)).slice(-newest);
}
