// What may be done to a coupon template, and what is asked before it happens.

import { api, approveSeen, read, type Template } from '../lib/api';
import { whole } from '../lib/form';
import { moment } from '../lib/format';
import { t } from '../lib/language.svelte';
import { router } from '../lib/router.svelte';
import type { Question } from '../ui/Ask.svelte';

/** Seen is the template as the page shows it. */
export interface Seen {
  /** tag is the ETag of what is shown, so that an approval is of what was seen. */
  tag: () => string;
  now: () => Promise<unknown>;
}

const at = (c: Template) => ({ params: { path: { id: c.id } } });

/** quantities says how many coupons there are, and how many wait for an approval. */
export const quantities = (c: Template): string =>
  c.awaitingQuantity ? t('quantity.awaits', { n: c.totalQuantity, wanted: c.awaitingQuantity }) : t('quantity.is', { n: c.totalQuantity });

export const close = (c: Template, seen: Seen): Question => ({
  title: t('close.title', { name: c.name }), button: t('template.close'), danger: true, typed: c.name.trim() || c.id,
  consequences: [t('template.closeEffect'), t('template.closeKept')],
  act: async () => {
    await api.POST('/v1/coupon-templates/{id}/close', at(c));
    await seen.now();
    return t('template.closed', { name: c.name });
  },
});

export const setQuantity = (c: Template, seen: Seen): Question => ({
  title: t('quantity.title', { name: c.name }), button: t('rate.button'),
  field: { label: t('quantity.new'), required: true, value: String(c.awaitingQuantity ?? c.totalQuantity), hint: t('quantity.atLeast', { n: c.counters.count + c.counters.waiting }) },
  consequences: [t('quantity.now', { n: c.totalQuantity, given: c.counters.count })],
  act: async (text) => {
    const quantity = whole(text, t('col.quantity')) ?? 0;
    if (quantity < 1) throw new Error(t('quantity.wrong'));
    const changed = await read(api.PATCH('/v1/coupon-templates/{id}', { ...at(c), body: { totalQuantity: quantity } }));
    await seen.now();
    return quantities(changed);
  },
});

export const approve = (c: Template, seen: Seen): Question => {
  const tag = seen.tag();
  return {
    title: t('approve.title', { name: c.name }), button: t('approve.button'),
    consequences: [t('quantity.instead', { n: c.awaitingQuantity ?? 0, now: c.totalQuantity }), c.importedCodes ? t('quantity.imported', { n: c.importedCodes.imported }) : t('quantity.generated')],
    act: () => approveSeen(() => api.POST('/v1/coupon-templates/{id}/approve', { params: { path: { id: c.id }, header: tag ? { 'If-Match': tag } : {} } }), seen),
  };
};

export const reject = (c: Template, seen: Seen): Question => ({
  title: t('reject.title', { name: c.name }), button: t('reject.button'), danger: true, consequences: [t('quantity.rejected', { n: c.totalQuantity, wanted: c.awaitingQuantity ?? 0 })],
  act: async () => {
    await api.POST('/v1/coupon-templates/{id}/reject', at(c));
    await seen.now();
  },
});

export const duplicate = (c: Template): Question => ({
  title: t('drop.duplicateTitle', { name: c.name }), button: t('drop.duplicateButton'), field: { label: t('field.name'), required: true, value: t('drop.copyName', { name: c.name }) },
  consequences: [t('drop.duplicateEffect'), t('drop.duplicateOpens'), ...(c.importedCodes ? [t('drop.duplicateCodes')] : [])],
  act: async (name) => {
    const made = await read(api.POST('/v1/coupon-templates/{id}/duplicate', { ...at(c), body: { name } }));
    router.go('/coupons/' + made.id);
    return made.opensAt ? t('drop.duplicated', { name: made.name, at: moment(made.opensAt) }) : t('template.made', { name: made.name });
  },
});
