// One sentence per reward that answers "why did I not get it?", and everything in the
// order of time.

import type { Schemas } from './api';
import { money, moment, number, plain, seconds } from './format';
import { named, t } from './language.svelte';
import { pauseReason } from './reasons';

export interface Moment {
  at: string;
  title: string;
  text: string;
  state: string; // as Badge knows it
  to?: string; // a view
}

export interface Verdict {
  got: boolean | undefined; // undefined: not decided yet
  text: string;
  to: string;
}

type History = Schemas['History'];
type HistoryPayout = Schemas['HistoryPayout'];

const reward = (p: HistoryPayout) => (p.voucherCode ? t('person.voucher', { code: plain(p.voucherCode) }) : money(p.amount, p.currency));
const promotion = (p: HistoryPayout) => plain(p.promotionName) || t('promotion.number', { id: p.promotionId });

/** Cancellers has who cancelled something, by the path of the call; '' if that is not known. */
export type Cancellers = Map<string, string>;

const cancelPath = (p: HistoryPayout) => `/v1/promotions/${p.promotionId}/cancel`;
const couponCancelPath = (c: { id: string }) => `/v1/coupons/${c.id}/cancel`;
const canceller = (by: Cancellers, path: string) => plain(by.get(path));

/** lastCancel returns the path of the call that cancelled something of a person last; '' if nothing was cancelled. */
export function lastCancel(h: History): string {
  const payouts = (h.payouts ?? []).filter((p) => p.state === 'CANCELLED').map((p) => ({ at: p.updatedAt, path: cancelPath(p) }));
  const coupons = (h.items ?? []).flatMap((i) => i.coupon?.status === 'CANCELLED' && i.coupon.reason !== 'HOLD_EXPIRED' ? [{ at: i.coupon.cancelledAt ?? i.at, path: couponCancelPath(i.coupon) }] : []);
  return [...payouts, ...coupons].reduce((last, c) => (c.at > last.at ? c : last), { at: '', path: '' }).path;
}

export function payoutVerdict(p: HistoryPayout, by: Cancellers): Verdict {
  const to = `/promotions/${p.promotionId}/payouts/${p.targetId}`;
  const why = plain(p.errorMessage || p.errorCode);
  const about = { promotion: promotion(p) };
  const name = canceller(by, cancelPath(p));
  const missing = (text: string) => ({ got: false, text, to });
  const open = (text: string) => ({ got: undefined, text, to });
  switch (p.state) {
    case 'SUCCEEDED':
      return { got: true, text: t('person.paid', { ...about, reward: reward(p), at: moment(p.updatedAt) }), to };
    case 'FAILED':
      return missing(why ? t('person.refusedWhy', { ...about, why }) : t('person.refused', about));
    case 'CANCELLED':
      return missing(name ? t('person.cancelledBy', { ...about, name }) : t('person.cancelled', about));
    case 'UNKNOWN':
      return open(t('person.unclear', about));
  }
  if ((p.attemptLog ?? []).some((a) => a.class === 'UNKNOWN')) return open(t('person.lost', about));
  if (p.state === 'RETRYING') return open(why ? t('person.retryingWhy', { ...about, why }) : t('person.retrying', about));
  if (p.promotionStatus === 'PAUSED') return open(p.pauseReason ? t('person.pausedWhy', { ...about, why: plain(pauseReason(p.pauseReason)) }) : t('person.paused', about));
  return open(t(p.promotionStatus === 'DRAFT' ? 'person.notStarted' : 'person.waits', about));
}

const refused = (reason: string | undefined) => named('refusal', reason ?? 'NONE');

/** Names gives the name of a template by its ID. */
export type Names = (templateId: string) => string;

export function couponVerdict(i: Schemas['HistoryItem'], names: Names, by: Cancellers): Verdict {
  const to = `/coupons/${i.templateId}` + (i.coupon ? `/${i.coupon.id}` : '');
  const template = names(i.templateId);
  const c = i.coupon;
  if (!c) return { got: false, text: i.status === 'LEFT' ? t('person.left', { template }) : t('person.noCoupon', { template, why: refused(i.reason) }), to };
  const name = canceller(by, couponCancelPath(c));
  const ends = {
    HELD: 'person.held', ISSUED: 'person.usable', USED: 'person.used', EXPIRED: 'person.expired', CANCELLED: c.reason === 'HOLD_EXPIRED' ? 'person.unconfirmed' : 'person.couponCancelled',
  } as const;
  const about = { template, code: plain(c.code ?? c.id) };
  const text = name && c.status === 'CANCELLED' && c.reason !== 'HOLD_EXPIRED' ? t('person.couponCancelledBy', { ...about, name }) : t(ends[c.status], about);
  return { got: c.status !== 'CANCELLED' && c.status !== 'EXPIRED', text, to };
}

/** lineVerdict is about a request that is not settled yet. */
export function lineVerdict(r: Schemas['IssueRequest'], name: string): Verdict {
  const template = plain(name);
  const place = r.queueRank === undefined ? t('person.inDraw', { template }) : t('person.inLine', { template, ticket: number(r.ticket), n: r.queueRank });
  const wait = r.estimatedWaitMillis === undefined ? '' : t('person.wait', { wait: seconds(r.estimatedWaitMillis / 1000) });
  return { got: undefined, text: [place, wait].filter(Boolean).join(' '), to: `/coupons/${r.requestId.slice(0, r.requestId.indexOf(':'))}` };
}

/** answer is one sentence: did they get it, and if not, why? */
export function answer(all: Verdict[]): string {
  const missing = all.filter((v) => v.got === false);
  const open = all.filter((v) => v.got === undefined);
  if (all.length === 1) return all[0]!.text;
  const got = all.length - missing.length - open.length;
  if (missing.length + open.length === 0) return t('person.gotAll', { n: got });
  const others = missing.length + open.length - 1;
  return [t('person.gotSome', { got, n: all.length }), [...missing, ...open][0]!.text, others ? t('person.others', { n: others }) : ''].filter(Boolean).join(' ');
}

/** timeOrder lists everything that happened to a person, latest first. */
export function timeOrder(h: History, names: Names, by: Cancellers): Moment[] {
  const all: Moment[] = [];
  for (const p of h.payouts ?? []) {
    const to = `/promotions/${p.promotionId}/payouts/${p.targetId}`;
    for (const a of p.attemptLog ?? []) {
      all.push({
        at: a.at, to, state: a.class === 'PAID' ? 'SUCCEEDED' : a.class === 'REFUSED' ? 'FAILED' : a.class === 'UNKNOWN' ? 'UNKNOWN' : 'RETRYING',
        title: `${promotion(p)}: ${named('attempt', a.class)}`,
        text: plain([a.code, a.message].filter(Boolean).join(': ')),
      });
    }
    const name = p.state === 'CANCELLED' ? canceller(by, cancelPath(p)) : '';
    all.push({
      at: p.updatedAt, to, state: p.state, title: [`${promotion(p)}: ${named('state', p.state)}`, name].filter(Boolean).join(', '),
      text: [reward(p), p.transactionKey ? t('person.transaction', { key: plain(p.transactionKey) }) : ''].filter(Boolean).join(', '),
    });
  }
  for (const i of h.items ?? []) {
    const to = `/coupons/${i.templateId}`;
    const template = names(i.templateId);
    const c = i.coupon;
    const code = c?.code ? t('person.code', { code: plain(c.code) }) : '';
    const text = c ? [code, t('person.ticket', { ticket: i.ticket ?? '' })].filter(Boolean).join(', ') : i.reason ? refused(i.reason) : '';
    all.push({ at: i.at, to, state: i.status, title: `${template}: ${named('request', i.status)}`, text });
    if (c?.usedAt) all.push({ at: c.usedAt, to, state: 'USED', title: `${template}: ${t('person.couponUsed')}`, text: code });
    if (c?.cancelledAt) {
      const name = canceller(by, couponCancelPath(c));
      all.push({ at: c.cancelledAt, to, state: 'CANCELLED', title: [`${template}: ${t('person.couponEnded')}`, name].filter(Boolean).join(', '), text: c.reason ? named('end', c.reason) : code });
    }
  }
  return all.sort((a, b) => (a.at < b.at ? 1 : a.at > b.at ? -1 : 0));
}

/** refusalText says in which time a template refused everybody. */
export function refusalText(r: Schemas['HistoryRefusal'], names: Names): string {
  const about = { template: names(r.templateId), since: moment(r.since), why: refused(r.reason) };
  return r.until ? t('person.refusedUntil', { ...about, until: moment(r.until) }) : t('person.refusedSince', about);
}
