// What a template is doing at a moment.

import type { Template } from './api';

export interface Phase {
  state: string; // as Badge knows it
  text: string;
}

export function phase(t: Template, now: number): Phase {
  if (t.closesAt && new Date(t.closesAt).getTime() <= now) return { state: 'CANCELLED', text: 'closed' };
  if (t.opensAt && new Date(t.opensAt).getTime() > now) {
    if (t.draw && new Date(t.draw.from).getTime() <= now) return { state: 'RUNNING', text: 'draw: entries open' };
    return { state: 'READY', text: 'not open yet' };
  }
  if (t.draw && t.draw.state !== 'DONE') return { state: 'RUNNING', text: 'drawing' };
  if (t.path === 'DATABASE') return { state: 'WARN', text: 'open, without Redis' };
  if (t.counters.stock <= 0 && !t.degraded) return { state: 'COMPLETED', text: 'sold out' };
  return { state: 'RUNNING', text: 'open' };
}
