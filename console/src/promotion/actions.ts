// What may be done to a promotion, and what is asked before it happens.

import { api, approveSeen, read, type Promotion } from '../lib/api';
import { whole } from '../lib/form';
import { capital, money } from '../lib/format';
import type { Question } from '../ui/Ask.svelte';
import { t } from '../lib/language.svelte';

export interface PromotionAction {
  label: string;
  look: '' | 'button-main' | 'button-danger';
  /** question to ask first; absent for the dialog that changes the settings. */
  question?: (p: Promotion) => Question;
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

/** actionsOf lists what an operator may do now. A code narrows what is retried. */
export function actionsOf(p: Promotion, code: string | undefined, seen: Seen): PromotionAction[] {
  const { status } = p;
  const ended = status === 'CANCELLED' || status === 'COMPLETED';
  const list: (PromotionAction & { when: boolean })[] = [
    // First, so that it moves no other button when the first payout fails.
    { when: p.counts.failed > 0 && status !== 'CANCELLED' && !p.archivedAt, label: t('act.retryFailed'), look: '', question: (p) => retry(p, code, seen) },
    { when: !!p.awaitingApproval, label: t('act.approve'), look: 'button-main', question: (p) => approve(p, seen) },
    { when: !!p.awaitingApproval, label: t('act.reject'), look: 'button-danger', question: (p) => reject(p, seen) },
    { when: status === 'DRAFT', label: t('act.start'), look: 'button-main', question: (p) => start(p, seen) },
    { when: status === 'RUNNING', label: t('act.pause'), look: '', question: (p) => pause(p, seen) },
    { when: status === 'PAUSED', label: t('act.resume'), look: 'button-main', question: (p) => resume(p, seen) },
    { when: !ended, label: t('act.rate'), look: '', question: (p) => rate(p, seen) },
    { when: true, label: t('act.change'), look: '' },
    { when: !ended && !p.closed && status !== 'DRAFT', label: t('act.close'), look: '', question: (p) => close(p, seen) },
    { when: status === 'DRAFT', label: t('act.delete'), look: 'button-danger', question: (p) => remove(p, seen) },
    { when: status === 'RUNNING' || status === 'PAUSED', label: t('act.cancel'), look: 'button-danger', question: (p) => cancel(p, seen) },
  ];
  return list.filter((a) => a.when);
}

const at = (p: Promotion) => ({ params: { path: { id: p.id } } });
const amount = (p: Promotion) => money(p.amountTotal, p.currency);
const typedName = (p: Promotion) => p.name.trim() || p.id;

async function reread(call: Promise<unknown>, seen: Seen): Promise<void> {
  await call;
  await seen.now();
}

export const start = (p: Promotion, seen: Seen): Question => ({
  title: t('start.title', { name: p.name }),
  button: t('start.button', { n: p.totalCount }),
  consequences: [t('start.effect', { n: p.totalCount, amount: amount(p) })],
  act: () => reread(api.POST('/v1/promotions/{id}/start', at(p)), seen),
});

const pause = (p: Promotion, seen: Seen): Question => ({
  title: t('pause.title', { name: p.name }),
  button: t('pause.button'),
  consequences: [t('pause.effect'), t('pause.waiting', { n: undecided(p) })],
  act: () => reread(api.POST('/v1/promotions/{id}/pause', at(p)), seen),
});

const resume = (p: Promotion, seen: Seen): Question => ({
  title: t('resume.title', { name: p.name }),
  button: t('resume.button'),
  consequences: [t('resume.effect', { n: undecided(p) })],
  act: () => reread(api.POST('/v1/promotions/{id}/resume', at(p)), seen),
});

const cancel = (p: Promotion, seen: Seen): Question => ({
  title: t('cancel.title', { name: p.name }),
  button: t('cancel.button'),
  danger: true,
  typed: typedName(p),
  consequences: [t('cancel.effect', { n: undecided(p) }), t('cancel.lookup')],
  act: () => reread(api.POST('/v1/promotions/{id}/cancel', at(p)), seen),
});

const close = (p: Promotion, seen: Seen): Question => ({
  title: t('close.title', { name: p.name }),
  button: t('close.button'),
  consequences: [t('close.effect')],
  act: () => reread(api.POST('/v1/promotions/{id}/close', at(p)), seen),
});

export function approve(p: Promotion, seen: Seen): Question {
  const tag = seen.tag();
  return {
    title: t('approve.title', { name: p.name }),
    button: t('approve.button'),
    consequences: [t('approve.effect', { n: p.totalCount, amount: amount(p) })],
    act: () => approveSeen(() => api.POST('/v1/promotions/{id}/approve', { params: { path: { id: p.id }, header: tag ? { 'If-Match': tag } : {} } }), seen),
  };
}

export const reject = (p: Promotion, seen: Seen): Question => ({
  title: t('reject.title', { name: p.name }),
  button: t('reject.button'),
  danger: true,
  consequences: [t('reject.effect')],
  field: { label: t('col.reason'), required: true },
  act: (reason) => reread(api.POST('/v1/promotions/{id}/reject', { ...at(p), body: { reason } }), seen),
});

const rate = (p: Promotion, seen: Seen): Question => ({
  title: t('rate.title', { name: p.name }),
  button: t('rate.button'),
  consequences: [p.ratePerSecond ? t('rate.now', { n: p.ratePerSecond }) : t('rate.nowNone')],
  field: { label: t('field.rate'), hint: capital(t('hint.rate')), required: false, value: p.ratePerSecond ? String(p.ratePerSecond) : '' },
  act: async (text) => {
    const n = whole(text, t('field.rate')) ?? null;
    await reread(api.PATCH('/v1/promotions/{id}', { ...at(p), body: { ratePerSecond: n } }), seen);
    return n === null ? t('rate.none') : t('rate.set', { n });
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
