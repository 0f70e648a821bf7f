// What a template is doing at a moment.

import type { Template } from './api';
import { named } from './language.svelte';

/** modes are the ways in which coupons are issued. */
export const modes = { STREAM: 'mode.STREAM', KAFKA: 'mode.KAFKA', SYNC: 'mode.SYNC' } as const;

export interface Phase {
  name: 'closed' | 'draw' | 'notOpen' | 'drawing' | 'withoutRedis' | 'soldOut' | 'open';
  state: string; // as Badge knows it
  text: string;
}

const states = { closed: 'CANCELLED', draw: 'RUNNING', notOpen: 'READY', drawing: 'RUNNING', withoutRedis: 'WARN', soldOut: 'COMPLETED', open: 'RUNNING' };

function phaseName(c: Template, now: number): Phase['name'] {
  if (c.closesAt && new Date(c.closesAt).getTime() <= now) return 'closed';
  if (c.opensAt && new Date(c.opensAt).getTime() > now) return c.draw && new Date(c.draw.from).getTime() <= now ? 'draw' : 'notOpen';
  if (c.draw && c.draw.state !== 'DONE') return 'drawing';
  if (c.path === 'DATABASE') return 'withoutRedis';
  return c.counters.stock <= 0 && !c.degraded ? 'soldOut' : 'open';
}

export function phase(c: Template, now: number): Phase {
  const name = phaseName(c, now);
  return { name, state: states[name], text: named('phase', name) };
}
