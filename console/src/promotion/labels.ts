// What the settings of a promotion are called.

import { t } from '../lib/language.svelte';

export const labels = () => ({
  name: t('field.name'), ratePerSecond: t('field.rate'), weight: t('field.weight'), maxAmount: t('field.budget'), maxRetries: t('field.retries'), amount: t('field.amount'),
  voucherCode: t('field.voucher'), currency: t('field.currency'), canaryTargets: t('field.canary'), canaryRate: t('field.canaryRate'), startsAt: t('field.starts'), endsAt: t('campaign.ends'), notes: t('campaign.notes'), metadata: t('field.metadata'),
});
