// The events that a receiver of webhooks can want.
import type { Schemas } from './api';

export const webhookEvents: Schemas['WebhookEvent'][] = [
  'promotion.started', 'promotion.paused', 'promotion.completed', 'promotion.cancelled', 'promotion.approval_needed', 'balance.breach', 'payout.failed', 'payout.unknown', 'coupon.issued', 'coupon.cancelled', 'coupon.used',
];
