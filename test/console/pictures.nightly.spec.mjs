// Makes the pictures of the README and of the docs, and one of every page.
import { test } from './world.mjs';

for (const [scheme, locale] of [['light', 'en-US'], ['dark', 'en-US'], ['light', 'ko-KR']]) {
  for (const width of [1440, 1024, 390]) {
    test(`every page, ${scheme}, ${locale}, ${width} pixels wide`, async ({ w }) => {
      const page = await w.page({ key: w.keys.admin, width, scheme, locale });
      for (const view of w.views) {
        await w.open(page, view);
        await w.fits(page, view);
        await w.picture(page, `${view} ${width} ${scheme} ${locale}`);
      }
      await w.forms(page, async (view, form) => {
        await w.formFits(form, view);
        await w.picture(page, `change ${view} ${width} ${scheme} ${locale}`, false);
      });
    });
  }
}

test('the picture of the README', async ({ w }) => {
  const page = await w.page({ key: w.keys.admin });
  await page.setViewportSize({ width: 1600, height: 1000 }); // the charts stand in one row
  const demo = await w.demo('--targets', '120000', '--shoppers', '100', '--coupons', '10');
  const read = async (path) => (await fetch(demo.server + path)).json();
  const running = async () => (await read('/v1/promotions?status=RUNNING')).items ?? [];
  const [{ id }] = await w.until('a promotion pays', running, ([p]) => p && p.counts.succeeded > 0.1 * p.totalCount);
  const path = `/v1/promotions/${id}`;
  await w.open(page, `/#/promotions/${id}`, demo.server); // from now on, it draws each second
  const act = (what, body) => fetch(demo.server + what, { method: 'POST', headers: { 'Content-Type': 'application/json', 'Largesse-Actor': 'marta' }, body: JSON.stringify(body ?? {}) });
  const paid = (share) => w.until(`${share} of all are paid`, () => read(path), (p) => p.counts.succeeded > share * p.totalCount);
  const passed = (seconds, from = Date.now()) => w.until(`${seconds} s have passed`, () => Date.now() - from, (ms) => ms > seconds * 1000);
  await paid(0.3);
  await act('/demo/break-provider');
  await passed(6);
  await act('/demo/repair-provider');
  await paid(0.55);
  await act(path + '/pause', { reason: 'Is the amount right?' });
  await passed(8);
  await act(path + '/resume');
  await page.getByText('resumed by marta').waitFor();
  await paid(0.85);
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
