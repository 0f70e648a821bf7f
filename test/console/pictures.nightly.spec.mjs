// Makes the pictures of the README and of the docs, and one of every page.
import { test } from './world.mjs';

for (const scheme of ['light', 'dark']) {
  for (const width of [1440, 1024, 390]) {
    test(`every page, ${scheme}, ${width} pixels wide`, async ({ w }) => {
      const page = await w.page({ key: w.keys.admin, width, scheme });
      for (const view of w.views) {
        await w.open(page, view);
        await w.fits(page, view);
        await w.picture(page, `${view} ${width} ${scheme}`);
      }
      await w.forms(page, async (view, form) => {
        await w.formFits(form, view);
        await w.picture(page, `change ${view} ${width} ${scheme}`, false);
      });
    });
  }
}

test('the picture of the README', async ({ w }) => {
  const page = await w.page({ key: w.keys.admin });
  const demo = await w.demo('--targets', '60000', '--shoppers', '100', '--coupons', '10');
  const read = async () => (await (await fetch(demo.server + '/v1/promotions?status=RUNNING')).json()).items ?? [];
  const [paying] = await w.until('a promotion is half paid', read, ([p]) => p && p.counts.succeeded > 0.5 * p.totalCount);
  await w.open(page, `/#/promotions/${paying.id}`, demo.server);
  await w.picture(page, 'readme promotion', false);
});

test('the picture of a drop', async ({ w }) => {
  const page = await w.page({ key: w.keys.admin });
  const demo = await w.demo('--targets', '200', '--shoppers', '9000', '--coupons', '6000');
  const read = async () => (await (await fetch(demo.server + '/v1/coupon-templates')).json()).items ?? [];
  const [drop] = await w.until('a drop opens', read, (items) => items.length > 0);
  await w.open(page, `/#/coupons/${drop.id}`, demo.server);
  await w.until('most coupons are issued', read, ([t]) => t.counters.issuedTotal > 0.8 * t.counters.totalQuantity);
  await w.picture(page, 'console drop', false);
});
