// What people did to a promotion, and what it did by itself: marks in its charts, and a list.

import type { Promotion, Schemas } from '../lib/api';
import { plain } from '../lib/format';

export interface Happening {
  at: string;
  what: string;
  detail: string;
}

const verbs: Record<string, string> = {
  'start-promotion': 'started', 'pause-promotion': 'paused', 'resume-promotion': 'resumed', 'cancel-promotion': 'cancelled', 'close-promotion': 'closed', 'approve-promotion': 'approved',
  'reject-promotion': 'rejected', 'change-promotion': 'changed', 'retry-payouts': 'failed payouts retried', 'upload-targets': 'targets added', 'resolve-payout': 'payout settled',
};

const newest = 40;

function changes(detail: string): string {
  try {
    return Object.entries(JSON.parse(detail) as Record<string, unknown>)
      .map(([name, value]) => `${name}: ${value === null ? 'none' : typeof value === 'object' ? JSON.stringify(value) : value}`)
      .join(', ');
  } catch {
    return detail; // it was long, and is cut
  }
}

/** happened lists the newest happenings, the oldest first. */
export function happened(audit: Schemas['AuditLine'][], p: Pick<Promotion, 'status' | 'startedAt' | 'finishedAt'>): Happening[] {
  const list: Happening[] = [];
  for (const l of audit) {
    const verb = verbs[l.action];
    const failed = !l.endedAt || (l.status ?? 500) >= 400;
    const dryRun = l.action === 'upload-targets' && l.detail?.includes('"dryRun":true');
    if (!verb || failed || dryRun) continue;
    list.push({ at: l.at, what: `${verb} by ${plain(l.actor) || 'anonymous'}`, detail: l.action === 'change-promotion' ? plain(changes(l.detail ?? '')) : '' });
  }
  const listed = (at: string, verb: string) => list.some((d) => d.what.startsWith(verb) && Math.abs(Date.parse(d.at) - Date.parse(at)) < 3000);
  if (p.startedAt && !listed(p.startedAt, 'started')) list.push({ at: p.startedAt, what: 'started', detail: '' });
  if (p.finishedAt && !listed(p.finishedAt, 'cancelled')) list.push({ at: p.finishedAt, what: p.status === 'CANCELLED' ? 'cancelled, and everything settled' : 'finished', detail: '' });
  return list.sort((a, b) => (a.at < b.at ? -1 : 1)).slice(-newest);
}
