// One user's request for a coupon of one template: asked, waiting, ended. The server
// knows all of it, so a reload or a second tab shows the same.

import { api, Problem, read, said, type Coupon, type Schemas, type Template } from '../lib/api';
import { follow } from '../lib/stream';
import { Clock } from './clock.svelte';
import { t } from '../lib/language.svelte';

type Request = Schemas['IssueRequest'];

/** pollEvery separates two polls while the stream of events is cut; while it runs, polls are rare. */
const pollEvery = 3000;
const pollRarely = 20_000;

/** The server's time is known to a second only, so a page may open early: it then asks every earlyEvery, for earlyFor. */
const earlyEvery = 500;
const earlyFor = 10_000;

export class Line {
  template = $state<Template>();
  missing = $state(false); // there is no such template
  request = $state<Request>();
  refused = $state(''); // the code of the latest refusal
  live = $state(false);
  cut = $state(false); // the latest call got no answer
  busy = $state(false);
  ahead = $state<number>(); // the place in line; it only moves forward
  first = $state(0); // the place when this page first saw it
  problem = $state('');
  readonly clock = new Clock();
  #id: string;
  #user: string;
  #ticket = 0;
  #stop: (() => void) | undefined;
  #ended = false;
  #timers = new Set<ReturnType<typeof setTimeout>>();

  constructor(id: string, user: string) {
    this.#id = id;
    this.#user = user;
  }

  get waiting(): boolean {
    return this.request?.status === 'WAITING';
  }

  get coupon(): Coupon | undefined {
    return this.request?.coupon;
  }

  /** start reads the template and the request that the user may already have; the returned function ends everything. */
  start(): () => void {
    void this.#watchTemplate();
    void this.refresh();
    return () => {
      this.#ended = true;
      this.#stop?.();
      for (const t of this.#timers) clearTimeout(t);
      this.clock.stop();
    };
  }

  #later(milliseconds: number, act: () => void): void {
    const t = setTimeout(() => {
      this.#timers.delete(t);
      if (!this.#ended) act();
    }, milliseconds);
    this.#timers.add(t);
  }

  async #watchTemplate(): Promise<void> {
    const sent = Date.now();
    try {
      const answer = await api.GET('/v1/coupon-templates/{id}', { params: { path: { id: this.#id } } });
      this.clock.learn(answer.response, sent);
      this.template = answer.data;
      this.cut = false;
    } catch (err) {
      if (err instanceof Problem && (err.status === 404 || err.status === 400)) {
        this.missing = true;
        return;
      }
      this.cut = true;
    }
    this.#later(document.hidden ? 30_000 : 5000, () => void this.#watchTemplate());
  }

  /** refresh reads the user's request. */
  async refresh(): Promise<void> {
    try {
      this.#take(await read(api.GET('/v1/issue-requests/{requestId}', { params: { path: { requestId: this.#requestID } } })));
    } catch (err) {
      if (err instanceof Problem && err.status === 404) this.#lost();
      else this.cut = true;
      if (!this.request && !(err instanceof Problem)) this.#later(pollEvery, () => void this.refresh());
    }
  }

  get #requestID(): string {
    return `${this.#id}:${this.#user}`;
  }

  /** ask requests a coupon. A repeat returns the same ticket, so asking again after a lost answer is safe. */
  async ask(): Promise<void> {
    this.busy = true;
    this.problem = '';
    this.refused = '';
    const until = Date.now() + earlyFor;
    while (!(await this.#askOnce())) {
      if (Date.now() > until) {
        this.problem = t('shop.notOpenYet');
        break;
      }
      await new Promise<void>((go) => this.#later(earlyEvery, go));
    }
    this.busy = false;
  }

  /** #askOnce returns false if it is not open yet by the server's clock. */
  async #askOnce(): Promise<boolean> {
    const sent = Date.now();
    try {
      const answer = await api.POST('/v1/coupons/{templateId}/issue', { params: { path: { templateId: this.#id } }, body: { userId: this.#user } });
      this.clock.learn(answer.response, sent);
      this.#take(answer.data as Request);
    } catch (err) {
      if (err instanceof Problem && err.code === 'NOT_OPEN') return false;
      if (err instanceof Problem && err.status === 409) {
        this.refused = err.code;
        this.request = undefined;
      } else if (err instanceof Problem && (err.status === 429 || err.status === 503)) {
        this.problem = t('shop.busy');
      } else if (err instanceof Problem) this.problem = err.message;
      else {
        this.cut = true;
        this.problem = t('shop.noAnswer');
      }
    }
    return true;
  }

  async leave(): Promise<string> {
    try {
      await api.DELETE('/v1/issue-requests/{requestId}', { params: { path: { requestId: this.#requestID } } });
    } catch (err) {
      if (!(err instanceof Problem && err.code === 'REQUEST_ENDED')) return said(err).text;
    }
    await this.refresh();
    return '';
  }

  async confirm(): Promise<string> {
    const coupon = this.coupon;
    if (!coupon) return '';
    this.busy = true;
    try {
      this.#set(await read(api.POST('/v1/coupons/{couponId}/confirm', { params: { path: { couponId: coupon.id } } })));
      return '';
    } catch (err) {
      return said(err).text;
    } finally {
      this.busy = false;
    }
  }

  #set(coupon: Coupon): void {
    if (this.request) this.request = { ...this.request, coupon };
  }

  /** #lost: the server knows no request, so the user may ask again. */
  #lost(): void {
    if (this.waiting) this.problem = t('shop.lost');
    this.#unfollow();
    this.request = undefined;
    this.#ticket = 0;
    this.cut = false;
  }

  #unfollow(): void {
    this.#stop?.();
    this.#stop = undefined;
    this.live = false;
  }

  #take(r: Request): void {
    // What is late must not undo what came before: tickets rise, and a place never does.
    if (this.request && (r.ticket ?? 0) < this.#ticket) return;
    if (this.request && r.ticket === this.#ticket && r.status === 'WAITING' && !this.waiting) return;
    if ((r.ticket ?? 0) > this.#ticket || !this.waiting) {
      this.ahead = undefined;
      this.first = 0;
    }
    this.cut = false;
    this.#ticket = r.ticket ?? 0;
    if (r.queueRank !== undefined) {
      this.ahead = Math.min(r.queueRank, this.ahead ?? r.queueRank);
      this.first = Math.max(this.first, r.queueRank);
    }
    const before = this.waiting;
    this.request = r;
    if (r.status !== 'WAITING') this.#unfollow();
    else if (!before || !this.#stop) this.#follow();
    if (r.status === 'ISSUED' && r.coupon?.status === 'HELD') this.#watchHeld();
  }

  #follow(): void {
    this.#stop ??= follow({
      path: `v1/issue-requests/${encodeURIComponent(this.#requestID)}/events`,
      live: (on) => {
        if (on === this.live) return;
        this.live = on;
        if (!on) this.#poll(); // at once in the rhythm of a cut stream
      },
      event: (e) => {
        if (e.name === 'rank' || e.name === 'result') this.#take(JSON.parse(e.data) as Request);
      },
      end: () => void this.refresh(), // no later stream is accepted: polls continue
    });
    this.#poll();
  }

  #round = 0; // of polls; a newer one replaces it
  #poll(): void {
    const round = ++this.#round;
    if (!this.waiting) return;
    this.#later(this.live ? pollRarely : pollEvery, () => {
      if (round !== this.#round || !this.waiting) return;
      void this.refresh().then(() => {
        if (round === this.#round) this.#poll();
      });
    });
  }

  #held = false;
  /** #watchHeld looks whether a held coupon was confirmed elsewhere, or has ended. */
  #watchHeld(): void {
    if (this.#held) return;
    this.#held = true;
    const look = async () => {
      const coupon = this.coupon;
      if (coupon?.status !== 'HELD') {
        this.#held = false;
        return;
      }
      try {
        this.#set(await read(api.GET('/v1/coupons/{couponId}', { params: { path: { couponId: coupon.id } } })));
        this.cut = false;
      } catch {
        this.cut = true;
      }
      this.#later(1000, () => void look());
    };
    this.#later(1000, () => void look());
  }
}
