// What a drop looked like since the page was opened: how fast coupons were issued, who
// waited, and what newcomers were told about their wait against how long it became.

import type { Schemas } from './api';

export interface Point {
  at: number; // milliseconds
  issued: number; // ever
  waiting: number;
  rate: number | null; // coupons per second
  told: number | null; // seconds that a request which joined now was told
  real: number | null; // seconds until it was its turn; null: not yet, or nobody joined
}

interface Waiter {
  point: Point;
  turn: number; // of coupons ever issued
}

const pointsMax = 1500;

export class Drop {
  points = $state.raw<Point[]>([]);
  last = $state.raw<Point | undefined>(); // that this page has seen itself
  #open: Waiter[] = []; // not served yet

  /** past begins with what the server has recorded. */
  past(stepSeconds: number, points: { at: string; issued: number | null; waiting: number | null }[]): void {
    const first = this.points[0]?.at ?? Infinity;
    const before = points
      .map((p) => ({ at: Date.parse(p.at), issued: 0, waiting: p.waiting ?? 0, rate: p.issued === null ? null : p.issued / stepSeconds, told: null, real: null }))
      .filter((p) => p.at < first);
    this.points = [...before, ...this.points];
  }

  /** add notes the counters of a moment. A request that joins now has its turn when everybody in line before it got a coupon. */
  add(c: Schemas['Counters'], at: number, rate: number | null, toldMillis: number | undefined): void {
    const last = this.last;
    if (last && at <= last.at) return;
    const p: Point = { at, issued: c.issuedTotal, waiting: c.waiting, rate, told: toldMillis === undefined ? null : toldMillis / 1000, real: null };
    const served: Waiter[] = [];
    this.#open = this.#open.filter((o) => {
      const come = c.issuedTotal >= o.turn || c.waiting === 0; // the line is empty: some have left it
      if (come) served.push(o);
      return !come;
    });
    let points = this.points;
    if (served.length && last) {
      // Between two looks, coupons were issued evenly.
      const real = new Map(served.map(({ point, turn }) => {
        const share = c.issuedTotal > last.issued ? Math.min(1, Math.max(0, (turn - last.issued) / (c.issuedTotal - last.issued))) : 1;
        return [point.at, Math.max(0, last.at + share * (at - last.at) - point.at) / 1000];
      }));
      points = points.map((x) => (real.has(x.at) ? { ...x, real: real.get(x.at)! } : x));
    }
    if (c.waiting > 0) this.#open.push({ point: p, turn: c.issuedTotal + c.waiting + 1 });
    this.points = [...points.slice(-pointsMax), p];
    this.last = p;
  }

  /** compared averages the waits of those who were told one and had their turn. */
  get compared(): { told: number; real: number; n: number } | undefined {
    const both = this.points.filter((p) => p.told !== null && p.real !== null);
    if (both.length === 0) return undefined;
    const mean = (of: (p: Point) => number) => both.reduce((sum, p) => sum + of(p), 0) / both.length;
    return { told: mean((p) => p.told!), real: mean((p) => p.real!), n: both.length };
  }
}
