// How far a promotion is: what its page and the lists show depends on it.

import type { Promotion } from '../lib/api';
import { clock } from '../lib/clock.svelte';

/** statusOf is the status as people see it: a draft with a time to start is scheduled. */
export const statusOf = (p: Pick<Promotion, 'status' | 'startsAt'>): string => (p.status === 'DRAFT' && p.startsAt ? 'SCHEDULED' : p.status);

/** endedBefore tells whether the end of a scheduled draft came before it could start. */
export const endedBefore = (p: Pick<Promotion, 'status' | 'endsAt'>): boolean => p.status === 'DRAFT' && p.endsAt !== undefined && Date.parse(p.endsAt) <= clock.now;
