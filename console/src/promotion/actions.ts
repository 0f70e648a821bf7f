// What may be done to a promotion, and what is asked before it happens.

import { api, approveSeen, read, type Promotion } from '../lib/api';
import { whole } from '../lib/form';
import { money, number, plural } from '../lib/format';
import type { Question } from '../ui/Ask.svelte';

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
    { when: p.counts.failed > 0 && status !== 'CANCELLED' && !p.archivedAt, label: 'Retry failed…', look: '', question: (p) => retry(p, code, seen) },
    { when: !!p.awaitingApproval, label: 'Approve…', look: 'button-main', question: (p) => approve(p, seen) },
    { when: !!p.awaitingApproval, label: 'Reject…', look: 'button-danger', question: (p) => reject(p, seen) },
    { when: status === 'DRAFT', label: 'Start…', look: 'button-main', question: (p) => start(p, seen) },
    { when: status === 'RUNNING', label: 'Pause…', look: '', question: (p) => pause(p, seen) },
    { when: status === 'PAUSED', label: 'Resume…', look: 'button-main', question: (p) => resume(p, seen) },
    { when: !ended, label: 'Rate…', look: '', question: (p) => rate(p, seen) },
    { when: true, label: 'Change…', look: '' },
    { when: !ended && !p.closed && status !== 'DRAFT', label: 'Close…', look: '', question: (p) => close(p, seen) },
    { when: status === 'DRAFT', label: 'Delete…', look: 'button-danger', question: (p) => remove(p, seen) },
    { when: status === 'RUNNING' || status === 'PAUSED', label: 'Cancel…', look: 'button-danger', question: (p) => cancel(p, seen) },
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
  title: `Start ${p.name}`,
  button: `Pay ${number(p.totalCount)}`,
  consequences: [`Pay ${plural(p.totalCount, 'target')}: ${amount(p)} in all.`],
  act: () => reread(api.POST('/v1/promotions/{id}/start', at(p)), seen),
});

const pause = (p: Promotion, seen: Seen): Question => ({
  title: `Pause ${p.name}`,
  button: 'Pause',
  consequences: ['No new call starts. Calls in flight end, and their outcomes count.', `${plural(undecided(p), 'payout')} wait.`],
  act: () => reread(api.POST('/v1/promotions/{id}/pause', at(p)), seen),
});

const resume = (p: Promotion, seen: Seen): Question => ({
  title: `Resume ${p.name}`,
  button: 'Resume',
  consequences: [`Go on with ${plural(undecided(p), 'payout')}.`],
  act: () => reread(api.POST('/v1/promotions/{id}/resume', at(p)), seen),
});

const cancel = (p: Promotion, seen: Seen): Question => ({
  title: `Cancel ${p.name}`,
  button: 'Cancel the promotion',
  danger: true,
  typed: typedName(p),
  consequences: [`${plural(undecided(p), 'payout')} will not be paid. This cannot be undone.`, 'Payouts that may be charged already are looked up at the provider.'],
  act: () => reread(api.POST('/v1/promotions/{id}/cancel', at(p)), seen),
});

const close = (p: Promotion, seen: Seen): Question => ({
  title: `Close ${p.name}`,
  button: 'Close',
  consequences: ['No more targets can be added. It completes when all that it has are decided.'],
  act: () => reread(api.POST('/v1/promotions/{id}/close', at(p)), seen),
});

function approve(p: Promotion, seen: Seen): Question {
  const tag = seen.tag();
  return {
    title: `Approve ${p.name}`,
    button: 'Approve',
    consequences: [`${plural(p.totalCount, 'target')}, ${amount(p)} in all, as they stand. What is added later needs another approval.`],
    act: () => approveSeen(() => api.POST('/v1/promotions/{id}/approve', { params: { path: { id: p.id }, header: tag ? { 'If-Match': tag } : {} } }), seen),
  };
}

const reject = (p: Promotion, seen: Seen): Question => ({
  title: `Reject ${p.name}`,
  button: 'Reject',
  danger: true,
  consequences: ['It is not paid. Its creator sees your reason.'],
  field: { label: 'Reason', required: true },
  act: (reason) => reread(api.POST('/v1/promotions/{id}/reject', { ...at(p), body: { reason } }), seen),
});

const rate = (p: Promotion, seen: Seen): Question => ({
  title: `Change the rate of ${p.name}`,
  button: 'Change',
  consequences: [p.ratePerSecond ? `Now ${number(p.ratePerSecond)} calls per second.` : 'Now without a limit of its own.'],
  field: { label: 'Calls per second', hint: 'Empty: no limit of its own.', required: false, value: p.ratePerSecond ? String(p.ratePerSecond) : '' },
  act: async (text) => {
    const n = whole(text, 'Calls per second') ?? null;
    await reread(api.PATCH('/v1/promotions/{id}', { ...at(p), body: { ratePerSecond: n } }), seen);
    return n === null ? 'The rate has no limit of its own.' : `At most ${number(n)} calls per second.`;
  },
});

const retry = (p: Promotion, code: string | undefined, seen: Seen): Question => ({
  title: code ? `Retry those that failed with ${code}` : 'Retry what failed',
  button: 'Retry',
  consequences: [`${code ? 'Payouts with this code' : plural(p.counts.failed, 'payout')} are tried again. Each is looked up first if the provider may have forgotten its key.`],
  act: async () => {
    const done = await read(api.POST('/v1/promotions/{id}/payouts/retry', { ...at(p), body: { state: 'FAILED', code } }));
    await seen.now();
    return `${plural(done.requeued, 'payout')} will be tried again.`;
  },
});

const remove = (p: Promotion, seen: Seen): Question => ({
  title: `Delete ${p.name}`,
  button: 'Delete',
  danger: true,
  typed: typedName(p),
  consequences: [`The draft and its ${plural(p.totalCount, 'target')} are deleted.`],
  act: async () => {
    await api.DELETE('/v1/promotions/{id}', at(p));
    seen.removed();
  },
});
