// What of somebody's campaigns needs a person.

import type { Promotion } from '../lib/api';
import { money, plain } from '../lib/format';
import { t } from '../lib/language.svelte';
import { pauseReason, pauser } from '../lib/reasons';
import { session } from '../lib/session.svelte';
import { undecided } from '../promotion/actions';
import { endedBefore } from '../promotion/status';

export interface Need {
  promotion: Promotion;
  text: string;
  act: string; // the label of the link
  to: string;
}

function needOf(p: Promotion): Omit<Need, 'promotion'> | undefined {
  const to = '/promotions/' + p.id;
  const look = { act: t('campaigns.look'), to };
  if (p.awaitingApproval) {
    const about = { amount: money(p.amountTotal, p.currency), n: p.totalCount };
    if (session.may('approver') && p.createdBy !== session.me?.name) return { text: t('campaigns.approvalByYou', { ...about, name: plain(p.createdBy) }), act: t('campaigns.decide'), to: '/approvals/' + p.id };
    return undefined; // others decide
  }
  if (endedBefore(p)) return { ...look, text: t('campaign.endedBefore') };
  if (p.status === 'DRAFT' && p.approvedBy && !p.startsAt) return { ...look, text: t('campaigns.approved', { name: plain(p.approvedBy) }) };
  if (p.rejectedBy) return { ...look, text: t('campaigns.rejected', { name: plain(p.rejectedBy), why: plain(p.rejectReason) }) };
  if (p.status === 'PAUSED') {
    const why = pauseReason(p);
    const name = pauser(p);
    return { ...look, text: name ? t('campaigns.pausedBy', { name, n: undecided(p) }) : t('campaigns.pausedByLargesse', { why }) };
  }
  if (p.counts.unknown > 0 && undecided(p) === 0) return { ...look, text: t('campaigns.unclear', { n: p.counts.unknown }) };
  return undefined;
}

/** needsOf lists what needs a person. */
export const needsOf = (promotions: Promotion[]): Need[] => promotions.flatMap((promotion) => {
  const need = needOf(promotion);
  return need ? [{ promotion, ...need }] : [];
});
