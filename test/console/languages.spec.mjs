// Reads the pages in another language than the one of the other tests.
import { button, expect, heading, hostile, test } from './world.mjs';

/** inKorean is the address of a view in Korean. */
const inKorean = (view) => (view.includes('#') ? view.replace('#', '?lang=ko#') : view.startsWith('/drop') ? `${view}&lang=ko` : `${view}?lang=ko`);

test('every page in Korean is accessible, and fits a phone', async ({ w }) => {
  const page = await w.page({ key: w.keys.admin, width: 390 });
  for (const view of w.views.map(inKorean)) {
    await w.open(page, view);
    await expect(page.locator('html')).toHaveAttribute('lang', 'ko');
    await w.accessible(page, view);
    await w.fits(page, view);
    await w.readable(page, view);
  }
});

test('the language of the browser, and another one by choice', async ({ w }) => {
  const page = await w.page({ key: w.keys.operator, locale: 'ko-KR' });
  await w.open(page, '/');
  await heading(page, '오늘의 운영 현황');
  await page.getByLabel('언어').selectOption('en');
  await heading(page, 'Operations today');
  await expect(page.locator('html')).toHaveAttribute('lang', 'en');
  await page.reload();
  await heading(page, 'Operations today');
  await w.open(page, '/?lang=ko#/promotions');
  await heading(page, '프로모션');
  await page.getByLabel('언어').selectOption('en');
  await heading(page, 'Promotions');
  await page.reload();
  await heading(page, 'Promotions');
});

test('what the server refuses is said in the language of the page', async ({ w }) => {
  const page = await w.page({ key: w.keys.viewer, locale: 'ko-KR' });
  await w.open(page, '/#/promotions/999');
  await expect(page.getByRole('alert').getByText('이 ID의 프로모션이 없습니다.').first()).toBeVisible();
});

test('the page of a customer looks like the shop', async ({ w }) => {
  const server = await w.instance('http://127.0.0.1:1', '--console-languages', 'ko,en', '--shop-name', hostile, '--shop-accent-color', '#7a0019', '--shop-footer', 'Acme 주식회사');
  const made = await fetch(server + '/v1/coupon-templates', { method: 'POST', headers: { 'Content-Type': 'application/json' }, body: JSON.stringify({ name: 'Friday', totalQuantity: 5 }) });
  const { id } = await made.json();
  const page = await w.page({ locale: 'de-DE', scheme: 'dark' });
  await w.open(page, `/drop/${id}?user=u1`, server);
  await expect(page.getByText(hostile, { exact: true })).toBeVisible();
  await expect(page.getByText('Acme 주식회사')).toBeVisible();
  await expect(button(page, '쿠폰 받기')).toHaveCSS('background-color', 'rgb(122, 0, 25)');
  await w.accessible(page, 'the page of a customer');
  await button(page, '쿠폰 받기').click();
  await expect(page.getByText('쿠폰을 받으셨습니다')).toBeVisible();
  await w.accessible(page, 'a coupon of a customer');
});
