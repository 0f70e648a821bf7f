// What may be done to coupons, and what is asked before it happens.

import { api, read, type Coupon, type Schemas, type Template } from '../lib/api';
import { number } from '../lib/format';
import { t } from '../lib/language.svelte';
import type { Question } from '../ui/Ask.svelte';

export type Change = 'cancel' | 'use' | 'confirm';

/** change asks before one coupon is changed, and passes the changed one on. */
export function change(c: Coupon, what: Change, changed: (c: Coupon) => void): Question {
  const texts = {
    cancel: ['coupon.cancelTitle', t('coupon.cancel'), t('coupon.cancelEffect')], use: ['coupon.useTitle', t('coupon.use'), t('coupon.useEffect')], confirm: ['coupon.confirmTitle', t('coupon.confirm'), t('coupon.confirmEffect')],
  } as const;
  const [title, button, effect] = texts[what];
  const at = { params: { path: { couponId: c.id } } };
  return {
    title: t(title, { code: c.code ?? c.id }), consequences: [t('coupon.belongs', { user: c.userId }), effect], button, danger: what === 'cancel',
    act: async () => {
      changed(await read(what === 'cancel' ? api.POST('/v1/coupons/{couponId}/cancel', at) : what === 'use' ? api.POST('/v1/coupons/{couponId}/use', at) : api.POST('/v1/coupons/{couponId}/confirm', at)));
    },
  };
}

/** cancelMax is how many coupons one question cancels. */
export const cancelMax = 10_000;
const callMax = 1000; // of the API

/** cancelMany asks before coupons are cancelled. cut tells that there are more of them. A repeat after a failure continues with the rest. */
export function cancelMany(c: Template, ids: string[], cut: boolean, done: () => Promise<void>): Question {
  const n = ids.length;
  return {
    title: t('drop.cancelTitle', { n }), button: t('drop.cancelButton', { n }), danger: true, typed: n > 20 ? number(n) : undefined,
    consequences: [...(cut ? [t('drop.cancelCut', { n: cancelMax })] : []), t('drop.cancelEffect', { n }), t('drop.cancelPlaces', { name: c.name }), t('drop.cancelFinal')],
    act: async () => {
      const sum = { cancelled: 0, alreadyCancelled: 0, used: 0, expired: 0, notFound: 0 };
      try {
        for (let from = 0; from < n; from += callMax) {
          const one: Schemas['CancelledCoupons'] = await read(api.POST('/v1/coupon-templates/{id}/coupons/cancel', { params: { path: { id: c.id } }, body: { ids: ids.slice(from, from + callMax) } }));
          for (const what of ['cancelled', 'alreadyCancelled', 'used', 'expired'] as const) sum[what] += one[what];
          sum.notFound += one.notFound.length;
        }
      } finally {
        await done();
      }
      const kept = [
        sum.alreadyCancelled ? t('drop.already', { n: sum.alreadyCancelled }) : '', sum.used ? t('drop.used', { n: sum.used }) : '',
        sum.expired ? t('drop.expired', { n: sum.expired }) : '', sum.notFound ? t('drop.notFound', { n: sum.notFound }) : '',
      ].filter(Boolean);
      return [t('drop.cancelled', { n: sum.cancelled }), ...kept].join(' ');
    },
  };
}
