// What receivers of events are called, and the events that they can want.
import { plain } from './format';
import { t } from './language.svelte';
import type { Schemas } from './api';

type Event = Schemas['WebhookEvent'];

/** peopleEvents are told in Slack and by e-mail as well. */
export const peopleEvents: Event[] = ['promotion.approval_needed', 'coupon.approval_needed', 'promotion.paused', 'promotion.completed', 'balance.breach', 'coupon.sold_out'];

/** systemEvents are told to other systems only. */
export const systemEvents: Event[] = ['promotion.started', 'promotion.cancelled', 'payout.failed', 'payout.unknown', 'coupon.issued', 'coupon.cancelled', 'coupon.used'];

/** placeOf is where the messages go. */
export const placeOf = (e: Schemas['WebhookEndpoint']): string => plain(e.to?.length ? e.to.join(', ') : e.url) || t('webhook.defaultSlack');

/** receiverOf is a receiver as people call it. */
export const receiverOf = (e: Schemas['WebhookEndpoint']): string => plain(e.description) || placeOf(e);
