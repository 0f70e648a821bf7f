// How far a promotion is: what its page and the lists show depends on it.

import type { Promotion } from '../lib/api';

/** statusOf is the status as people see it: a draft with a time to start is scheduled. */
export const statusOf = (p: Pick<Promotion, 'status' | 'startsAt'>): string => (p.status === 'DRAFT' && p.startsAt ? 'SCHEDULED' : p.status);
