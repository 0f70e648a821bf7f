// What the pages offer beyond the main flows.
import { readFileSync } from 'node:fs';
import { badge, button, dialog, expect, more, test } from './world.mjs';

const told = (page, text) => expect(page.getByRole('status').getByText(text).first()).toBeVisible();
const stat = (page, name) => page.locator('.card', { has: page.getByText(name, { exact: true }) }).last();

test('a large file shows how much of it is sent', async ({ w }) => {
  const page = await w.page({ key: w.keys.operator });
  const draft = await w.api('POST', '/v1/promotions', { name: w.unique('Large'), type: 'POINT', amount: 1 });
  await w.open(page, `/#/promotions/${draft.id}`);
  const network = await page.context().newCDPSession(page);
  await network.send('Network.emulateNetworkConditions', { offline: false, latency: 0, downloadThroughput: -1, uploadThroughput: 400_000 });
  const targets = 100_000;
  const text = ['targetId', ...Array.from({ length: targets }, (_, n) => `${n + 1_000_000_000}`)].join('\n');
  await page.getByLabel('File of targets').setInputFiles({ name: 'large.csv', mimeType: 'text/csv', buffer: Buffer.from(text) });
  await page.waitForFunction(() => [...document.querySelectorAll('progress')].some((p) => p.value > 0 && p.value < 1));
  await page.getByRole('progressbar', { name: 'Checking…' }).waitFor(); // looks at each frame, because it is there for a moment only
  await w.accessible(page, 'a file on its way');
  await expect(page.getByText('100,000 people, 100,000 in all', { exact: true })).toBeVisible();
  await expect(page.getByRole('progressbar'), 'the progress bar stays').toHaveCount(0);
});

test('a file of customers whose IDs are no numbers', async ({ w }) => {
  const page = await w.page({ key: w.keys.operator });
  await w.open(page, '/#/promotions/new');
  await page.getByLabel('Name').fill(w.unique('Texts'));
  await page.getByLabel('File of targets').setInputFiles({ name: 'members.csv', mimeType: 'text/csv', buffer: Buffer.from('회원번호;이름;포인트\r\nC-0041;Kim;1000P\r\nC-0042;Lee;500P\r\n') });
  await expect(page.getByText('2 people, 1,500 in all', { exact: true })).toBeVisible();
  await expect(page.getByLabel('Number against paying twice')).toHaveValue('');
  await button(page, 'Create the draft').click();
  await page.waitForURL(/promotions\/\d+/);
  const [, id] = /promotions\/(\d+)/.exec(page.url());
  expect((await w.api('GET', `/v1/promotions/${id}/payouts`)).items.map((i) => i.userId).toSorted()).toEqual(['C-0041', 'C-0042']);
});

test('a corrected line counts once, whatever columns are chosen', async ({ w }) => {
  const page = await w.page({ key: w.keys.campaigner });
  await w.open(page, '/#/promotions/new');
  const file = '회원번호,회원아이디,적립금\n1,ann,5\nx,bob,5\n3,,5\n4,dan,5\n';
  await page.getByLabel('File of targets').setInputFiles({ name: 'members.csv', mimeType: 'text/csv', buffer: Buffer.from(file) });
  await expect(page.getByText('2 people, 10 in all', { exact: true })).toBeVisible();
  await page.getByRole('group').filter({ has: page.getByText(/^Line 3/) }).last().getByLabel('회원번호').fill('2');
  await page.keyboard.press('Tab');
  await expect(page.getByText('3 people, 15 in all', { exact: true })).toBeVisible();
  const columns = page.getByLabel('Number against paying twice');
  const listed = page.getByRole('region', { name: 'Lines with mistakes' }).getByRole('group');
  await columns.selectOption('');
  await expect(listed).toHaveCount(1);
  await expect(page.getByText('3 people, 15 in all', { exact: true })).toBeVisible();
  await columns.selectOption('회원번호');
  await expect(listed).toHaveCount(2);
  await expect(page.getByText('3 people, 15 in all', { exact: true })).toBeVisible();
  // Somebody else's number pays that person once, and nobody what was not shown.
  await page.getByRole('group').filter({ has: page.getByText(/^Line 3/) }).last().getByLabel('회원번호').fill('4');
  const name = w.unique('Taken');
  await page.getByLabel('Name').fill(name);
  await expect(button(page, 'Create the draft')).toBeEnabled();
  await button(page, 'Create the draft').click();
  await expect(page.getByText('Nothing was created: 2 people, 10 in all, would be paid')).toBeVisible();
  expect((await w.api('GET', `/v1/promotions?q=${encodeURIComponent(name)}`)).items).toEqual([]);
});

test('drop a file, see it, and pay in one flow', async ({ w }) => {
  const page = await w.page({ key: w.keys.operator });
  const name = w.unique('Dropped');
  await w.open(page, '/#/promotions/new');
  await page.getByLabel('Name').fill(name);
  await page.getByLabel('Amount of each target').fill('2,000');
  await page.getByText('Advanced', { exact: true }).click();
  await page.getByLabel('Canary: targets that are paid first').fill('5');
  await page.getByLabel('Canary: failures allowed, in percent').fill('100');
  await button(page, 'Add an entry').click();
  await page.getByLabel('Name 1').fill('centre');
  await page.getByLabel('Value 1').fill('4711');
  const lines = ['targetId,userId', ...Array.from({ length: 30 }, (_, n) => `${n + 1},u${n + 1}`), 'x,u31'].join('\n');
  // As a browser does when somebody lets a file go over the page.
  const data = await page.evaluateHandle((text) => {
    const moved = new DataTransfer();
    moved.items.add(new File([text], 'spring.csv', { type: 'text/csv' }));
    return moved;
  }, lines);
  await page.getByRole('group', { name: 'Targets' }).dispatchEvent('drop', { dataTransfer: data });
  await expect(page.getByText('30 people, 60,000 in all', { exact: true })).toBeVisible();
  await expect(page.getByRole('region', { name: 'Lines with mistakes' }).getByText('Line 32:')).toBeVisible();
  await page.getByText('First lines of the file').click();
  await expect(page.getByRole('cell', { name: 'u1', exact: true })).toBeVisible();
  await w.accessible(page, 'a new promotion with a file');
  expect((await w.api('GET', `/v1/promotions?q=${encodeURIComponent(name)}`)).items, 'a check has created something').toEqual([]);
  await button(page, 'Create and start…').click();
  await expect(dialog(page).getByText('Pay 30 targets: 60,000 in all.')).toBeVisible();
  await button(dialog(page), 'Pay 30').click();
  await badge(page, 'Completed');
  const id = /promotions\/(\d+)/.exec(page.url())[1];
  const p = await w.api('GET', `/v1/promotions/${id}`);
  expect([p.metadata, p.canary.targets, p.canary.maxFailureRate]).toEqual([{ centre: '4711' }, 5, 1]);
  await page.getByRole('link', { name: 'Details', exact: true }).click();
  await expect(page.getByRole('region', { name: 'What happened' }).getByText(/^Promotion started by/)).toBeVisible();
});

test('change every setting of a draft, and two people at once', async ({ w }) => {
  const { id } = await w.api('POST', '/v1/promotions', { name: w.unique('Changed'), type: 'VOUCHER', metadata: { old: '1', both: 'a' } });
  const path = `/v1/promotions/${id}`;
  const change = async (page, fields) => {
    await button(page, 'Change…').click();
    await dialog(page).locator('details').evaluate((d) => (d.open = true));
    for (const [label, text] of Object.entries(fields)) await dialog(page).getByLabel(label, { exact: true }).fill(text);
  };
  const save = (page) => button(dialog(page), 'Save the changes').click();
  const first = await w.page({ key: w.keys.operator });
  await w.open(first, `/#/promotions/${id}`);
  await change(first, {
    Name: 'Changed in all', 'Calls per second': '1.000', Weight: '3', Budget: '50,000', Retries: '2', 'Amount of each target': '7.00', 'Voucher code': 'V-9', Currency: 'chf',
    'Canary: targets that are paid first': '10', 'Canary: failures allowed, in percent': '2.5', Starts: '2099-05-06T07:08:09', 'Value 2': '2',
  });
  await button(dialog(first), 'Remove both').click();
  await w.accessible(first, 'the settings of a draft');
  await save(first);
  await expect(dialog(first)).toHaveCount(0);
  const p = await w.api('GET', path);
  expect([
    p.name, p.ratePerSecond, p.weight, p.maxAmount, p.maxRetries, p.amount, p.voucherCode, p.currency, p.canary.targets, p.canary.maxFailureRate, p.startsAt, p.metadata,
  ]).toEqual(['Changed in all', 1000, 3, 5_000_000, 2, 700, 'V-9', 'CHF', 10, 0.025, '2099-05-06T05:08:09Z', { old: '2' }]);
  // What is no number is refused, and does not mean "no limit".
  await change(first, { 'Calls per second': 'many' });
  await save(first);
  await expect(dialog(first).getByRole('alert').getByText('is not a whole number')).toBeVisible();
  await dialog(first).getByLabel('Calls per second').fill('50');
  // Meanwhile somebody else saves another rate and a weight.
  const second = await w.page({ key: w.keys.second });
  await w.open(second, `/#/promotions/${id}`);
  await change(second, { 'Calls per second': '7', Weight: '9' });
  await save(second);
  await expect(dialog(second)).toHaveCount(0);
  await save(first);
  await expect(dialog(first).getByRole('alert').getByText(/Somebody else has changed it meanwhile: Calls per second, Weight\./)).toBeVisible();
  await expect(dialog(first).getByText('somebody else wrote: 7')).toBeVisible();
  await expect(dialog(first).getByLabel('Weight', { exact: true }), 'the weight of the other').toHaveValue('9');
  expect((await w.api('GET', path)).ratePerSecond, 'the first has overwritten the second').toBe(7);
  await save(first);
  await expect(dialog(first)).toHaveCount(0);
  const both = await w.api('GET', path);
  expect([both.ratePerSecond, both.weight]).toEqual([50, 9]);
  // Emptied fields are removed; a running promotion has no fields of a draft.
  await change(first, { 'Calls per second': '', Budget: '', 'Canary: targets that are paid first': '', Starts: '' });
  await save(first);
  await expect(dialog(first)).toHaveCount(0);
  const none = await w.api('GET', path);
  expect([none.ratePerSecond, none.maxAmount, none.canary, none.startsAt]).toEqual([undefined, undefined, undefined, undefined]);
  await w.open(first, `/#/promotions/${w.paid}`);
  await button(first, 'Change…').click();
  await expect(dialog(first).getByText('can change only while it is a draft')).toBeVisible();
  await expect(dialog(first).getByLabel('Currency')).toHaveCount(0);
  await w.accessible(first, 'the settings of a completed promotion');
});

test('amounts are shown and read in their currency', async ({ w }) => {
  const page = await w.page({ key: w.keys.operator });
  const person = w.unique('rich').replace(' ', '-');
  for (const [currency, text] of [['EUR', '10.50 EUR'], ['KRW', '1,050 KRW'], ['BHD', '1.050 BHD'], ['IQD', '1.050 IQD'], [undefined, '1,050']]) {
    const p = await w.api('POST', '/v1/promotions', { name: w.unique('Money'), type: 'POINT', amount: 1050, currency });
    await w.api('POST', `/v1/promotions/${p.id}/targets`, `targetId,userId\n1,${person}\n`, w.keys.operator, 'text/csv');
    await w.open(page, `/#/promotions/${p.id}`);
    await expect(page.getByRole('cell', { name: text, exact: true }).first(), 'the payout, or the file').toBeVisible();
    await button(page, 'Start…').click();
    await expect(dialog(page).getByText(`Pay 1 target: ${text} in all.`)).toBeVisible();
    await button(dialog(page), 'Pay 1').click();
    await expect(page.getByText(`of ${text}`)).toBeVisible();
  }
  await w.open(page, `/#/people/${person}`);
  for (const text of ['10.50 EUR', '1,050 KRW', '1.050 BHD', '1.050 IQD']) await expect(page.getByText(text).first()).toBeVisible();

  // A file is in the units that somebody chose: major ones at first.
  const { id } = await w.api('POST', '/v1/promotions', { name: w.unique('Units'), type: 'POINT', currency: 'EUR' });
  await w.open(page, `/#/promotions/${id}`);
  await page.getByLabel('File of targets').setInputFiles({ name: 'units.csv', mimeType: 'text/csv', buffer: Buffer.from('targetId,amount\n1,10.50\n2,1050\n') });
  await expect(page.getByText('2 people, 1,060.50 EUR in all', { exact: true })).toBeVisible();
  await page.getByLabel('Amounts in the file').selectOption('minor');
  await expect(page.getByText('1 person, 10.50 EUR in all', { exact: true })).toBeVisible();
  await w.accessible(page, 'the units of a file');

  // What a field says does not change its meaning with the currency.
  await button(page, 'Change…').click();
  await dialog(page).getByLabel('Amount of each target', { exact: true }).fill('10.50');
  await dialog(page).getByLabel('Currency', { exact: true }).fill('KRW');
  await button(dialog(page), 'Save the changes').click();
  await expect(dialog(page).getByRole('alert').getByText('may have no digits behind the point')).toBeVisible();
  await dialog(page).getByLabel('Currency', { exact: true }).fill('BHD');
  await button(dialog(page), 'Save the changes').click();
  await expect(dialog(page)).toHaveCount(0);
  const changed = await w.api('GET', `/v1/promotions/${id}`);
  expect([changed.amount, changed.currency]).toEqual([10_500, 'BHD']);
});

test('coupons are valid for days, when a template is created and when it is changed', async ({ w }) => {
  const page = await w.page({ key: w.keys.operator });
  await w.open(page, '/#/coupons/new');
  await page.getByLabel('Name', { exact: true }).fill(w.unique('Days'));
  await page.getByLabel('How many coupons').fill('1');
  await page.getByLabel('Valid for, in days').fill('30');
  await page.getByRole('button', { name: /^Create with/ }).click();
  await expect(page).toHaveURL(/coupons\/\d+/);
  const path = `/v1/coupon-templates/${page.url().split('/').pop()}`;
  expect((await w.api('GET', path)).validForSeconds).toBe(30 * 86_400);
  await button(page, 'Change…').click();
  await expect(dialog(page).getByLabel('Valid for, in days')).toHaveValue('30');
  for (const [days, seconds] of [['0.5', 43_200], ['45', 45 * 86_400]]) {
    await dialog(page).getByLabel('Valid for, in days').fill(days);
    await button(dialog(page), 'Save the changes').click();
    await expect(dialog(page)).toHaveCount(0);
    expect((await w.api('GET', path)).validForSeconds).toBe(seconds);
    await button(page, 'Change…').click();
    await expect(dialog(page).getByLabel('Valid for, in days')).toHaveValue(days);
  }
});

test('filters have addresses, and can be saved', async ({ w }) => {
  const page = await w.page({ key: w.keys.operator });
  const name = w.unique('Findable');
  await w.api('POST', '/v1/promotions', { name, type: 'POINT', amount: 1 });
  await w.open(page, '/#/promotions');
  await page.getByLabel('Status').selectOption('DRAFT');
  await page.getByLabel('Search').fill(name);
  await expect(page).toHaveURL(/q=/);
  await expect(page.getByText('1 in all')).toBeVisible();
  await button(page, 'Save this filter…').click();
  await page.getByLabel('Name of the filter').fill('my drafts');
  await page.keyboard.press('Enter');
  const saved = page.getByRole('group', { name: 'Saved filters' }).getByRole('link', { name: 'my drafts' });
  await expect(saved).toHaveAttribute('aria-current', 'true');
  await button(page, 'Clear').click();
  await expect(page.getByRole('link', { name: 'A draft', exact: true })).toBeVisible();
  await page.reload();
  await saved.click();
  await expect(page.getByText('1 in all')).toBeVisible();
  await expect(page.getByLabel('Search')).toHaveValue(name);
  await expect(page.getByLabel('Status')).toHaveValue('DRAFT');
  await w.accessible(page, 'saved filters');
  await button(page, 'Forget the filter my drafts').click();
  expect(await page.evaluate(() => localStorage.length)).toBe(0);
});

test('coupon templates are found by name or metadata', async ({ w }) => {
  const page = await w.page({ key: w.keys.viewer });
  const name = w.unique('Findable drop');
  await w.api('POST', '/v1/coupon-templates', { name, totalQuantity: 1, metadata: { shop: name } });
  await w.open(page, '/#/coupons');
  const search = page.getByLabel('Search');
  for (const text of [name.toUpperCase(), `shop=${name}`]) {
    await search.fill(text);
    await expect(page.getByText('1 in all')).toBeVisible();
    await expect(page.getByRole('link', { name, exact: true })).toBeVisible();
  }
  await search.fill(`${name} of nobody`);
  await expect(page.getByText('No drop matches')).toBeVisible();
  await page.reload();
  await expect(search).toHaveValue(`${name} of nobody`);
  await search.fill('');
  await expect(page.getByRole('link', { name, exact: true })).toBeVisible();
});

test('new rows wait until somebody wants them', async ({ w }) => {
  const page = await w.page({ key: w.keys.operator });
  await w.open(page, '/#/promotions');
  const name = w.unique('Comes later');
  await w.api('POST', '/v1/promotions', { name, type: 'POINT', amount: 1 });
  await expect(button(page, '1 new')).toBeVisible();
  await expect(page.getByRole('link', { name, exact: true }), 'the table has moved').toHaveCount(0);
  await button(page, '1 new').click();
  await expect(page.getByRole('link', { name, exact: true })).toBeVisible();
  await expect(button(page, '1 new')).toHaveCount(0);
});

test('rows follow their state, and stay where they are', async ({ w }) => {
  const { id } = await w.api('POST', '/v1/promotions', { name: w.unique('Followed rows'), type: 'POINT', amount: 1 });
  await w.api('POST', `/v1/promotions/${id}/targets`, 'targetId\n1\n2\n', w.token, 'text/csv');
  const all = await w.page({ key: w.keys.operator });
  await w.open(all, `/#/promotions/${id}?tab=payouts`);
  const ready = await w.page({ key: w.keys.viewer });
  await w.open(ready, `/#/promotions/${id}?state=READY`);
  for (const page of [all, ready]) await expect(page.getByRole('cell', { name: 'Ready', exact: true })).toHaveCount(2);
  await w.api('POST', `/v1/promotions/${id}/start`);
  for (const target of ['1', '2']) { // the provider refuses some
    await expect(all.getByRole('row').filter({ has: all.getByRole('link', { name: target, exact: true }) }).getByRole('cell', { name: /^(Succeeded|Failed)$/ })).toBeVisible();
  }
  await expect(ready.getByRole('cell', { name: 'No longer ready', exact: true })).toHaveCount(2);
});

test('a pause names the person', async ({ w }) => {
  const { id } = await w.api('POST', '/v1/promotions', { name: w.unique('Paused by somebody'), type: 'POINT', amount: 1, ratePerSecond: 1 });
  await w.api('POST', `/v1/promotions/${id}/targets`, 'targetId\n' + Array.from({ length: 100 }, (_, n) => n + 1).join('\n'), w.token, 'text/csv');
  await w.api('POST', `/v1/promotions/${id}/start`);
  const { pausedBy } = await w.api('POST', `/v1/promotions/${id}/pause`);
  expect(pausedBy).toBeTruthy();
  const page = await w.page({ key: w.keys.viewer });
  await w.open(page, `/#/promotions/${id}`);
  await expect(page.getByText(`Paused by ${pausedBy}`, { exact: true })).toBeVisible();
});

test('a hold that has ended offers nothing', async ({ w }) => {
  const { id } = await w.api('POST', '/v1/coupon-templates', { name: w.unique('Held'), totalQuantity: 5, holdSeconds: 3600 });
  await w.until('it is held', () => w.call('POST', `/v1/coupons/${id}/issue`, { userId: 'held-1' }), (a) => a.status < 300);
  const page = await w.page({ key: w.keys.operator });
  await page.clock.install();
  await w.open(page, `/#/coupons/${id}`);
  await expect(button(page, 'confirm')).toBeVisible();
  await page.clock.fastForward('02:00:00');
  await expect(page.getByText('hold ended')).toBeVisible();
  await expect(button(page, 'confirm')).toHaveCount(0);
});

test('a payout, its attempts, and an export of what is filtered', async ({ w }) => {
  const page = await w.page({ key: w.keys.operator });
  const failed = (await w.api('GET', `/v1/promotions/${w.paid}/payouts?state=FAILED&limit=1`)).items[0];
  await w.open(page, `/#/promotions/${w.paid}?tab=payouts`);
  await page.getByLabel('Target', { exact: true }).fill(failed.targetId);
  await button(page, 'Find').click();
  const card = page.getByRole('region', { name: `Payout of target ${failed.targetId}` });
  await expect(card.getByRole('cell', { name: failed.errorCode, exact: true }).first()).toBeVisible();
  await expect(card.getByRole('link', { name: failed.userId })).toBeVisible();
  const other = await w.page({ key: w.keys.campaigner });
  await w.open(other, `/#/promotions/${w.paid}?tab=payouts&state=FAILED&code=${failed.errorCode}`);
  await expect(other.getByText(`Reason: ${failed.errorMessage}`)).toBeVisible();
  await expect(other.getByText(failed.errorCode)).toHaveCount(0);
  await page.getByLabel('Code', { exact: true }).fill(failed.errorCode);
  await page.keyboard.press('Enter');
  await expect(page).toHaveURL(new RegExp('code=' + failed.errorCode));
  const [download] = await Promise.all([page.waitForEvent('download'), button(page, 'Export CSV').click()]);
  const rows = readFileSync(await download.path(), 'utf8').trim().split(/\r?\n/);
  const { counts } = await w.api('GET', `/v1/promotions/${w.paid}`);
  expect(rows[0]).toMatch(/^targetId,userId/);
  expect(rows.length > 1 && rows.length - 1 <= counts.failed && rows.slice(1).every((r) => r.includes(failed.errorCode)), rows.slice(0, 3).join('\n')).toBe(true);
});

test('a drop is followed by events: line, rate, sold out', async ({ w }) => {
  const { id } = await w.api('POST', '/v1/coupon-templates', { name: w.unique('Followed'), totalQuantity: 30 });
  const page = await w.page({ key: w.keys.operator });
  const asked = [];
  page.on('request', (r) => asked.push(new URL(r.url()).pathname));
  await w.open(page, `/#/coupons/${id}`);
  await expect(page.getByText('not live, read every second')).toHaveCount(0);
  const before = asked.filter((p) => p === `/v1/coupon-templates/${id}`).length;
  const answers = await Promise.all(Array.from({ length: 40 }, (_, n) => w.call('POST', `/v1/coupons/${id}/issue`, { userId: `f-${n}` })));
  expect(answers.some((a) => a.status === 409), 'nobody was refused').toBe(true);
  await expect(stat(page, 'Given out').getByText('30', { exact: true })).toBeVisible();
  await badge(page, 'Sold out');
  const { refusals } = await w.until('it is noted when it was sold out', () => w.api('GET', `/v1/users/-/history?templateId=${id}`), (h) => h.refusals.length > 0);
  const moment = await page.evaluate((at) => new Intl.DateTimeFormat('en-US', { hour: 'numeric', minute: '2-digit', second: '2-digit' }).format(new Date(at)), refusals[0].since);
  await expect(page.getByText(`Sold out since ${moment}, `)).toBeVisible();
  await expect(button(page, /^\d+ new$/).or(page.getByText('30 in all')).first()).toBeVisible();
  await page.getByRole('button', { name: 'Refresh' }).click();
  await expect(page.getByText('30 in all')).toBeVisible();
  await expect(page.getByText('Nobody of these was served before somebody with a lower ticket.')).toBeVisible();
  const reads = asked.filter((p) => p === `/v1/coupon-templates/${id}`).length - before;
  expect(asked).toContain(`/v1/coupon-templates/${id}/events`);
  expect(reads, 'reads of the template while its stream is open').toBeLessThanOrEqual(8);
  await w.accessible(page, 'a drop');
});

test('waits that were told against real ones', async ({ w }) => {
  const { id } = await w.api('POST', '/v1/coupon-templates', { name: w.unique('Waited'), totalQuantity: 500 });
  const page = await w.page({ key: w.keys.viewer });
  // Four looks at a line: 100 wait and are told 10 s; they have their turn in 8 s.
  const now = Date.now() - 60_000;
  const look = (after, issued, waiting, wait) => `event: counters\nid: OPEN.${after}\ndata: ${JSON.stringify({
    id, state: 'OPEN', path: 'GATE', issuedPerSecond: 12.5, estimatedWaitMillis: wait, at: new Date(now + after * 1000).toISOString(),
    counters: { totalQuantity: 500, stock: 500 - issued - waiting, count: issued, issuedTotal: issued, waiting },
  })}\n\n`;
  const stream = [look(0, 0, 99, 10_000), look(4, 50, 49, 5000), look(8, 100, 1, 100), look(9, 101, 0)].join('');
  let first = true;
  await page.route(`**/coupon-templates/${id}/events`, (route) => {
    if (!first) return; // stays open
    first = false;
    return route.fulfill({ contentType: 'text/event-stream', body: stream });
  });
  // A page whose stream opens late reads the template, and finds what the last look said.
  await page.route(`**/v1/coupon-templates/${id}`, async (route) => {
    const response = await route.fetch();
    const template = await response.json();
    if (!first) template.counters = { totalQuantity: 500, stock: 399, count: 101, issuedTotal: 101, waiting: 0 };
    await route.fulfill({ response, json: template });
  });
  await w.open(page, `/#/coupons/${id}`);
  // (10 + 5 + 0.1) / 3 were told; it was (8 + 4 + 1) / 3.
  await expect(page.getByText('told 5 s, was 4.3 s, on average')).toBeVisible();
  await page.getByText('Wait of who joined at a moment').click();
  const chart = page.locator('figure', { hasText: 'Waiting time shown' });
  await chart.getByRole('button', { name: 'numbers' }).click();
  const rows = await chart.getByRole('row').allTextContents();
  expect(rows.filter((r) => /10.*8/.test(r.replace(/^.*[AP]M/, ''))), rows.join('\n')).toHaveLength(1);
});

test('without events a drop is read every second', async ({ w }) => {
  const { id } = await w.api('POST', '/v1/coupon-templates', { name: w.unique('Polled'), totalQuantity: 9 });
  const page = await w.page({ key: w.keys.viewer });
  await page.route('**/events', (route) => route.abort());
  await w.open(page, `/#/coupons/${id}`);
  await expect(page.getByText('not live, read every second')).toBeVisible();
  await w.api('POST', `/v1/coupons/${id}/issue`, { userId: 'p-1' });
  await expect(stat(page, 'Left').getByText('8', { exact: true })).toBeVisible();
  await page.unroute('**/events');
  await expect(page.getByText('not live, read every second')).toHaveCount(0);
});

test('a template with codes to type, changed later', async ({ w }) => {
  const page = await w.page({ key: w.keys.operator });
  await w.open(page, '/#/coupons/new');
  await page.getByLabel('Name').fill(w.unique('Typed'));
  await page.getByLabel('How many coupons').fill('1,000');
  await page.getByLabel('Codes', { exact: true }).selectOption({ label: 'Made by Largesse, short' });
  await page.getByLabel('Codes begin with').fill('MAY-');
  await page.getByLabel('Characters after that').fill('10');
  await button(page, 'Create with 1,000 coupons').click();
  await button(page, 'Change…').click();
  await dialog(page).getByText('Advanced', { exact: true }).click();
  await dialog(page).getByLabel('Hold, in seconds').fill('60');
  await dialog(page).getByLabel('Per person').fill('3');
  await dialog(page).getByLabel('Closes').fill('2099-01-02T03:04:05');
  await button(dialog(page), 'Add an entry').click();
  await dialog(page).getByLabel('Name 1').fill('shop');
  await dialog(page).getByLabel('Value 1').fill('7');
  await w.accessible(page, 'the settings of a template');
  await button(dialog(page), 'Save the changes').click();
  await expect(dialog(page)).toHaveCount(0);
  const t = await w.api('GET', `/v1/coupon-templates/${page.url().split('/').pop()}`);
  expect([t.codes.prefix, t.codes.length, t.totalQuantity, t.holdSeconds, t.perUserLimit, t.closesAt, t.metadata]).toEqual(['MAY-', 10, 1000, 60, 3, '2099-01-02T02:04:05Z', { shop: '7' }]);
  const file = { name: 'codes.csv', mimeType: 'text/csv', buffer: Buffer.from('code\nA-1\nA-2\n') };
  const { id } = await w.api('POST', '/v1/coupon-templates', { name: w.unique('Imported'), totalQuantity: 2, opensAt: '2099-01-01T00:00:00Z' });
  await w.open(page, `/#/coupons/${id}`);
  await page.getByText('Import codes', { exact: true }).click();
  await page.getByLabel('File with one code per line').setInputFiles(file);
  await expect(page.getByRole('definition').filter({ hasText: /^A-[12]$/ })).toHaveText(['A-1', 'A-2']);
  await button(page, 'Import 2 codes').click();
  await expect(page.getByText('2 of 2 imported codes left')).toBeVisible();
});

test('why did I not get it', async ({ w }) => {
  const page = await w.page({ key: w.keys.viewer });
  const { id, name } = await w.api('POST', '/v1/coupon-templates', { name: w.unique('Gone'), totalQuantity: 1 });
  await w.api('POST', `/v1/coupons/${id}/issue`, { userId: 'fast' });
  await w.until('it is sold out', () => w.call('POST', `/v1/coupons/${id}/issue`, { userId: 'late' }), (a) => a.status === 409);
  await w.until('that is noted', () => w.api('GET', `/v1/users/late/history?templateId=${id}`), (h) => h.refusals.length > 0);
  await w.open(page, '/#/people');
  await page.getByRole('searchbox').fill('late');
  await page.keyboard.press('Enter');
  await expect(page.getByText('Nothing is recorded under “late”')).toBeVisible();
  await button(page, name).click();
  await expect(page.getByText(new RegExp(`${name} refused every request from .* until now: all coupons were gone\\.`))).toBeVisible();
  await expect(page).toHaveURL(/template=/);
  // Among more than a hundred templates, older ones are found by their name.
  await Promise.all(Array.from({ length: 100 }, (_, i) => w.api('POST', '/v1/coupon-templates', { name: `Newer ${i}`, totalQuantity: 1, opensAt: '2099-01-01T00:00:00Z' })));
  await w.open(page, '/#/people/late');
  await page.getByLabel('Find a drop').fill(name);
  await button(page, name).click();
  await expect(page.getByText(/refused every request from .* until now: all coupons were gone\./)).toBeVisible();
  const failed = (await w.api('GET', `/v1/promotions/${w.paid}/payouts?state=FAILED&limit=1`)).items[0];
  await w.open(page, `/#/people/${failed.userId}`);
  await expect(page.getByRole('region', { name: 'What they got' }).getByText(/not paid, because the provider refused it/).first()).toBeVisible();
  // Somebody who waits for a draw has a place, which is not an outcome yet.
  const draw = await w.api('POST', '/v1/coupon-templates', { name: w.unique('Drawn'), totalQuantity: 1, opensAt: '2099-01-01T00:00:00Z', draw: { from: new Date(Date.now() - 1000).toISOString() } });
  await w.api('POST', `/v1/coupons/${draw.id}/issue`, { userId: 'entrant' });
  await w.open(page, '/#/people/entrant');
  await expect(page.getByText(`${draw.name}: takes part in the draw`)).toBeVisible();
});

test('the palette finds templates, and what the page can do', async ({ w }) => {
  const page = await w.page({ key: w.keys.operator });
  await w.open(page, `/#/promotions/${w.draft}`);
  await page.keyboard.press('Control+k');
  await page.keyboard.type('rate a');
  await expect(page.getByRole('option', { name: /^Rate A draft…/ })).toBeVisible();
  await page.keyboard.press('Enter');
  await expect(dialog(page).getByText('Change the rate of A draft')).toBeVisible();
  await page.keyboard.press('Escape');
  await page.keyboard.press('Control+k');
  await page.keyboard.type('opens later');
  await expect(page.getByRole('option', { name: /^Opens later/ })).toBeVisible();
  await page.keyboard.press('Enter');
  await expect(page.getByRole('heading', { name: 'Opens later', exact: true })).toBeVisible();
  await page.keyboard.press('Control+k');
  await page.keyboard.type('rate a');
  await expect(page.getByRole('option', { name: /^Rate A draft…/ }), 'the action of a page that is left').toHaveCount(0);
});

test('rows are roomy if somebody wants it', async ({ w }) => {
  const page = await w.page({ key: w.keys.viewer });
  await w.open(page, '/#/promotions');
  const height = () => page.locator('.rows tbody tr').first().evaluate((row) => row.getBoundingClientRect().height);
  const dense = await height();
  await page.getByLabel('Roomy rows').check();
  expect(await height()).toBeGreaterThanOrEqual(dense + 10);
  await page.reload();
  await expect(page.locator('.rows tbody tr').first()).toBeVisible();
  expect(await height(), 'a reload forgets it').toBeGreaterThanOrEqual(dense + 10);
  await page.getByLabel('Roomy rows').uncheck();
  expect(await page.evaluate(() => localStorage.length)).toBe(0);
});

test('dangerous actions want the name typed', async ({ w }) => {
  const page = await w.page({ key: w.keys.admin });
  const { id, name } = await w.api('POST', '/v1/promotions', { name: w.unique('Mistaken'), type: 'POINT', amount: 1 });
  const { key } = await w.api('POST', '/v1/api-keys', { name: 'short lived', role: 'viewer' });
  const confirm = async (text, action) => {
    const act = button(dialog(page), action);
    await expect(act, `${action} works without its name`).toBeDisabled();
    await dialog(page).getByLabel('To confirm').fill(text.slice(0, -1));
    await expect(act, `${action} works with half of its name`).toBeDisabled();
    await dialog(page).getByLabel('To confirm').fill(text);
    await act.click();
    await expect(dialog(page)).toHaveCount(0);
  };
  await w.open(page, `/#/promotions/${id}`);
  await more(page, 'Delete…');
  await confirm(name, 'Delete');
  expect((await w.call('GET', `/v1/promotions/${id}`)).status).toBe(404);
  await w.open(page, '/#/keys');
  await page.getByRole('row', { name: /short lived/ }).getByRole('button', { name: 'revoke' }).click();
  await confirm('short lived', 'Revoke');
  await w.until('the key is refused', () => w.call('GET', '/v1/me', undefined, key), (a) => a.status === 401);
  const endpoint = await w.api('POST', '/v1/webhook-endpoints', { url: 'http://127.0.0.1:9/gone', description: 'old receiver', events: ['promotion.completed'], enabled: false });
  await w.open(page, `/#/webhooks/${endpoint.id}`);
  await page.getByText('Change the receiver').click();
  await page.getByLabel('Payout unclear').check();
  await button(page, 'Save the receiver').click();
  await told(page, 'The receiver is changed.');
  expect((await w.api('GET', `/v1/webhook-endpoints/${endpoint.id}`)).events.toSorted()).toEqual(['payout.unknown', 'promotion.completed']);
  await button(page, 'Delete…').click();
  await confirm('old receiver', 'Delete');
  expect((await w.call('GET', `/v1/webhook-endpoints/${endpoint.id}`)).status).toBe(404);
  const template = await w.api('POST', '/v1/coupon-templates', { name: w.unique('Compared'), totalQuantity: 1 });
  await w.open(page, `/#/coupons/${template.id}`);
  await button(page, 'Compare and repair…').click();
  await confirm('repair', 'Repair');
  await expect(page.getByText('No differences', { exact: true })).toBeVisible();
});

test('lag, leases and an error with its request', async ({ w }) => {
  const page = await w.page({ key: w.keys.admin });
  await w.open(page, '/');
  await page.getByText('Queues and topics', { exact: true }).click();
  await expect(page.getByText('campaign-promotion-point-publish').first()).toBeVisible();
  await w.open(page, '/#/instances');
  await expect(page.getByText(/Counts as crashed at/).first()).toBeVisible();
  await page.context().grantPermissions(['clipboard-read', 'clipboard-write']);
  await w.open(page, '/#/promotions/999');
  const alert = page.getByRole('alert').first();
  const id = await alert.locator('.code').textContent();
  await alert.getByRole('button', { name: 'copy' }).click();
  await expect(alert.getByRole('button', { name: 'copied' })).toBeVisible();
  expect(await page.evaluate(() => navigator.clipboard.readText())).toBe(id);
});
