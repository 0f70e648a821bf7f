// What a marketer does with a drop: create it from a plain form, look for its coupons, cancel some, and report.
import { readFileSync } from 'node:fs';
import { badge, button, confirm, dialog, expect, test } from './world.mjs';

/** issue gives a coupon of a drop to each of n users. */
async function issue(w, id, n) {
  const answers = await Promise.all(Array.from({ length: n }, (_, i) => w.call('POST', `/v1/coupons/${id}/issue`, { userId: `c-${i}` })));
  expect(answers.map((a) => a.status).filter((s) => s >= 300)).toEqual([]);
  await w.until('all are issued', () => w.api('GET', `/v1/coupon-templates/${id}`), (t) => t.counters.issuedTotal === n && t.counters.waiting === 0);
}

test('coupons are found, downloaded and cancelled together', async ({ w }) => {
  const { id } = await w.api('POST', '/v1/coupon-templates', { name: w.unique('Listed'), totalQuantity: 100 });
  await issue(w, id, 60);
  const { items } = await w.api('GET', `/v1/coupon-templates/${id}/coupons?userId=c-7`);
  await w.api('POST', `/v1/coupons/${items[0].id}/use`);
  const page = await w.page({ key: w.keys.operator });
  await w.open(page, `/#/coupons/${id}`);
  const list = page.getByRole('region', { name: 'Coupons of the drop' });
  await expect(list.getByText('50 shown'), 'of 60, so it is not all').toBeVisible();
  await expect(list.getByRole('row').nth(1).getByRole('link', { name: '60', exact: true }), 'the newest is the first').toBeVisible();

  const search = list.getByLabel('Customer number or code');
  await search.fill('c-7');
  await expect(list.getByText('1 in all')).toBeVisible();
  await expect(list.getByRole('cell', { name: 'Used', exact: true })).toBeVisible();
  await search.fill(items[0].code);
  await expect(page).toHaveURL(new RegExp(`q=${items[0].code}`));
  await expect(list.getByRole('link', { name: 'c-7', exact: true }), 'found by its code').toBeVisible();
  await list.getByLabel('Status').selectOption('CANCELLED');
  await expect(list.getByText('No coupon matches')).toBeVisible();
  await button(list, 'Clear').click();

  // Two that somebody selects.
  for (const ticket of [60, 59]) await list.getByLabel(`Select the coupon with ticket ${ticket}`).check();
  await button(list, 'Cancel 2 selected…').click();
  await expect(dialog(page).getByText('2 people can no longer use a coupon that they have.')).toBeVisible();
  await confirm(page, 'Cancel 2 coupons');
  await expect(page.getByRole('status').getByText('2 coupons are cancelled.')).toBeVisible();
  await expect(list.getByRole('row').nth(1).getByText('Cancelled')).toBeVisible();
  await expect(list.getByLabel('Select the coupon with ticket 60')).toBeDisabled();

  // All that a filter finds, however many are shown.
  await list.getByLabel('Status').selectOption('ISSUED');
  await expect(page).toHaveURL(/status=ISSUED/);
  const [file] = await Promise.all([page.waitForEvent('download'), button(list, 'Download CSV').click()]);
  expect(readFileSync(await file.path(), 'utf8').trim().split(/\r?\n/)).toHaveLength(58);
  await button(list, 'Cancel all that were found…').click();
  await w.accessible(page, 'cancelling many coupons');
  await confirm(page, 'Cancel 57 coupons', { 'To confirm, type 57': '57' });
  await expect(page.getByRole('status').getByText('57 coupons are cancelled.')).toBeVisible();
  const { counters } = await w.api('GET', `/v1/coupon-templates/${id}`);
  expect([counters.count, counters.issuedTotal]).toEqual([1, 60]);

  const viewer = await w.page({ key: w.keys.viewer });
  await w.open(viewer, `/#/coupons/${id}`);
  await expect(viewer.getByRole('checkbox', { name: /Select/ })).toHaveCount(0);
});

test('a drop from the plain form, with codes from a file, duplicated', async ({ w }) => {
  const page = await w.page({ key: w.keys.operator });
  await w.open(page, '/#/coupons/new');
  const name = w.unique('Plain');
  await page.getByLabel('Name', { exact: true }).fill(name);
  await page.getByLabel('How many coupons').fill('2');
  await page.getByLabel('Notes').fill('for the opening of the shop');
  await page.getByLabel('Codes', { exact: true }).selectOption({ label: 'My own, from a file' });
  await button(page, 'Create with 2 coupons').click();
  await expect(page, 'without a time to open, people would get other codes').toHaveURL(/coupons\/new/);
  await page.getByLabel('Opens').fill('2099-01-01T10:00:00');
  await w.accessible(page, 'a new drop');
  await button(page, 'Create with 2 coupons').click();
  await badge(page, 'Not open yet');
  await expect(page.getByText(/^Opens in [\d,]+ d/)).toBeVisible();
  await expect(page.getByText('for the opening of the shop')).toBeVisible();
  await page.getByText('Import codes', { exact: true }).click();
  const codes = (text) => page.getByLabel('File with one code per line').setInputFiles({ name: 'codes.csv', mimeType: 'text/csv', buffer: Buffer.from(text) });
  await codes('codes\nX-1\n2.19E+26\n');
  await expect(page.getByRole('status').getByText('2.19E+26'), 'the last code, which a spreadsheet has broken').toBeVisible();
  await w.accessible(page, 'a file of codes');
  await button(page, 'Import 2 codes').click();
  await expect(page.getByRole('alert').getByText(/line 3: code "2\.19E\+26"/)).toBeVisible();
  await codes('codes\nX-1\nX-2\n');
  await button(page, 'Import 2 codes').click();
  await expect(page.getByText('2 of 2 imported codes left')).toBeVisible();
  await button(page, 'Duplicate…').click();
  await confirm(page, 'Duplicate');
  await expect(page.getByRole('heading', { name: `${name} (copy)` })).toBeVisible();
  const copy = await w.api('GET', `/v1/coupon-templates/${page.url().split('/').pop()}`);
  expect([copy.totalQuantity, copy.importedCodes, copy.notes]).toEqual([2, undefined, undefined]);
});

for (const [language, texts] of Object.entries({
  en: { title: /^Report: /, link: 'Copy the link', day: 'By day', who: 'Drop closed', section: 'section' },
  ko: { title: /^보고서: /, link: '링크 복사', day: '날짜별', who: '쿠폰 행사 종료', section: '구분' },
})) {
  test(`the report of a closed drop, ${language}`, async ({ w }) => {
    const { id } = await w.api('POST', '/v1/coupon-templates', { name: w.unique('Reported'), totalQuantity: 3, notes: 'why we did it' });
    await issue(w, id, 3);
    await w.api('POST', `/v1/coupon-templates/${id}/close`);
    for (const width of [1440, 390]) {
      const page = await w.page({ key: w.keys.viewer, width });
      await w.open(page, `/?lang=${language}#/coupons/${id}/report`);
      await expect(page.getByRole('heading', { name: texts.title })).toBeVisible();
      await expect(page.getByRole('heading', { name: texts.day })).toBeVisible();
      await expect(page.getByText(texts.who)).toBeVisible();
      await expect(page.getByText('why we did it').first()).toBeVisible();
      await w.accessible(page, `the report of a drop, ${language}, ${width}`);
      await w.fits(page, 'the report of a drop');
      for (const [format, begin] of [['CSV', `\ufeff${texts.section},`], ['.xlsx', 'PK']]) {
        const [file] = await Promise.all([page.waitForEvent('download'), page.getByRole('button', { name: format }).click()]);
        expect(readFileSync(await file.path(), 'utf8').slice(0, begin.length)).toBe(begin);
      }
      await page.context().grantPermissions(['clipboard-read', 'clipboard-write']);
      await button(page, texts.link).click();
      expect(await page.evaluate(() => navigator.clipboard.readText())).toBe(page.url());
      // The page of a closed drop begins with its report.
      await w.open(page, `/?lang=${language}#/coupons/${id}`);
      await expect(page.getByRole('heading', { name: texts.day })).toBeVisible();
      await w.fits(page, 'a closed drop');
    }
  });
}
