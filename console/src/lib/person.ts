// One sentence per reward that answers "why did I not get it?", with what to tell the customer, and everything in
// the order of time.

import type { Coupon, Schemas, Template } from './api';
import { forCustomer, money, number, plain, seconds } from './format';
import { named, t } from './language.svelte';
import { answerOf, codedAnswer, pauseReason, pauser } from './reasons';

export interface Moment {
  at: string;
  title: string;
  text: string;
  state: string; // as Badge knows it
  to?: string; // a view
  times?: number; // it happened since then
  since?: string;
}

export interface Verdict {
  id: string;
  got: boolean | undefined; // undefined: not decided yet
  text: string;
  /** tell is for the customer. */
  tell: string;
  /** title is what the text is about. */
  title: string;
  /** tellWhy is tell with the provider's reason, if the supporter wants to give it. */
  tellWhy?: string;
  /** key is the transaction, which the provider can find. */
  key?: string;
  mayBePaid?: boolean;
  /** then is what may be promised, if it is not paid. */
  then?: string;
  /** everybody tells that it is about all customers, not about this one. */
  everybody?: boolean;
  template?: string; // of a coupon, by its ID
  to: string;
}

type History = Schemas['History'];
type HistoryPayout = Schemas['HistoryPayout'];

const reward = (p: HistoryPayout) => (p.voucherCode ? t('person.voucher', { code: plain(p.voucherCode) }) : money(p.amount, p.currency));
const promotion = (p: HistoryPayout) => plain(p.promotionName) || t('promotion.number', { id: p.promotionId });

/** Cancellers has who cancelled a promotion, by its ID; '' if that is not known. */
export type Cancellers = Map<string, string>;

const canceller = (by: Cancellers, p: HistoryPayout) => plain(by.get(p.promotionId));

const cancelledMax = 20;

/** cancelledPromotions returns the promotions that were cancelled before they paid a person, at most 20. */
export function cancelledPromotions(h: History): string[] {
  return [...new Set((h.payouts ?? []).filter((p) => p.state === 'CANCELLED').map((p) => p.promotionId))].slice(0, cancelledMax);
}

/** because adds to a sentence who did it and why, as far as that is known. */
const because = (text: string, by: string, why: string) => [text, by && t('person.by', { name: by }), why && t('person.why', { why })].filter(Boolean).join(' ');

/** stateAfter is the state that an attempt led to. A person's decision may be overruled by a payment that is found later. */
function stateAfter(a: Schemas['Attempt'], p: HistoryPayout): string {
  if (a.class === 'RESOLVED') return a.at === p.updatedAt ? p.state : 'FAILED';
  return a.class === 'PAID' ? 'SUCCEEDED' : a.class === 'REFUSED' ? 'FAILED' : a.class === 'UNKNOWN' ? 'UNKNOWN' : 'RETRYING';
}

/** decider is the attempt that a payout has its state from; undefined if a lookup found it, or nothing was tried. */
function decider(p: HistoryPayout): Schemas['Attempt'] | undefined {
  return (p.attemptLog ?? []).findLast((a, i, all) => (a.class === 'RESOLVED' ? a.at === p.updatedAt : i === all.length - 1 && stateAfter(a, p) === p.state && (a.code ?? '') === (p.errorCode ?? '')));
}

function payoutVerdict(p: HistoryPayout, by: Cancellers): Verdict {
  const why = answerOf(p.errorCode, p.errorMessage);
  const about = { promotion: promotion(p), reward: reward(p) };
  const unpaid = { promotion: `${about.promotion}, ${about.reward}` };
  const verdict = (got: boolean | undefined, text: string, tell: string, tellWhy?: string): Verdict => ({
    id: `${p.promotionId}/${p.targetId}`, title: about.promotion, got, text, tell, tellWhy,
    then: t(p.mayBePaid ? 'support.notByHand' : got ? 'support.paid' : got === undefined ? 'support.promiseNothing' : p.state === 'FAILED' ? 'support.unlessRetried' : 'support.never'), key: plain(p.transactionKey) || undefined, mayBePaid: p.mayBePaid, to: `/promotions/${p.promotionId}/payouts/${p.targetId}`,
  });
  switch (p.state) {
    case 'SUCCEEDED': {
      const paid = { ...about, at: forCustomer(p.updatedAt) };
      return verdict(true, t('person.paid', paid), p.transactionKey ? t('tell.paidKey', { ...paid, key: plain(p.transactionKey) }) : t('tell.paid', paid));
    }
    case 'FAILED': {
      if (p.mayBePaid) return verdict(undefined, t('person.unclear', unpaid), t('tell.unclear', about)); // until a second lookup
      const last = decider(p);
      if (last?.class === 'RESOLVED') return verdict(false, because(t('person.failed', unpaid), plain(last.code), plain(last.message)), t('tell.refused', about));
      if (last?.class !== 'REFUSED') return verdict(false, because(t('person.failed', unpaid), '', why), t('tell.refused', about));
      return verdict(false, because(t('person.refused', unpaid), '', why), t('tell.refused', about), p.errorMessage && t('tell.refusedWhy', { ...about, why: plain(p.errorMessage) }));
    }
    case 'CANCELLED':
      return verdict(false, because(t('person.cancelled', unpaid), canceller(by, p), ''), p.mayBePaid ? t('tell.unclear', about) : t('tell.cancelled', about));
    case 'UNKNOWN':
      return verdict(undefined, t('person.unclear', unpaid), t('tell.unclear', about));
  }
  const lost = (p.attemptLog ?? []).some((a) => a.class === 'UNKNOWN') || (p.state === 'READY' && p.mayBePaid);
  if (p.promotionStatus === 'PAUSED') return verdict(undefined, because(t('person.paused', unpaid), pauser(p), pauseReason(p)), [t('tell.paused', about), p.mayBePaid && t('tell.mayBeThere')].filter(Boolean).join(' '));
  if (lost) return verdict(undefined, t('person.lost', unpaid), t('tell.unclear', about));
  if (p.state === 'RETRYING') return verdict(undefined, because(t('person.retrying', unpaid), '', why), t('tell.unclear', about));
  return p.promotionStatus === 'DRAFT' ? verdict(undefined, t('person.notStarted', unpaid), t('tell.notStarted', about)) : verdict(undefined, t('person.waits', unpaid), t('tell.waits', about));
}

const refused = (reason: string | undefined) => named('refusal', reason ?? 'NONE');
const sorry = (reason: string | undefined) => named('sorry', reason ?? 'NONE');

/** Templates has the templates that are known, by their ID. */
export type Templates = ReadonlyMap<string, Template>;

export const templateName = (all: Templates, id: string) => plain(all.get(id)?.name || t('template.number', { id }));

const hasEnded = (c: Coupon | undefined) => c?.status === 'CANCELLED' || c?.status === 'EXPIRED';

/** endedTemplates returns the templates of coupons that a person can no longer use. */
export const endedTemplates = (h: History): string[] => [...new Set(h.items.filter((i) => hasEnded(i.coupon)).map((i) => i.templateId))];

/** mayAgain tells by the settings of a template whether somebody with these coupons of it may request another. */
function mayAgain(of: Template, coupons: Coupon[]): string {
  const counted = coupons.filter((c) => c.status !== 'CANCELLED').length;
  if (of.state === 'CLOSED') return 'CLOSED';
  if (counted >= of.perUserLimit) return 'LIMIT';
  if (!of.reissueAfterCancel && coupons.length >= of.perUserLimit) return 'CANCELLED';
  return of.state;
}

/** again is what a supporter may say about another coupon, and what is certain enough for the customer. */
function again(of: Template, coupons: Coupon[]): { then: string; tell: string } {
  const may = mayAgain(of, coupons);
  const ended = coupons.filter((c) => c.reason === 'HOLD_EXPIRED').map((c) => Date.parse(c.cancelledAt ?? c.heldUntil ?? ''));
  const until = Math.max(0, ...ended) + (of.holdSeconds ?? 0) * 1000; // others come first, unless coupon.lapsed-holds allows more
  const later = may === 'OPEN' && ended.length > 0 && until > Date.now();
  return {
    then: [named('again', may), later && t('person.othersFirst', { until: forCustomer(new Date(until).toISOString()) })].filter(Boolean).join(' '),
    // Whether cancelled coupons count was decided by the setting of then.
    tell: may === 'OPEN' && !later ? t('tell.tryAgain') : may === 'CLOSED' || may === 'LIMIT' ? t('tell.notAgain') : '',
  };
}

/** codeOf is the code of a coupon, or how it ends if that is all that the reader may see. */
const codeOf = (c: Coupon) => (c.code && c.code.length > 1 && c.code.startsWith('…') ? t('person.codeEnds', { end: plain(c.code.slice(1)) }) : plain(c.code ?? c.id));

function couponVerdict(i: Schemas['HistoryItem'], templates: Templates, others: Coupon[], waits: boolean): Verdict {
  const template = templateName(templates, i.templateId);
  const c = i.coupon;
  const of = templates.get(i.templateId);
  const more = of && hasEnded(c) && !waits ? again(of, others) : undefined;
  const verdict = (got: boolean, text: string, tell: string): Verdict => ({
    id: c?.id ?? i.requestId, title: template, got, text, tell: [tell, more?.tell].filter(Boolean).join(' '), then: c && !got ? [t('support.couponGone'), more?.then].filter(Boolean).join(' ') : undefined, template: i.templateId, to: `/coupons/${i.templateId}` + (c ? `/${c.id}` : ''),
  });
  if (!c) {
    const about = { template, why: sorry(i.status === 'LEFT' ? 'LEFT' : i.reason) };
    return verdict(false, i.status === 'LEFT' ? t('person.left', { template }) : t('person.noCoupon', { template, why: refused(i.reason) }), t('tell.noCoupon', about));
  }
  const about = { template, code: codeOf(c) };
  switch (c.status) {
    case 'HELD':
      return verdict(true, t('person.held', about), c.heldUntil ? t('tell.heldUntil', { ...about, until: forCustomer(c.heldUntil) }) : t('tell.held', about));
    case 'ISSUED':
      return verdict(true, t('person.usable', about), c.expiresAt ? t('tell.usableUntil', { ...about, until: forCustomer(c.expiresAt) }) : t('tell.usable', about));
    case 'USED':
      return verdict(true, t('person.used', { ...about, at: forCustomer(c.usedAt ?? i.at) }), t('tell.used', { ...about, at: forCustomer(c.usedAt ?? i.at) }));
    case 'EXPIRED':
      return verdict(false, t('person.expired', { ...about, at: forCustomer(c.expiresAt ?? i.at) }), t('tell.expired', { ...about, at: forCustomer(c.expiresAt ?? i.at) }));
  }
  if (c.reason === 'HOLD_EXPIRED') return verdict(false, t('person.unconfirmed', about), t('tell.unconfirmed', about));
  const cancelled = { ...about, at: forCustomer(c.cancelledAt ?? i.at) };
  return verdict(false, because(t('person.couponCancelled', cancelled), plain(c.cancelledBy), ''), t('tell.couponCancelled', cancelled));
}

const templateOf = (r: Schemas['IssueRequest']) => r.requestId.slice(0, r.requestId.indexOf(':'));

/** lineVerdict is about a request that is not settled yet. */
function lineVerdict(r: Schemas['IssueRequest'], templates: Templates): Verdict {
  const id = templateOf(r);
  const template = templateName(templates, id);
  const place = { template, ticket: number(r.ticket), n: r.queueRank ?? 0 };
  const wait = r.estimatedWaitMillis === undefined ? '' : t('person.wait', { wait: seconds(r.estimatedWaitMillis / 1000) });
  const drawn = r.queueRank === undefined;
  return {
    id: r.requestId, title: template, template: id, got: undefined, text: [drawn ? t('person.inDraw', place) : t('person.inLine', place), wait].filter(Boolean).join(' '),
    tell: [drawn ? t('tell.inDraw', place) : t('tell.inLine', place), wait].filter(Boolean).join(' '), to: `/coupons/${id}`,
  };
}

/** refusalVerdict says in which time a template refused everybody. */
function refusalVerdict(r: Schemas['HistoryRefusal'], templates: Templates): Verdict {
  const about = { template: templateName(templates, r.templateId), since: forCustomer(r.since), why: refused(r.reason) };
  const open = templates.get(r.templateId)?.state === 'OPEN';
  const until = r.until && forCustomer(r.until);
  const sorryFor = { ...about, why: sorry(r.reason) };
  return {
    id: `${r.templateId}/${r.since}`, title: about.template, got: undefined, text: !until ? t('person.refusedSince', about) : until === about.since ? t('person.refusedNear', about) : t('person.refusedUntil', { ...about, until }),
    tell: until ? [until === about.since ? t('tell.refusedThen', sorryFor) : t('tell.refusedBetween', { ...sorryFor, until }), open && t('tell.tryAgain')].filter(Boolean).join(' ') : t('tell.refusedSince', sorryFor),
    everybody: true, template: r.templateId, then: t('person.everybody'), to: `/coupons/${r.templateId}`,
  };
}

const urgency = (v: Verdict) => (v.mayBePaid ? 0 : v.got === false ? 1 : v.got === undefined ? 2 : 3);

/** verdicts are about everything that a person may ask for, in the language, what is missing first. */
export function verdicts(h: History, waiting: Schemas['IssueRequest'][], templates: Templates, by: Cancellers): Verdict[] {
  const couponsOf = (id: string) => h.items.flatMap((i) => (i.templateId === id && i.coupon ? [i.coupon] : []));
  const all = [
    ...waiting.map((r) => lineVerdict(r, templates)), ...(h.payouts ?? []).map((p) => payoutVerdict(p, by)),
    ...h.items.map((i) => couponVerdict(i, templates, couponsOf(i.templateId), waiting.some((r) => templateOf(r) === i.templateId))),
  ].sort((a, b) => urgency(a) - urgency(b));
  const got = new Set((h.items ?? []).filter((i) => i.coupon).map((i) => i.templateId));
  return [...all, ...(h.refusals ?? []).filter((r) => !got.has(r.templateId)).map((r) => refusalVerdict(r, templates))];
}

/** answer is one sentence: how much of it did they get? */
export function answer(all: Verdict[]): string {
  const got = all.filter((v) => v.got).length;
  return got === all.length ? t('person.gotAll', { n: got }) : t('person.gotSome', { open: all.length - got, n: all.length });
}

/** paidTwice names promotions that paid a person more than once. */
export function paidTwice(h: History): string[] {
  const times = new Map<string, HistoryPayout[]>();
  for (const p of h.payouts ?? []) if (p.state === 'SUCCEEDED') times.set(p.promotionId, [...(times.get(p.promotionId) ?? []), p]);
  return [...times.values()].filter((paid) => paid.length > 1).map((paid) => t('person.paidTwice', { promotion: promotion(paid[0]!), n: paid.length }));
}

/** foundPaid tells whether a lookup found the payment of a payout that was tried before. */
const foundPaid = (p: HistoryPayout) => p.state === 'SUCCEEDED' && !!p.attemptLog?.length && !p.attemptLog.some((a) => a.class === 'PAID' || a.class === 'RESOLVED');

/** timeOrder lists everything that happened to a person, latest first. */
export function timeOrder(h: History, templates: Templates, by: Cancellers): Moment[] {
  const all: Moment[] = [];
  for (const p of h.payouts ?? []) {
    const to = `/promotions/${p.promotionId}/payouts/${p.targetId}`;
    for (const a of p.attemptLog ?? []) all.push({ at: a.at, to, state: stateAfter(a, p), title: `${promotion(p)}: ${named('attempt', a.class)}`, text: codedAnswer(a.code, a.message) });
    if (p.state !== 'SUCCEEDED' && decider(p)) continue; // one line for one event; that of a payment has its transaction
    const name = p.state === 'CANCELLED' ? canceller(by, p) : '';
    all.push({
      at: p.updatedAt, to, state: p.state, title: [`${promotion(p)}: ${named('state', p.state)}`, name].filter(Boolean).join(', '),
      text: [[reward(p), p.transactionKey && t('person.transaction', { key: plain(p.transactionKey) })].filter(Boolean).join(', '), foundPaid(p) && t('payout.foundPaid')].filter(Boolean).join('. '),
    });
  }
  for (const i of h.items ?? []) {
    const to = `/coupons/${i.templateId}` + (i.coupon ? `/${i.coupon.id}` : '');
    const template = templateName(templates, i.templateId);
    const c = i.coupon;
    const code = c?.code ? t('person.code', { code: codeOf(c) }) : '';
    const text = c ? [code, t('person.ticket', { ticket: i.ticket ?? '' })].filter(Boolean).join(', ') : i.reason ? refused(i.reason) : '';
    all.push({ at: i.at, to, state: i.status, title: `${template}: ${named('request', i.status)}`, text });
    if (c?.usedAt) all.push({ at: c.usedAt, to, state: 'USED', title: `${template}: ${t('person.couponUsed')}`, text: code });
    if (c?.cancelledAt) {
      const name = plain(c.cancelledBy);
      all.push({ at: c.cancelledAt, to, state: 'CANCELLED', title: [`${template}: ${t('person.couponEnded')}`, name].filter(Boolean).join(', '), text: c.reason ? named('end', c.reason) : code });
    }
  }
  return repeated(all.sort((a, b) => (a.at < b.at ? 1 : a.at > b.at ? -1 : 0)));
}

/** repeated keeps the latest of moments that say the same, one after the other. */
function repeated(all: Moment[]): Moment[] {
  const kept: Moment[] = [];
  for (const m of all) {
    const last = kept.at(-1);
    if (last && last.to === m.to && last.title === m.title && last.text === m.text) Object.assign(last, { times: (last.times ?? 1) + 1, since: m.at });
    else kept.push(m);
  }
  return kept;
}
