// What a template is doing at a moment.

import type { Coupon, Template } from './api';
import { named } from './language.svelte';

/** modes are the ways in which coupons are issued. */
export const modes = { STREAM: 'mode.STREAM', KAFKA: 'mode.KAFKA', SYNC: 'mode.SYNC' } as const;

export interface Phase {
  name: 'closed' | 'draw' | 'notOpen' | 'drawing' | 'soldOut' | 'open';
  state: string; // as Badge knows it
  text: string;
}

const states = { closed: 'CANCELLED', draw: 'RUNNING', notOpen: 'READY', drawing: 'RUNNING', soldOut: 'COMPLETED', open: 'RUNNING' };

function phaseName(c: Template, now: number): Phase['name'] {
  if (c.closesAt && new Date(c.closesAt).getTime() <= now) return 'closed';
  if (c.opensAt && new Date(c.opensAt).getTime() > now) return c.draw && new Date(c.draw.from).getTime() <= now ? 'draw' : 'notOpen';
  if (c.draw && c.draw.state !== 'DONE') return 'drawing';
  return c.counters.stock <= 0 && !c.degraded ? 'soldOut' : 'open';
}

export function phase(c: Template, now: number): Phase {
  const name = phaseName(c, now);
  return { name, state: states[name], text: named('phase', name) };
}

/** isHeld tells whether a coupon can still be confirmed. */
export const isHeld = (c: Coupon, now: number): boolean => c.status === 'HELD' && (!c.heldUntil || Date.parse(c.heldUntil) > now);

/** isCancellable tells whether a coupon can be cancelled. */
export const isCancellable = (c: Coupon, now: number): boolean => c.status === 'ISSUED' || isHeld(c, now);
