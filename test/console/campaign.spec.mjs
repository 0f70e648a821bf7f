// A campaign as people run it who work with spreadsheets, not with servers.
import { readFileSync } from 'node:fs';
import { badge, button, confirm, dialog, expect, heading, test } from './world.mjs';

/** cp949 writes a text as Excel does in Korea. */
function cp949(text) {
  const decoder = new TextDecoder('euc-kr');
  const bytes = new Map();
  for (let lead = 0x81; lead <= 0xfe; lead++) for (let trail = 0x41; trail <= 0xfe; trail++) bytes.set(decoder.decode(Uint8Array.of(lead, trail)), [lead, trail]);
  return Buffer.from([...text].flatMap((c) => (c.charCodeAt(0) < 0x80 ? [c.charCodeAt(0)] : bytes.get(c))));
}

/** wrongLines is a file with own names of the columns and three wrong lines: 4, 8 and 12. */
const wrongLines = (first) => {
  const rows = Array.from({ length: 20 }, (_, n) => `${first + n},홍길동,"${(n % 3) + 1},000"`);
  Object.assign(rows, { 2: `${first + 2}번,김철수,"1,000"`, 6: `${first + 6},이영희,천원`, 10: `,박민수,"2,000"` });
  return cp949(['고객번호,이름,적립금', ...rows].join('\r\n') + '\r\n');
};

test('a campaign from an Excel file of Korea on a phone, scheduled, paused, resumed, reported and duplicated', async ({ w }) => {
  const first = 100_000 + Math.floor(Math.random() * 800_000);
  const before = await w.api('POST', '/v1/promotions', { name: w.unique('지난 보너스'), type: 'POINT', amount: 100, currency: 'KRW' });
  await w.api('POST', `/v1/promotions/${before.id}/targets`, `targetId\n${first}\n${first + 1}\n`, w.token, 'text/csv');
  await w.api('POST', `/v1/promotions/${before.id}/start`);
  await w.until('they are paid', () => w.api('GET', `/v1/promotions/${before.id}`), (p) => p.status === 'COMPLETED');
  const paid = (await w.api('GET', `/v1/promotions/${before.id}`)).counts.succeeded; // the provider refuses some

  const page = await w.page({ key: w.keys.campaigner, width: 390, locale: 'ko-KR' });
  const name = w.unique('11월 보너스');
  await w.open(page, '/#/promotions/new');
  await heading(page, '프로모션 만들기');
  await page.getByLabel('대상 파일').setInputFiles({ name: '명단.csv', mimeType: 'text/csv', buffer: wrongLines(first) });
  await page.getByLabel('통화').fill('KRW');
  await expect(page.getByText('17명, 모두 33,000원', { exact: true })).toBeVisible();
  await expect(page.getByLabel('글자 저장 방식')).toHaveText(/^자동 감지: 한글 엑셀의 CSV 파일/);
  if (paid > 0) await expect(page.getByText(`17명 중 ${paid}명은 아래 프로모션에서 이미 받았으며, 또 지급됩니다:`)).toBeVisible();
  // Two of the three lines are corrected here, and the third is for the colleague who made the file.
  const line = (n) => page.getByRole('group').filter({ has: page.getByText(new RegExp(`^${n}번째 줄`)) }).last();
  await line(4).getByLabel('고객번호').fill(String(first + 2));
  await line(8).getByLabel('적립금').fill('1,000');
  await page.keyboard.press('Tab');
  await expect(page.getByText('19명, 모두 35,000원', { exact: true })).toBeVisible();
  await expect(page.getByText('2줄을 수정했습니다')).toBeVisible();
  const [file] = await Promise.all([page.waitForEvent('download'), button(page, '거부된 줄 내려받기').click()]);
  expect(readFileSync(await file.path(), 'utf8')).toMatch(/^\ufeff고객번호,이름,적립금,틀린 이유\r\n,박민수,"2,000",/);
  await w.accessible(page, 'a file with wrong lines');
  await w.fits(page, 'a file with wrong lines');
  await w.readable(page, 'a file with wrong lines');

  await page.getByLabel('이름', { exact: true }).fill(name);
  await page.getByLabel('시작 시각').fill('2099-05-06T10:00');
  await page.getByLabel('예산').fill('100,000');
  await page.getByLabel('메모').fill('CRM 세그먼트 A');
  expect((await w.api('GET', `/v1/promotions?q=${encodeURIComponent(name)}`)).items, 'a check has created something').toEqual([]);
  await button(page, '만들고 예약').click();
  await heading(page, name);
  await badge(page, '예약됨');
  const id = /promotions\/(\d+)/.exec(page.url())[1];
  const p = await w.api('GET', `/v1/promotions/${id}`);
  expect([p.totalCount, p.amountTotal, p.startsAt, p.maxAmount, p.notes]).toEqual([19, 35_000, '2099-05-06T08:00:00Z', 100_000, 'CRM 세그먼트 A']);
  await expect(page.getByRole('region', { name: '예약됨' }).getByText(/2099.*독일 시간/)).toBeVisible();
  const { items: files } = await w.api('GET', `/v1/promotions/${id}/uploads`);
  expect(files.map((f) => [f.accepted, f.rejected]), 'a corrected line is no longer refused').toEqual(expect.arrayContaining([[2, 0], [17, 1]]));
  await expect(page.getByRole('cell', { name: '명단.csv', exact: true })).toBeVisible();
  const approver = await w.page({ key: w.keys.approver, width: 390, locale: 'ko-KR' });
  await w.open(approver, `/#/approvals/${id}`);
  await expect(approver.getByText('명단.csv', { exact: true })).toBeVisible();
  await expect(approver.getByText('명단.csv (수정한 줄)', { exact: true })).toBeVisible();
  await w.accessible(page, 'a scheduled campaign');
  await w.readable(page, 'a scheduled campaign');

  await w.api('PATCH', `/v1/promotions/${id}`, { ratePerSecond: 1 });
  await button(page, '시작…').click();
  await expect(dialog(page).getByText('대상 19명에게 총 35,000원을 지급합니다.')).toBeVisible();
  if (paid > 0) await expect(dialog(page).getByText(`${before.name}: ${paid}명`)).toBeVisible();
  await w.accessible(page, 'the start of a campaign');
  await confirm(page, '19명에게 지급');
  await badge(page, '진행 중');
  await button(page, '일시중지…').click();
  await confirm(page, '일시중지', { 사유: '금액 확인' });
  await badge(page, '일시중지');
  await expect(page.getByText('금액 확인', { exact: true }).first()).toBeVisible();
  await w.accessible(page, 'a paused campaign');
  await w.readable(page, 'a paused campaign');
  await w.api('PATCH', `/v1/promotions/${id}`, { ratePerSecond: null });
  await button(page, '재개…').click();
  await confirm(page, '재개');
  await w.api('POST', `/v1/promotions/${id}/close`);
  await badge(page, '완료');

  await page.getByRole('link', { name: '보고서', exact: true }).click();
  await heading(page, `보고서: ${name}`);
  const end = await w.api('GET', `/v1/promotions/${id}`);
  await expect(page.getByRole('region', { name: '지급 현황' }).getByRole('row', { name: new RegExp(`지급됨.* ${end.counts.succeeded} `) })).toBeVisible();
  await expect(page.getByRole('region', { name: '작업 이력' }).getByRole('listitem')).not.toHaveCount(0);
  for (const format of ['xlsx', 'csv']) {
    const [saved] = await Promise.all([page.waitForEvent('download'), button(page, { xlsx: '엑셀(.xlsx)', csv: 'CSV' }[format]).click()]);
    expect(saved.suggestedFilename()).toBe(`보고서 ${name}.${format}`);
  }
  await w.accessible(page, 'a report');
  await w.readable(page, 'a report');

  await w.open(page, `/#/promotions/${id}`);
  await page.locator('summary', { hasText: '더 보기' }).click();
  await button(page, '복제…').click();
  await confirm(page, '사본 만들기');
  await heading(page, `${name} (사본)`);
  await badge(page, '초안');
});

test('a viewer opens a report by its link, and may print it', async ({ w }) => {
  const page = await w.page({ key: w.keys.viewer });
  await w.open(page, `/#/promotions/${w.paid}/report`);
  await expect(button(page, 'Print')).toBeVisible();
  await page.emulateMedia({ media: 'print' });
  await expect(button(page, 'Print')).toBeHidden();
  await expect(page.getByRole('region', { name: 'Paid by day' })).toBeVisible();
  await expect(page.getByRole('banner')).toBeHidden();
});

test('a file that nobody can read leaves nothing behind', async ({ w }) => {
  const page = await w.page({ key: w.keys.campaigner });
  const name = w.unique('Unreadable');
  await w.open(page, '/#/promotions/new');
  await page.getByLabel('Name', { exact: true }).fill(name);
  await page.getByLabel('File of targets').setInputFiles({ name: 'list.xlsx', mimeType: 'application/octet-stream', buffer: Buffer.from('no workbook') });
  await expect(page.getByRole('alert')).toBeVisible();
  await expect(button(page, 'Create the draft')).toBeDisabled();
  await page.getByLabel('File of targets').setInputFiles({ name: 'list.csv', mimeType: 'text/csv', buffer: Buffer.from('name,points\n,5\n,6\n') });
  await page.getByLabel('Customer', { exact: true }).selectOption('name');
  await expect(page.getByText('0 people, 0 in all', { exact: true })).toBeVisible();
  await expect(button(page, 'Create the draft')).toBeDisabled();
  expect((await w.api('GET', `/v1/promotions?q=${encodeURIComponent(name)}`)).items).toEqual([]);
});

test('pay one person to try a campaign', async ({ w }) => {
  const page = await w.page({ key: w.keys.campaigner });
  const id = await w.promotion({ name: w.unique('Tried'), amount: 500 }, 3, w.keys.campaigner);
  await w.open(page, `/#/promotions/${id}`);
  await page.locator('summary', { hasText: 'More' }).click();
  await button(page, 'Test payment…').click();
  await confirm(page, 'Pay the test', { 'Customer to pay': 'me-1' });
  await expect(page).not.toHaveURL(new RegExp(id));
  await badge(page, 'Completed');
  const tried = await w.api('GET', `/v1/promotions/${/promotions\/(\d+)/.exec(page.url())[1]}`);
  expect([tried.totalCount, tried.amountTotal, tried.metadata.testOf]).toEqual([1, 500, id]);
});
