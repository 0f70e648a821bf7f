// What is wrong or slow now: whose fault it is, since when, and which page follows it.

import type { Schemas } from '../lib/api';
import { duration, percent } from '../lib/format';
import { named, t } from '../lib/language.svelte';
import { troubleOf } from '../lib/reasons';

type Overview = Schemas['Overview'];
type Point = Overview['points'][number];

export interface Trouble {
  who: string;
  text: string;
  since?: string;
  reportedBy?: string;
  to: string; // the page that follows it
}

const failingMost = 0.2; // of the calls
const slowMillis = 2000;
const unclearSeconds = 900;
const stuckSeconds = 60;

const calls = (p: Point) => (p.failed ?? 0) + (p.retrying ?? 0) + (p.succeeded ?? 0);
const bad = (p: Point) => (p.failed ?? 0) + (p.retrying ?? 0);

/** failing is the share of the calls of the last 15 minutes that failed. */
export function failing(points: Point[]): number {
  const all = points.reduce((n, p) => n + calls(p), 0);
  return all ? points.reduce((n, p) => n + bad(p), 0) / all : 0;
}

/** since is when what holds for the newest point began; undefined if it does not hold for that. Points without a call do not count. */
function since(points: Point[], holds: (p: Point) => boolean): string | undefined {
  let at: string | undefined;
  for (const p of points.filter((p) => calls(p) > 0).reverse()) {
    if (!holds(p)) break;
    at = p.at;
  }
  return at;
}

/** troublesOf lists the troubles of all instances, those of whole parts first. */
export function troublesOf(o: Overview, now: number): Trouble[] {
  const age = (at: string | undefined) => (at ? (now - Date.parse(at)) / 1000 : 0);
  const provider = named('part', 'provider');
  const running = '/promotions?status=RUNNING';
  const list: Trouble[] = o.health.filter((h) => !h.ok).map((h) => ({
    who: named('part', h.part), text: troubleOf(h.part, h.reason), since: h.since, reportedBy: (h.instances ?? []).join(', '), to: h.part === 'provider' ? running : '/instances',
  }));
  if (o.instances.dead) list.push({ who: t('page.instances'), text: t('overview.dead', { n: o.instances.dead }), to: '/instances' });
  const failed = since(o.points, (p) => bad(p) / calls(p) > failingMost);
  if (o.governor.breakerOpen) list.push({ who: provider, text: t('overview.breaker'), since: failed, to: running });
  else if (failed) list.push({ who: provider, text: t('overview.fails', { share: percent(failing(o.points.filter((p) => p.at >= failed))) }), since: failed, to: running });
  if (age(o.governor.blockedUntil) < 0) list.push({ who: provider, text: t('overview.blocked', { duration: duration(-age(o.governor.blockedUntil)) }), to: running });
  const slow = since(o.points, (p) => (p.p95Millis ?? 0) >= slowMillis);
  if (slow) list.push({ who: provider, text: t('overview.slow', { duration: duration((o.points.findLast((p) => p.p95Millis !== null)?.p95Millis ?? 0) / 1000) }), since: slow, to: running });
  if (o.running > 0 && age(o.oldestReadyAt) > stuckSeconds && o.paidPerSecond === 0) list.push({ who: t('col.payouts'), text: t('overview.stuck', { n: o.waiting }), since: o.oldestReadyAt, to: running });
  if (age(o.oldestUnknownAt) > unclearSeconds) list.push({ who: provider, text: t('overview.unclear', { n: o.unknown }), since: o.oldestUnknownAt, to: '/unknown' });
  if (!o.governor.ratesShared) list.push({ who: named('part', 'rates'), text: t('overview.ratesUnshared'), to: '/instances' });
  return list;
}
