// Uses the console as people do.
import { badge, button, confirm, dialog, expect, heading, hostile, more, placesOf, test, watchPlaces } from './world.mjs';

test('sign in', async ({ w }) => {
  const page = await w.page();
  const enter = async (key, keep) => {
    await page.getByLabel('Key or token').fill(key);
    if (keep) await page.getByRole('checkbox').check();
    await button(page, 'Sign in').click();
  };
  await page.goto(w.server + '/');
  await enter('lgs_wrong');
  await expect(page.getByRole('alert').getByText('does not accept this key')).toBeVisible();
  await enter(w.keys.viewer);
  await heading(page, 'Which customer?');
  const kept = () => page.evaluate(() => sessionStorage.length + localStorage.length);
  expect(await kept(), 'the key is stored although nobody asked for it').toBe(0);
  await page.reload();
  await enter(w.keys.viewer, true);
  await heading(page, 'Which customer?');
  await page.reload();
  await heading(page, 'Which customer?');
  await button(page, 'Sign out').click();
  await expect(page.getByLabel('Key or token')).toBeVisible();
  expect(await kept(), 'the key is still stored after the user signed out').toBe(0);
});

test('pay a promotion from a file with wrong lines', async ({ w }) => {
  const page = await w.page({ key: w.keys.operator });
  const name = w.unique(`Spring ${hostile}`);
  await w.open(page, '/#/promotions/new');
  await page.getByLabel('Name').fill(name);
  await page.getByLabel('Amount of each target').fill('10.5');
  await page.getByLabel('Currency').fill('EUR');
  await button(page, 'Create the draft').click();
  await heading(page, name);
  const lines = ['targetId,userId', ...Array.from({ length: 50 }, (_, n) => `${n},u${n}`), '7,u7', 'x,u51', '-1,u52'];
  await page.getByLabel('File of targets').setInputFiles({ name: 'targets.csv', mimeType: 'text/csv', buffer: Buffer.from(lines.join('\n')) });
  await expect(page.getByText('50 people, 525.00 EUR in all', { exact: true })).toBeVisible();
  await expect(page.getByText('1 line repeats another and counts once.')).toBeVisible();
  const wrong = page.getByRole('region', { name: 'Lines with mistakes' });
  for (const line of ['53', '54']) await expect(wrong.getByText(`Line ${line}:`)).toBeVisible();
  await button(page, 'Add 50 targets').click();
  await expect(page.getByText('50 targets added, 525.00 EUR in all.')).toBeVisible();
  await button(page, 'Start…').click();
  await expect(page.getByText('Pay 50 targets: 525.00 EUR in all.')).toBeVisible();
  await button(page, 'Pay 50').click();
  await badge(page, 'Completed');
  const id = page.url().split('/').pop();
  const p = await w.api('GET', `/v1/promotions/${id}`);
  expect(p.counts.failed > 0 && p.counts.succeeded + p.counts.failed === 50, JSON.stringify(p.counts)).toBe(true);
  await expect(page.getByText(`${p.counts.succeeded} of 50`)).toBeVisible();
  await page.getByRole('link', { name: 'Details', exact: true }).click();
  await button(page, 'Compare with the provider').click();
  await expect(page.getByText('The books of both sides agree')).toBeVisible();
  await w.accessible(page, page.url());
});

test('a viewer changes nothing', async ({ w }) => {
  const page = await w.page({ key: w.keys.viewer });
  for (const view of w.views.filter((v) => !v.startsWith('/drop') && !v.endsWith('/new'))) {
    await w.open(page, view);
    const offered = await page.locator('main').getByRole('button').allTextContents();
    const links = await page.locator('main').getByRole('link', { name: /^Create/ }).allTextContents();
    expect([...offered, ...links].filter((t) => /…$|^(Create|Add|Revoke|revoke|replay|discard|use|cancel|confirm|resend|it was)/.test(t) && t !== 'Go to…'), `offered to a viewer on ${view}`).toEqual([]);
  }
  const description = await (await fetch(w.server + '/openapi.json')).json();
  let tried = 0;
  for (const [path, item] of Object.entries(description.paths)) {
    for (const [method, operation] of Object.entries(item)) {
      if (method === 'get' || !operation.operationId) continue;
      const kind = Object.keys(operation.requestBody?.content ?? { 'application/json': 0 })[0];
      const answer = await w.call(method.toUpperCase(), path.replaceAll(/\{[^}]*\}/g, '1'), kind === 'application/json' ? '{}' : 'x', w.keys.viewer, kind);
      expect(answer.status, `${method} ${path} by a viewer: ${answer.status} ${await answer.text()}`).toBe(403);
      tried++;
    }
  }
  expect(tried, 'operations that were tried').toBeGreaterThan(30);
});

test('every page is accessible, shows no markup of others, and fits every width', async ({ w }) => {
  const page = await w.page({ key: w.keys.admin });
  const wide = async () => {
    await page.setViewportSize({ width: 1440, height: 900 });
    await page.emulateMedia({ colorScheme: 'light' });
  };
  for (const view of w.views) {
    await wide();
    await w.open(page, view);
    await w.accessible(page, view);
    await page.emulateMedia({ colorScheme: 'dark' });
    await w.accessible(page, `${view}, dark`);
    for (const width of [1440, 1024, 390, 360]) {
      await page.setViewportSize({ width, height: 800 });
      await w.fits(page, view);
    }
  }
  await wide();
  await w.forms(page, async (view, form) => {
    await page.emulateMedia({ colorScheme: 'dark' });
    await w.accessible(page, `${view}, changed, dark`);
    for (const width of [1440, 1024, 390]) {
      await page.setViewportSize({ width, height: 800 });
      await w.formFits(form, view);
    }
    await wide();
  });
});

test('the first load is small', async ({ w }) => {
  const page = await w.page({ key: w.keys.admin });
  await w.open(page, '/');
  const size = await page.evaluate(() => performance.getEntries().filter((e) => e.entryType === 'navigation' || /\/assets\//.test(e.name)).reduce((sum, e) => sum + e.encodedBodySize, 0));
  expect(size > 20_000 && size <= 250_000, `${size} bytes are loaded, want at most 250,000`).toBe(true);
});

test('steer a running promotion', async ({ w }) => {
  const id = await w.promotion({ name: w.unique('Steered'), ratePerSecond: 1 }, 60, w.keys.operator);
  const page = await w.page({ key: w.keys.operator });
  await w.open(page, `/#/promotions/${id}`);
  await button(page, 'Start…').click();
  await confirm(page, 'Pay 60');
  await badge(page, 'Running');
  await button(page, 'Pause…').click();
  await confirm(page, 'Pause');
  await badge(page, 'Paused');
  const before = await w.api('GET', `/v1/promotions/${id}`);
  expect(before.counts.succeeded + before.counts.failed < 60, 'it was paid before it was paused').toBe(true);
  await more(page, 'Rate…');
  await confirm(page, 'Change', { 'Calls per second': '1,000' });
  await expect(page.getByText('at most 1,000 per second', { exact: true })).toBeVisible();
  await button(page, 'Resume…').click();
  await confirm(page, 'Resume');
  await badge(page, 'Completed');
});

test('retry what failed, for one cause', async ({ w }) => {
  const page = await w.page({ key: w.keys.operator });
  await w.open(page, `/#/promotions/${w.paid}`);
  const causes = page.getByRole('region', { name: 'Failures by cause' });
  await causes.getByRole('link').first().click();
  await expect(page.locator('.rows tbody').getByText('Failed', { exact: true }).first()).toBeVisible();
  await expect(page).toHaveURL(/state=FAILED&code=/);
  await button(page, 'Retry failed…').click();
  await confirm(page, 'Retry');
  await expect(page.getByText(/payouts? will be tried again\./)).toBeVisible();
  await badge(page, 'Completed');
});

test('resolve an unknown payout', async ({ w }) => {
  const page = await w.page({ key: w.keys.operator });
  await w.open(page, '/#/unknown');
  const row = page.getByRole('row').nth(1);
  const [promotion, target] = await row.getByRole('cell').allTextContents();
  await row.getByRole('button', { name: 'it was paid' }).click();
  await confirm(page, 'Settle it', { 'How you know': 'The provider said so.', 'Transaction key': 'T-1' });
  const p = await w.api('GET', `/v1/promotions/${promotion}/payouts/${target}`);
  expect(p.state).toBe('SUCCEEDED');
  await expect.poll(async () => (await row.getByRole('cell').allTextContents()).slice(0, 2)).not.toEqual([promotion, target]);
});

test('approve as a second person', async ({ w }) => {
  const name = w.unique('Dear');
  const id = await w.promotion({ name, amount: 1_000_000 }, 3, w.keys.operator);
  const approve = async (page) => {
    await button(page, 'Approve…').click();
    await expect(dialog(page).getByText('3 targets, 30,000.00 EUR in all')).toBeVisible();
    await button(dialog(page), 'Approve').click();
  };
  const maker = await w.page({ key: w.keys.operator });
  await w.open(maker, `/#/promotions/${id}`);
  await approve(maker);
  await expect(dialog(maker).getByRole('alert')).toBeVisible();
  expect((await w.api('GET', `/v1/promotions/${id}`)).awaitingApproval, 'who made it has approved it').toBe(true);
  const second = await w.page({ key: w.keys.second });
  await w.open(second, '/#/approvals');
  await second.getByRole('article', { name }).getByRole('button', { name: 'Yes, pay 3…' }).click();
  await expect(dialog(second).getByText('3 targets, 30,000.00 EUR in all')).toBeVisible();
  await confirm(second, 'Approve');
  await w.open(second, `/#/promotions/${id}`);
  await button(second, 'Start…').click();
  await expect(button(dialog(second), 'Pay 3'), 'a large sum is one click').toBeDisabled();
  await confirm(second, 'Pay 3', { 'To confirm': '30000.00' });
  await badge(second, 'Completed');
});

test('an approved schedule starts earlier only with another approval', async ({ w }) => {
  const id = await w.promotion({ name: w.unique('Early'), amount: 1_000_000, startsAt: '2099-05-06T10:00:00Z' }, 3, w.keys.operator);
  const second = await w.page({ key: w.keys.second });
  const approve = async () => {
    await w.open(second, `/#/approvals/${id}`);
    await second.getByRole('button', { name: 'Yes, pay 3…' }).click();
  };
  await approve();
  await expect(dialog(second).getByText(/It then starts at .*2099/)).toBeVisible();
  await confirm(second, 'Approve');
  const maker = await w.page({ key: w.keys.operator });
  await w.open(maker, `/#/promotions/${id}`);
  await button(maker, 'Start now…').click();
  await expect(dialog(maker).getByText(/approved a start at .*2099/)).toBeVisible();
  await confirm(maker, 'Remove the time and ask');
  await expect(maker.getByText('Asked. Start it once it is approved.')).toBeVisible();
  const p = await w.api('GET', `/v1/promotions/${id}`);
  expect([p.status, p.awaitingApproval, p.approvalAsked, p.startsAt]).toEqual(['DRAFT', true, true, undefined]);
  await expect(maker.getByText('Others were asked to approve it. Then you can start it.')).toBeVisible();
  await approve();
  await expect(dialog(second).getByText('Nothing is paid by the approval: somebody starts it.')).toBeVisible();
  await confirm(second, 'Approve');
  await button(maker, 'Start…').click();
  await confirm(maker, 'Pay 3', { 'To confirm': '30000.00' });
  await badge(maker, 'Completed');
});

test('approve the quantity of a template as a second person', async ({ w }) => {
  const name = w.unique('Many');
  const maker = await w.page({ key: w.keys.operator });
  await w.open(maker, '/#/coupons/new');
  await maker.getByLabel('Name', { exact: true }).fill(name);
  await maker.getByLabel('How many coupons').fill('200000');
  await maker.getByRole('button', { name: /^Create with/ }).click();
  await expect(maker.getByText('Its quantity is 100,000 until another person approves 200,000.')).toBeVisible();
  const second = await w.page({ key: w.keys.second });
  await w.open(second, '/#/approvals');
  await second.getByRole('link', { name, exact: true }).click();
  await button(second, 'Approve…').click();
  await confirm(second, 'Approve');
  await expect(second.getByText('of 200,000')).toBeVisible();
});

test('a drop with 200 people, ten of them in tabs', async ({ w }) => {
  const { id } = await w.api('POST', '/v1/coupon-templates', { name: w.unique('Rush'), totalQuantity: 100, opensAt: new Date(Date.now() + 15_000).toISOString() });
  const tabs = [];
  for (let n = 0; n < 10; n++) {
    const page = await w.page({ key: w.keys.issuer });
    await page.addInitScript(watchPlaces);
    await w.open(page, `/drop/${id}?user=tab-${n}`);
    tabs.push(page);
  }
  const asked = tabs.map((page) => button(page, 'Get your coupon').click()); // each waits for the opening
  const crowd = (n) => w.call('POST', `/v1/coupons/${id}/issue`, { userId: `crowd-${n}` });
  await w.until('it opens', () => crowd(0), (a) => a.ok); // a tab knows the server's time to a second only
  const others = Array.from({ length: 189 }, (_, n) => crowd(n + 1));
  const statuses = (await Promise.all(others)).map((a) => a.status);
  expect([...new Set(statuses)].filter((s) => ![201, 202, 409].includes(s)), 'answers to the crowd').toEqual([]);
  await Promise.all(asked);
  let mine = 0;
  for (const [n, page] of tabs.entries()) {
    const yes = page.getByText('It is yours');
    await expect(yes.or(page.getByText('Sold out'))).toBeVisible();
    const coupons = await w.api('GET', `/v1/users/tab-${n}/coupons`);
    expect(await yes.count(), `tab ${n} says something else than the server`).toBe(coupons.items.filter((c) => c.templateId === id).length);
    mine += await yes.count();
    await placesOf(page, n);
  }
  const t = await w.until('all coupons are issued', () => w.api('GET', `/v1/coupon-templates/${id}`), (x) => x.counters.waiting === 0 && x.counters.issuedTotal === 100);
  expect(t.counters.count).toBe(100);
  expect(mine).toBeLessThanOrEqual(10);
  await tabs[0].reload();
  await expect(tabs[0].getByText('It is yours').or(tabs[0].getByText('Get your coupon')).first()).toBeVisible();
});

test('a held coupon is confirmed, or goes to the next', async ({ w }) => {
  const { id } = await w.api('POST', '/v1/coupon-templates', { name: w.unique('Held'), totalQuantity: 1, holdSeconds: 10 });
  const first = await w.page({ key: w.keys.issuer });
  await w.open(first, `/drop/${id}?user=slow`);
  await button(first, 'Get your coupon').click();
  await expect(first.getByText('It is held for you')).toBeVisible();
  await expect(first.getByText('The time to confirm is over')).toBeVisible();
  const second = await w.page({ key: w.keys.issuer });
  await w.open(second, `/drop/${id}?user=quick`);
  await button(second, 'Get your coupon').click();
  await button(second, 'Confirm').click();
  await expect(second.getByText('It is yours')).toBeVisible();
  const { items } = await w.api('GET', '/v1/users/quick/coupons');
  expect(items[0].status).toBe('ISSUED');
});

test('cancel a coupon', async ({ w }) => {
  const { id } = await w.api('POST', '/v1/coupon-templates', { name: w.unique('Cancelled'), totalQuantity: 3 });
  const asked = await fetch(`${w.server}/v1/coupons/${id}/issue`, { method: 'POST', headers: { Authorization: `Bearer ${w.keys.issuer}`, 'Content-Type': 'application/json', Prefer: 'wait=20' }, body: '{"userId":"u1"}' });
  expect(asked.status).toBe(201);
  const page = await w.page({ key: w.keys.operator });
  await w.open(page, `/#/coupons/${id}`);
  await button(page, 'cancel').click();
  await confirm(page, 'Cancel');
  await expect(page.getByRole('cell').getByText('Cancelled', { exact: true })).toBeVisible();
  await expect(page.getByText('3', { exact: true }).first()).toBeVisible();
});

test('replay and discard dead letters', async ({ w }) => {
  const page = await w.page({ key: w.keys.operator });
  await w.open(page, '/#/dead-letters');
  await button(page, 'show').first().click();
  await expect(page.locator('pre').getByText('window.hacked').first()).toBeVisible();
  await w.accessible(page, '/#/dead-letters, opened');
  await button(page, 'discard').last().click();
  await confirm(page, 'Discard');
  await expect(page.getByText(/Record \d+ discarded\./)).toBeVisible();
  await button(page, 'replay').first().click();
  await confirm(page, 'Replay');
  await expect(page.getByText(/Record \d+ replayed\./)).toBeVisible();
});

test('a receiver of webhooks, and a delivery again', async ({ w }) => {
  const got = [];
  const receiver = await w.listen((request, answer) => {
    got.push(request.headers['webhook-id']);
    request.resume().on('end', () => answer.end());
  });
  const page = await w.page({ key: w.keys.admin });
  await w.open(page, '/#/webhooks');
  await page.getByText('Add a receiver').click();
  await page.getByLabel('Another system').check();
  await page.getByLabel('Address').fill(`${receiver}/hook`);
  await page.getByLabel('Description').fill('my receiver');
  await button(page, 'Add the receiver').click();
  await expect(page.getByText(/^whsec_/)).toBeVisible();
  await page.getByRole('link', { name: 'my receiver' }).click();
  await button(page, 'Send a test…').click();
  await confirm(page, 'Send');
  await w.until('the test arrives', () => got.length, (n) => n >= 1);
  await page.getByRole('region', { name: 'Deliveries' }).getByRole('button', { name: 'resend' }).first().click();
  await w.until('it arrives again', () => got.length, (n) => n >= 2);
  expect(got[1], 'the message has another id').toBe(got[0]);
});

test('a channel of Slack is told in Korean', async ({ w }) => {
  const got = [];
  const channel = await w.listen((request, answer) => {
    let body = '';
    request.on('data', (part) => (body += part)).on('end', () => { got.push(body); answer.end('ok'); });
  });
  const page = await w.page({ key: w.keys.admin });
  await w.open(page, '/#/webhooks');
  await page.getByText('Add a receiver').click();
  await page.getByLabel('A Slack channel').check();
  await page.getByLabel('Address').fill(`${channel}/services/T1`);
  await page.getByLabel('Language of the messages').selectOption('한국어');
  await page.getByLabel('Description').fill('the team');
  await expect(page.getByLabel('Payout failed'), 'Slack gets a message for each payout').toHaveCount(0);
  await page.getByLabel('Books do not balance').uncheck();
  await button(page, 'Add the receiver').click();
  await expect(page.getByText('The receiver is added.').first()).toBeVisible();
  await page.getByRole('link', { name: 'the team' }).click();
  await expect(page.getByText(/, 한국어$/)).toBeVisible();
  await expect(button(page, 'Replace the secret…'), 'Slack has a secret').toHaveCount(0);
  await button(page, 'Send a test…').click();
  await confirm(page, 'Send');
  await w.until('the channel is told', () => got.length, (n) => n >= 1);
  expect(got[0]).toMatch(/[가-힣]/);
});

test('the buttons of the demo', async ({ w }) => {
  const page = await w.page({ key: w.keys.admin });
  await w.open(page, '/');
  expect((await w.call('GET', '/demo')).status, 'an instance has the controls of the demo').toBe(404);
  await expect(page.getByRole('complementary', { name: 'Demo' })).toHaveCount(0);
  const demo = await w.demo('--targets', '400', '--shoppers', '20', '--coupons', '3');
  await w.open(page, '/', demo.server);
  const bar = page.getByRole('complementary', { name: 'Demo' });
  await button(bar, 'Break the provider').click();
  await expect(button(bar, 'Repair the provider')).toBeVisible();
  await button(bar, 'Add 100 people').click();
  await expect(page.getByText('100 people will be paid.')).toBeVisible();
  await w.accessible(page, 'the demo');
  await w.until('the instance is killed', async () => { // it refuses while it publishes
    await button(bar, 'Kill the instance').click({ timeout: 1000 }).catch(() => {}); // a click that came late finds no button
    return button(bar, 'Start the instance').count();
  }, (n) => n === 1);
  await expect(page.getByRole('status').getByText(/^As of/).first()).toBeVisible();
  await page.reload();
  await expect(page.getByText('The server does not answer.')).toBeVisible();
  await button(bar, 'Start the instance').click();
  await expect(page.getByRole('heading', { name: 'Operations today' })).toBeVisible();
  await button(bar, 'Repair the provider').click();
  await expect(button(bar, 'Break the provider')).toBeVisible();
  const said = await w.until('the books are closed', () => demo.said, (text) => text.includes('The server keeps running') && text.includes('more people 1: nothing else was charged'));
  expect(said).not.toContain('BROKEN');
});

test('a role that may not read is told so', async ({ w }) => {
  const page = await w.page({ key: w.keys.issuer });
  for (const view of ['/#/overview', '/#/promotions', '/#/audit']) {
    await w.open(page, view);
    await expect(page.getByText('Your role, issuer, may not use this page')).toBeVisible();
  }
});

test('every flow starts from the keyboard', async ({ w }) => {
  const page = await w.page({ key: w.keys.operator });
  await w.open(page, '/');
  await page.keyboard.press('Control+k');
  await page.keyboard.type('s');
  await expect(page.getByRole('option', { name: /promotion \d+/ }).first()).toBeVisible();
  const unanswered = '**/v1/promotions?*'; // so what was found for s is all that is known
  await page.route(unanswered, () => {});
  await page.getByRole('combobox', { name: 'Go to' }).fill('create a promotion');
  await page.keyboard.press('Enter');
  await expect(page.getByRole('heading', { name: 'Create a promotion' })).toBeVisible();
  await page.unroute(unanswered);
  await page.getByLabel('Name').focus();
  await page.keyboard.type('By keyboard');
  await page.keyboard.press('Enter');
  await heading(page, 'By keyboard');
});
