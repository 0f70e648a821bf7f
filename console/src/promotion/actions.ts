// What may be done to a promotion, and what is asked before it happens.

import { api, approveSeen, Keys, read, type Payout, type Promotion } from '../lib/api';
import { minor, unitsOf, whole } from '../lib/form';
import { capital, dated, duration, money, plain } from '../lib/format';
import { t } from '../lib/language.svelte';
import { router } from '../lib/router.svelte';
import type { Needed } from '../lib/session.svelte';
import type { Question } from '../ui/Ask.svelte';

export interface PromotionAction {
  label: string;
  look: '' | 'button-main' | 'button-danger';
  role: Needed;
  /** more says that the action is in the menu of those that are rarely wanted. */
  more?: boolean;
  /** question to ask first; absent for the dialog that changes the settings. */
  question?: (p: Promotion) => Question | Promise<Question>;
}

/** Seen is the promotion as the page shows it. */
export interface Seen {
  /** tag is the ETag of what is shown, so that an approval is of what was seen. */
  tag: () => string;
  now: () => Promise<unknown>;
  removed: () => void;
}

/** undecided counts the payouts that are still to be paid. */
export const undecided = (p: Promotion): number => p.counts.ready + p.counts.queued + p.counts.retrying;

/** actionsOf lists what may be done now. A code narrows what is retried. */
export function actionsOf(p: Promotion, code: string | undefined, seen: Seen): PromotionAction[] {
  const { status } = p;
  const ended = status === 'CANCELLED' || status === 'COMPLETED';
  const list: (PromotionAction & { when: boolean })[] = [
    // First, so that it moves no other button when the first payout fails.
    { when: p.counts.failed > 0 && status !== 'CANCELLED' && !p.archivedAt, role: 'operator', label: t('act.retryFailed'), look: '', question: (p) => retry(p, code, seen) },
    { when: !!p.awaitingApproval, role: 'approver', label: t('act.approve'), look: 'button-main', question: async (p) => approve(p, seen, await paidBefore(p.id)) },
    { when: !!p.awaitingApproval, role: 'approver', label: t('act.reject'), look: 'button-danger', question: (p) => reject(p, seen) },
    { when: status === 'DRAFT' && !!p.startsEarly, role: 'campaigner', label: t('act.startNow'), look: '', question: (p) => ask(p, seen) },
    { when: status === 'DRAFT' && p.totalCount > 0 && !!p.awaitingApproval && !p.approvalAsked && !p.startsAt, role: 'campaigner', label: t('act.ask'), look: '', question: (p) => ask(p, seen) },
    { when: status === 'DRAFT' && p.totalCount > 0 && !p.startsEarly, role: 'campaigner', more: !!p.awaitingApproval, label: t('act.start'), look: p.startsAt || p.awaitingApproval ? '' : 'button-main', question: (p) => start(p, seen) },
    { when: status === 'RUNNING', role: 'campaigner', label: t('act.pause'), look: '', question: (p) => pause(p, seen) },
    { when: status === 'PAUSED', role: 'campaigner', label: t('act.resume'), look: 'button-main', question: (p) => resume(p, seen) },
    { when: true, role: 'campaigner', label: t('act.change'), look: '' },
    { when: true, role: 'campaigner', more: true, label: t('campaign.duplicate'), look: '', question: duplicate },
    { when: !ended, role: 'campaigner', more: true, label: t('campaign.test'), look: '', question: test },
    { when: !ended, role: 'campaigner', more: true, label: t('act.rate'), look: '', question: (p) => rate(p, seen) },
    { when: !ended && !p.closed && status !== 'DRAFT', role: 'campaigner', more: true, label: t('act.close'), look: '', question: (p) => close(p, seen) },
    { when: status === 'DRAFT', role: 'campaigner', more: true, label: t('act.delete'), look: 'button-danger', question: (p) => remove(p, seen) },
    { when: status === 'RUNNING' || status === 'PAUSED', role: 'campaigner', more: true, label: t('act.cancel'), look: 'button-danger', question: (p) => cancel(p, seen) },
  ];
  return list.filter((a) => a.when);
}

const at = (p: Promotion) => ({ params: { path: { id: p.id } } });
const amount = (p: Promotion) => money(p.amountTotal, p.currency);
const typedName = (p: Promotion) => p.name.trim() || p.id;

/** reread returns what was done. */
async function reread<T>(call: Promise<unknown>, seen: Seen, done: T): Promise<T> {
  try {
    await call;
  } finally {
    await seen.now(); // what was refused may have been shown too late
  }
  return done;
}

// From this sum on, in minor units, the person who starts a promotion types it.
const typedFrom = 1_000_000;
const rowsShown = 3;

const lookMillis = 3000; // for what only helps to decide

/** paidBefore names the promotions that paid people of this one, with how many; a failure is a line, too. */
export async function paidBefore(id: string): Promise<string[]> {
  try {
    const found = await read(api.GET('/v1/promotions/{id}/already-paid', { params: { path: { id } }, signal: AbortSignal.timeout(lookMillis) }));
    const names = found.promotions.map((x) => t('campaign.paidIn', { n: x.count, name: plain(x.name) || x.promotionId }));
    return found.complete ? names : [...names, t('campaign.paidOfFirst', { n: found.targets })];
  } catch {
    return [t('campaign.paidUnknown')];
  }
}

/** start asks in proportion to the sum: with who is paid what, for how long, and who was paid before. */
export async function start(p: Promotion, seen: Seen): Promise<Question> {
  const [{ items }, before] = await Promise.all([
    read(api.GET('/v1/promotions/{id}/payouts', { params: { path: { id: p.id }, query: { limit: rowsShown } } })) as Promise<{ items: Payout[] }>,
    paidBefore(p.id),
  ]);
  const people = items.map((r) => `${r.userId || r.targetId}: ${money(r.amount, p.currency)}`);
  const facts = [
    { label: t('campaign.howLong'), text: p.ratePerSecond ? t('campaign.about', { duration: duration(p.totalCount / p.ratePerSecond) }) : t('campaign.noRate') },
    { label: t('field.budget'), text: p.maxAmount ? money(p.maxAmount, p.currency) : t('common.none') },
    ...(p.startsAt ? [{ label: t('field.starts'), text: t('campaign.nowInstead', { at: dated(p.startsAt) }) }] : []),
    ...(p.endsAt ? [{ label: t('campaign.ends'), text: dated(p.endsAt) }] : []),
    ...(p.approvedBy ? [{ label: t('approvals.approved'), text: `${p.approvedBy}: ${money(p.approvedAmount, p.currency)}` }] : []),
    ...(p.awaitingApproval ? [{ label: t('campaign.approval'), text: t('campaign.approvalFirst') }] : []),
    ...(people.length ? [{ label: t('campaign.firstPeople'), text: people.join('\n') }] : []),
    ...(before.length ? [{ label: t('campaign.paidBefore'), text: before.join('\n') }] : []),
  ];
  return {
    title: t('start.title', { name: p.name }),
    button: t('start.button', { n: p.totalCount }),
    consequences: [t('start.effect', { n: p.totalCount, amount: amount(p) })],
    facts,
    typed: p.amountTotal >= typedFrom ? amount(p) : undefined,
    sum: true,
    act: () => reread(api.POST('/v1/promotions/{id}/start', at(p)), seen, t('start.done', { name: plain(p.name) })),
  };
}

/** ask asks for an approval, and before that removes a time to start that was approved. It pays nothing. */
function ask(p: Promotion, seen: Seen): Question {
  const tag = seen.tag();
  const early = p.startsEarly && p.startsAt;
  return {
    title: t(early ? 'start.earlyTitle' : 'start.askTitle', { name: p.name }),
    button: t(early ? 'start.earlyButton' : 'start.askButton'),
    consequences: [...(early ? [t('start.early', { name: plain(p.approvedBy), at: dated(early) })] : []), t('start.askEffect', { n: p.totalCount, amount: amount(p) })],
    act: async () => {
      if (early) await api.PATCH('/v1/promotions/{id}', { params: { path: { id: p.id }, header: tag ? { 'If-Match': tag } : {} }, body: { startsAt: null } });
      return reread(api.POST('/v1/promotions/{id}/ask-approval', at(p)), seen, t('start.asked'));
    },
  };
}

const duplicate = (p: Promotion): Question => ({
  title: t('campaign.duplicateTitle', { name: p.name }),
  button: t('campaign.duplicateButton'),
  consequences: [t('campaign.duplicateEffect')],
  field: { label: t('field.name'), required: true, value: t('campaign.copyOf', { name: p.name }).slice(0, 200) },
  act: async (name) => {
    const copy = await read(api.POST('/v1/promotions/{id}/duplicate', { ...at(p), body: { name } }));
    router.go('/promotions/' + copy.id);
    return t('new.made', { name: copy.name });
  },
});

const test = (p: Promotion, keys = new Keys()): Question => ({
  title: t('campaign.testTitle', { name: p.name }),
  button: t('campaign.testButton'),
  consequences: [t('campaign.testEffect')],
  field: { label: t('campaign.testPerson'), hint: t('campaign.testPersonHint'), required: true },
  second: { label: t('col.amount'), hint: `${unitsOf(p.currency)}${p.amount === undefined ? '' : `. ${t('campaign.testAmount', { amount: money(p.amount, p.currency) })}`}`, required: p.amount === undefined },
  act: async (userId, text) => {
    const body = { userId, amount: minor(text, t('col.amount'), p.currency) };
    const paid = await read(api.POST('/v1/promotions/{id}/test-payment', { ...at(p), body, headers: keys.of(body) }));
    router.go('/promotions/' + paid.id);
    return t('campaign.testMade', { name: paid.name });
  },
});

const pause = (p: Promotion, seen: Seen): Question => ({
  title: t('pause.title', { name: p.name }),
  button: t('pause.button'),
  consequences: [t('pause.effect'), t('pause.waiting', { n: undecided(p) })],
  field: { label: t('campaign.why'), hint: t('campaign.whyHint'), required: false },
  act: (reason) => reread(api.POST('/v1/promotions/{id}/pause', { ...at(p), body: reason ? { reason } : {} }), seen, t('pause.done', { name: plain(p.name) })),
});

const resume = (p: Promotion, seen: Seen): Question => ({
  title: t('resume.title', { name: p.name }),
  button: t('resume.button'),
  consequences: [t('resume.effect', { n: undecided(p) })],
  act: () => reread(api.POST('/v1/promotions/{id}/resume', at(p)), seen, t('resume.done', { name: plain(p.name) })),
});

const cancel = (p: Promotion, seen: Seen): Question => ({
  title: t('cancel.title', { name: p.name }),
  button: t('cancel.button'),
  danger: true,
  typed: typedName(p),
  consequences: [t('cancel.effect', { n: undecided(p) }), t('cancel.lookup')],
  act: () => reread(api.POST('/v1/promotions/{id}/cancel', at(p)), seen, t('cancel.done', { name: plain(p.name) })),
});

const close = (p: Promotion, seen: Seen): Question => ({
  title: t('close.title', { name: p.name }),
  button: t('close.button'),
  consequences: [t('close.effect')],
  act: () => reread(api.POST('/v1/promotions/{id}/close', at(p)), seen, t('close.done', { name: plain(p.name) })),
});

export function approve(p: Promotion, seen: Seen, before: string[]): Question {
  const tag = seen.tag();
  const starts = p.status !== 'DRAFT' ? t('approve.continues') : !p.startsAt ? t('approve.byHand') : Date.parse(p.startsAt) > Date.now() ? t('approve.startsAt', { at: dated(p.startsAt) }) : t('approve.startsNow');
  return {
    title: t('approve.title', { name: p.name }),
    button: t('approve.button'),
    consequences: [starts, t('approve.effect', { n: p.totalCount, amount: amount(p) })],
    facts: before.length ? [{ label: t('campaign.paidBefore'), text: before.join('\n') }] : [],
    act: async () => {
      await approveSeen(() => api.POST('/v1/promotions/{id}/approve', { params: { path: { id: p.id }, header: tag ? { 'If-Match': tag } : {} } }), seen);
      return t('approve.done', { name: plain(p.name) });
    },
  };
}

export const reject = (p: Promotion, seen: Seen): Question => ({
  title: t('reject.title', { name: p.name }),
  button: t('reject.button'),
  danger: true,
  consequences: [t('reject.effect')],
  field: { label: t('col.reason'), required: true },
  act: (reason) => reread(api.POST('/v1/promotions/{id}/reject', { ...at(p), body: { reason } }), seen, t('reject.done', { name: plain(p.name) })),
});

const rate = (p: Promotion, seen: Seen): Question => ({
  title: t('rate.title', { name: p.name }),
  button: t('rate.button'),
  consequences: [p.ratePerSecond ? t('rate.now', { n: p.ratePerSecond }) : t('rate.nowNone')],
  field: { label: t('field.rate'), hint: capital(t('hint.rate')), required: false, value: p.ratePerSecond ? String(p.ratePerSecond) : '' },
  act: async (text) => {
    const n = whole(text, t('field.rate')) ?? null;
    return reread(api.PATCH('/v1/promotions/{id}', { ...at(p), body: { ratePerSecond: n } }), seen, n === null ? t('rate.none') : t('rate.set', { n }));
  },
});

const retry = (p: Promotion, code: string | undefined, seen: Seen): Question => ({
  title: code ? t('retry.titleCode', { code }) : t('retry.title'),
  button: t('retry.button'),
  consequences: [code ? t('retry.effectCode') : t('retry.effect', { n: p.counts.failed }), t('retry.lookup')],
  act: async () => {
    const done = await read(api.POST('/v1/promotions/{id}/payouts/retry', { ...at(p), body: { state: 'FAILED', code } }));
    await seen.now();
    return t('retry.done', { n: done.requeued });
  },
});

const remove = (p: Promotion, seen: Seen): Question => ({
  title: t('delete.title', { name: p.name }),
  button: t('delete.button'),
  danger: true,
  typed: typedName(p),
  consequences: [t('delete.effect', { n: p.totalCount })],
  act: async () => {
    await api.DELETE('/v1/promotions/{id}', at(p));
    seen.removed();
  },
});
