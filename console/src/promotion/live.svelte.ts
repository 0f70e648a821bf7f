// What a promotion does second by second while its page is open, from its counts. The server keeps steps of ten seconds.

import type { Promotion } from '../lib/api';

interface Sample {
  at: number; // seconds
  succeeded: number;
  failed: number;
}

/** Speed has outcomes per second at a moment. */
export interface Speed {
  at: number;
  succeeded: number;
  failed: number;
}

const samplesMax = 600;
const window = 10; // seconds of which the speed is told

export class Live {
  #samples = $state.raw<Sample[]>([]);
  #status = '';
  #since = 0; // the status

  /** add notes the counts of now, at most once per second; after the end, only those that it brought. */
  add(p: Promotion, now = Date.now() / 1000): void {
    const { succeeded, failed } = p.counts;
    if (p.status !== this.#status) [this.#status, this.#since] = [p.status, now];
    const last = this.#samples.at(-1);
    if (last && now - last.at < 0.9) return;
    if (p.finishedAt && (!last || (last.succeeded === succeeded && last.failed === failed))) return;
    this.#samples = [...this.#samples, { at: now, succeeded, failed }].slice(-samplesMax);
  }

  /** speeds are the outcomes per second between two samples. A retry of failed payouts makes their number smaller. */
  get speeds(): Speed[] {
    return this.#samples.slice(1).map((s, i) => between(this.#samples[i]!, s));
  }

  /** perSecond is how many payouts were settled per second lately; undefined while nobody knows. */
  get perSecond(): number | undefined {
    const last = this.#samples.at(-1);
    const first = this.#samples.find((s) => s.at >= Math.max(this.#since, (last?.at ?? 0) - window));
    if (!first || !last || first === last) return undefined;
    const { succeeded, failed } = between(first, last);
    return succeeded + failed;
  }
}

function between(a: Sample, b: Sample): Speed {
  const seconds = b.at - a.at;
  return { at: b.at, succeeded: Math.max(0, b.succeeded - a.succeeded) / seconds, failed: Math.max(0, b.failed - a.failed) / seconds };
}
