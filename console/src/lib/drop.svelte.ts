// What a drop looked like since the page was opened: how fast coupons were issued, who
// waited, and what newcomers were told about their wait against how long it became.

import type { Schemas } from './api';

export interface Point {
  at: number; // milliseconds
  issued: number; // ever
  waiting: number;
  rate: number | null; // coupons per second since the point before
  told: number | null; // seconds that a request which joined now was told
  real: number | null; // seconds until it was its turn; null: not yet, or nobody joined
}

interface Waiter {
  point: Point;
  turn: number; // of coupons ever issued
}

const pointsMax = 1500;
const secondAbout = 900; // milliseconds between two points: the server looks twice per second
const gap = 5000; // milliseconds without a look, in which nobody knows when the coupons were issued

export class Drop {
  points = $state.raw<Point[]>([]);
  last = $state.raw<Point | undefined>(); // that this page has seen itself
  #open: Waiter[] = []; // not served yet

  /** past begins with what the server has recorded since a time: each of its steps is a level line, from when it began to when it ended. */
  past(stepSeconds: number, points: { at: string; issued: number | null; waiting: number | null }[], since: number): void {
    const first = this.points[0]?.at ?? Date.now();
    const before = points.flatMap((p) => {
      const begun = Date.parse(p.at);
      const end = Math.min(begun + stepSeconds * 1000, first) - 1;
      const at = begun < since && since < end ? since : begun;
      if (end - at < 1000 || (end < since && !p.issued && !p.waiting)) return [];
      const level = { issued: 0, waiting: p.waiting ?? 0, rate: p.issued === null ? null : (p.issued * 1000) / (end - at), told: null, real: null };
      return [{ at, ...level }, { at: end, ...level }];
    });
    this.points = [...before, ...this.points];
  }

  /**
   * add notes the counters of a moment, and how fast they grew by the server's average, which counts only after a
   * gap. A request that joins now has its turn when everybody in line before it got a coupon.
   */
  add(c: Schemas['Counters'], at: number, average: number | null, toldMillis: number | undefined): void {
    const last = this.last;
    const passed = last ? at - last.at : Infinity;
    if (passed < secondAbout) return;
    const rate = last && passed < gap ? Math.max(0, ((c.issuedTotal - last.issued) * 1000) / passed) : average;
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
