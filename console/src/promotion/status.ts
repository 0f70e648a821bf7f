// How far a promotion is: what its page and the lists show depends on it.

import type { Promotion } from '../lib/api';
import { clock } from '../lib/clock.svelte';

/** statusOf is the status as people see it: a draft may wait for somebody, or for its time. */
export function statusOf(p: Pick<Promotion, 'status' | 'startsAt' | 'awaitingApproval' | 'approvalAsked' | 'approvedBy' | 'rejectedBy'>): string {
  if (p.status !== 'DRAFT') return p.status;
  if (p.rejectedBy) return 'DECLINED';
  if (p.awaitingApproval) return p.startsAt || p.approvalAsked ? 'AWAITING' : 'DRAFT';
  if (p.startsAt) return 'SCHEDULED';
  return p.approvedBy ? 'APPROVED' : 'DRAFT';
}

/** endedBefore tells whether the end of a scheduled draft came before it could start. */
export const endedBefore = (p: Pick<Promotion, 'status' | 'endsAt'>): boolean => p.status === 'DRAFT' && p.endsAt !== undefined && Date.parse(p.endsAt) <= clock.now;
