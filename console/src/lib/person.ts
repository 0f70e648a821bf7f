// One sentence per reward that answers "why did I not get it?", and everything in the
// order of time.

import type { Schemas } from './api';
import { money, moment, number, plain, plural, seconds, words } from './format';

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

const reward = (p: HistoryPayout) => (p.voucherCode ? `voucher ${plain(p.voucherCode)}` : money(p.amount, p.currency));
const promotion = (p: HistoryPayout) => plain(p.promotionName) || `promotion ${p.promotionId}`;

/** Cancellers has who cancelled something, by the path of the call; '' if that is not known. */
export type Cancellers = Map<string, string>;

const cancelPath = (p: HistoryPayout) => `/v1/promotions/${p.promotionId}/cancel`;
const couponCancelPath = (c: { id: string }) => `/v1/coupons/${c.id}/cancel`;
const byName = (by: Cancellers, path: string) => by.get(path) ? ` by ${plain(by.get(path))}` : '';

/** lastCancel returns the path of the call that cancelled something of a person last; '' if nothing was cancelled. */
export function lastCancel(h: History): string {
  const payouts = (h.payouts ?? []).filter((p) => p.state === 'CANCELLED').map((p) => ({ at: p.updatedAt, path: cancelPath(p) }));
  const coupons = (h.items ?? []).flatMap((i) => i.coupon?.status === 'CANCELLED' && i.coupon.reason !== 'HOLD_EXPIRED' ? [{ at: i.coupon.cancelledAt ?? i.at, path: couponCancelPath(i.coupon) }] : []);
  return [...payouts, ...coupons].reduce((last, c) => (c.at > last.at ? c : last), { at: '', path: '' }).path;
}

export function payoutVerdict(p: HistoryPayout, by: Cancellers): Verdict {
  const to = `/promotions/${p.promotionId}/payouts/${p.targetId}`;
  const why = plain(p.errorMessage || (p.errorCode && words(p.errorCode)));
  switch (p.state) {
    case 'SUCCEEDED':
      return { got: true, text: `${promotion(p)}: paid ${reward(p)} at ${moment(p.updatedAt)}.`, to };
    case 'FAILED':
      return { got: false, text: `${promotion(p)}: not paid, because the provider refused it${why ? `: ${why}` : ''}.`, to };
    case 'CANCELLED':
      return { got: false, text: `${promotion(p)}: not paid, because the promotion was cancelled${byName(by, cancelPath(p))} before.`, to };
    case 'UNKNOWN':
      return { got: undefined, text: `${promotion(p)}: the provider has not said whether it paid. It may already be paid: do not pay by hand. It is looked up, and not charged again before that is known.`, to };
  }
  if ((p.attemptLog ?? []).some((a) => a.class === 'UNKNOWN')) {
    return { got: undefined, text: `${promotion(p)}: a response of the provider was lost, so it may already be paid: do not pay by hand. It is tried again, and the provider pays it once.`, to };
  }
  switch (p.state) {
    case 'RETRYING':
      return { got: undefined, text: `${promotion(p)}: not paid yet. The provider failed${why ? ` (${why})` : ''}, and it is tried again.`, to };
  }
  if (p.promotionStatus === 'PAUSED') return { got: undefined, text: `${promotion(p)}: not paid yet, because the promotion is paused${p.pauseReason ? `: ${plain(p.pauseReason)}` : ''}.`, to };
  if (p.promotionStatus === 'DRAFT') return { got: undefined, text: `${promotion(p)}: not paid yet, because the promotion has not started.`, to };
  return { got: undefined, text: `${promotion(p)}: not paid yet, it waits for its turn.`, to };
}

const refusals: Record<string, string> = {
  SOLD_OUT: 'all coupons were gone', NOT_OPEN: 'it was not open yet', CLOSED: 'it was closed', HOLD_LAPSED: 'the user had let a coupon go by without confirming it', USER_LIMIT: 'the user already had the most that one user may have',
  NOT_DRAWN: 'the draw chose others',
};
const refused = (reason: string | undefined) => refusals[reason ?? ''] ?? words(reason ?? 'no reason is recorded');

/** Names gives the name of a template by its ID. */
export type Names = (templateId: string) => string;

export function couponVerdict(i: Schemas['HistoryItem'], names: Names, by: Cancellers): Verdict {
  const to = `/coupons/${i.templateId}` + (i.coupon ? `/${i.coupon.id}` : '');
  const template = names(i.templateId);
  if (i.coupon) {
    const c = i.coupon;
    const ends: Record<string, string> = {
      HELD: 'it is held for them and ends unless they confirm', ISSUED: 'it can be used', USED: 'it is used',
      EXPIRED: 'it has expired since', CANCELLED: c.reason === 'HOLD_EXPIRED' ? 'it ended because nobody confirmed it in time' : `it was cancelled${byName(by, couponCancelPath(c))} since`,
    };
    return { got: c.status !== 'CANCELLED' && c.status !== 'EXPIRED', text: `${template}: got coupon ${plain(c.code ?? c.id)}, and ${ends[c.status] ?? words(c.status)}.`, to };
  }
  if (i.status === 'LEFT') return { got: false, text: `${template}: no coupon, because the user left the line.`, to };
  return { got: false, text: `${template}: no coupon, because ${refused(i.reason)}.`, to };
}

/** lineVerdict is about a request that is not settled yet. */
export function lineVerdict(r: Schemas['IssueRequest'], name: string): Verdict {
  const wait = r.estimatedWaitMillis === undefined ? '' : `, for about ${seconds(r.estimatedWaitMillis / 1000)} more`;
  const text = r.queueRank === undefined ? `${plain(name)}: takes part in the draw${wait}.` : `${plain(name)}: waits in line with ticket ${number(r.ticket)}; ${plural(r.queueRank, 'request')} ${r.queueRank === 1 ? 'is' : 'are'} before it${wait}.`;
  return { got: undefined, text, to: `/coupons/${r.requestId.slice(0, r.requestId.indexOf(':'))}` };
}

/** answer is one sentence: did they get it, and if not, why? */
export function answer(all: Verdict[]): string {
  const missing = all.filter((v) => v.got === false);
  const open = all.filter((v) => v.got === undefined);
  if (all.length === 1) return all[0]!.text;
  const got = all.length - missing.length - open.length;
  if (missing.length + open.length === 0) return `They got everything: ${plural(got, 'reward')}.`;
  const why = [...missing, ...open][0]!.text;
  const others = missing.length + open.length - 1;
  return `They got ${number(got)} of ${plural(all.length, 'reward')}. ${why}${others ? ` ${plural(others, 'other')} below.` : ''}`;
}

// What an attempt says that is not a response of the provider, or not a clear one.
const attempts: Record<string, string> = { RESOLVED: 'settled by a person', UNKNOWN: 'the provider did not say whether it paid', UNSENT: 'the call was not sent' };

/** timeOrder lists everything that happened to a person, latest first. */
export function timeOrder(h: History, names: Names, by: Cancellers): Moment[] {
  const all: Moment[] = [];
  for (const p of h.payouts ?? []) {
    const to = `/promotions/${p.promotionId}/payouts/${p.targetId}`;
    for (const a of p.attemptLog ?? []) {
      all.push({
        at: a.at, to, state: a.class === 'PAID' ? 'SUCCEEDED' : a.class === 'REFUSED' ? 'FAILED' : a.class === 'UNKNOWN' ? 'UNKNOWN' : 'RETRYING',
        title: `${promotion(p)}: ${attempts[a.class] ?? `the provider answered ${words(a.class)}`}`,
        text: plain([a.code, a.message].filter(Boolean).join(': ')),
      });
    }
    all.push({ at: p.updatedAt, to, state: p.state, title: `${promotion(p)}: ${words(p.state)}${p.state === 'CANCELLED' ? byName(by, cancelPath(p)) : ''}`, text: reward(p) + (p.transactionKey ? `, transaction ${plain(p.transactionKey)}` : '') });
  }
  for (const i of h.items ?? []) {
    const to = `/coupons/${i.templateId}`;
    const template = names(i.templateId);
    all.push({ at: i.at, to, state: i.status, title: `${template}: ${i.status === 'ISSUED' ? 'coupon issued' : i.status === 'LEFT' ? 'left the line' : 'request rejected'}`, text: i.coupon ? `${i.coupon.code ? `code ${plain(i.coupon.code)}, ` : ''}ticket ${i.ticket}` : i.reason ? words(i.reason) : '' });
    if (i.coupon?.usedAt) all.push({ at: i.coupon.usedAt, to, state: 'USED', title: `${template}: coupon used`, text: i.coupon.code ? `code ${plain(i.coupon.code)}` : '' });
    if (i.coupon?.cancelledAt) all.push({ at: i.coupon.cancelledAt, to, state: 'CANCELLED', title: `${template}: coupon cancelled${byName(by, couponCancelPath(i.coupon))}`, text: i.coupon.reason ? words(i.coupon.reason) : i.coupon.code ? `code ${plain(i.coupon.code)}` : '' });
  }
  return all.sort((a, b) => (a.at < b.at ? 1 : a.at > b.at ? -1 : 0));
}

/** refusalText says in which time a template refused everybody. */
export function refusalText(r: Schemas['HistoryRefusal'], names: Names): string {
  return `${names(r.templateId)} refused every request from ${moment(r.since)} ${r.until ? `to ${moment(r.until)}` : 'until now'}: ${refused(r.reason)}.`;
}
