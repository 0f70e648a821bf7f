// Each role starts with its own job: campaigns, approvals, support, operations.
import { button, confirm, expect, heading, test } from './world.mjs';

const starts = {
  viewer: { en: ['Which customer?', ['Campaigns', 'Support']], ko: ['어떤 고객인가요?', ['캠페인', '고객 지원']] },
  issuer: { en: ['Which customer?', ['Campaigns', 'Support']], ko: ['어떤 고객인가요?', ['캠페인', '고객 지원']] },
  campaigner: { en: ['My campaigns', ['Campaigns', 'Support']], ko: ['내 캠페인', ['캠페인', '고객 지원']] },
  approver: { en: ['Waiting for you', ['Campaigns', 'Support']], ko: ['승인 대기', ['캠페인', '고객 지원']] },
  operator: { en: ['Operations today', ['Campaigns', 'Support', 'Operations', 'Administration']], ko: ['오늘의 운영 현황', ['캠페인', '고객 지원', '운영', '관리']] },
  admin: { en: ['Operations today', ['Campaigns', 'Support', 'Operations', 'Administration']], ko: ['오늘의 운영 현황', ['캠페인', '고객 지원', '운영', '관리']] },
};

for (const [role, languages] of Object.entries(starts)) {
  test(`${role} starts with their job, in both languages`, async ({ w }) => {
    const page = await w.page({ key: w.keys[role] });
    for (const [language, [title, groups]] of Object.entries(languages)) {
      await page.setViewportSize({ width: 1440, height: 900 });
      await w.open(page, `/?lang=${language}`);
      await heading(page, title);
      const lists = page.getByRole('navigation').getByRole('list');
      await expect(lists, `groups of ${role}`).toHaveCount(groups.length);
      for (const name of groups) await expect(page.getByRole('list', { name, exact: true })).toBeVisible();
      for (const width of [1440, 390]) {
        await page.setViewportSize({ width, height: 844 });
        await w.accessible(page, `the start of ${role} in ${language} at ${width}`);
        await w.fits(page, `the start of ${role} in ${language}`);
      }
    }
  });
}

test('somebody with several jobs chooses where to start', async ({ w }) => {
  const page = await w.page({ key: w.keys.operator });
  await w.open(page, '/');
  await page.getByLabel('Start page').selectOption({ label: 'My campaigns' });
  await w.open(page, '/');
  await heading(page, 'My campaigns');
  await page.getByLabel('Those of everybody').check();
  await expect(page).toHaveURL(/of=all/);
  await expect(page.getByRole('region', { name: 'Drafts' }).getByRole('link', { name: 'A draft', exact: true })).toBeVisible();
  await w.accessible(page, 'the campaigns of everybody');
});

test('a campaign that was paused needs a decision', async ({ w }) => {
  const id = await w.promotion({ name: w.unique('Slow'), ratePerSecond: 1 }, 60, w.keys.operator);
  await w.api('POST', `/v1/promotions/${id}/start`, undefined, w.keys.operator);
  const { name } = await w.api('GET', `/v1/promotions/${id}`);
  const page = await w.page({ key: w.keys.operator });
  await w.open(page, '/#/campaigns');
  await expect(page.getByRole('region', { name: 'Running' }).getByRole('link', { name, exact: true })).toBeVisible();
  await w.api('POST', `/v1/promotions/${id}/pause`, undefined, w.keys.second);
  const needs = page.getByRole('region', { name: 'Needs a decision' }).getByRole('listitem').filter({ hasText: name });
  await expect(needs).toContainText('Paused by');
  await expect(page.getByRole('region', { name: 'Running' }).getByRole('link', { name, exact: true })).toHaveCount(0);
  await needs.getByRole('link', { name: 'Look at it' }).click();
  await heading(page, name);
  await w.api('POST', `/v1/promotions/${id}/cancel`);
});

test('decide on a phone, and see what changed since', async ({ w }) => {
  const name = w.unique('Dear');
  const id = await w.promotion({ name, amount: 1_000_000, maxAmount: 4_000_000 }, 3, w.keys.operator);
  const maker = await w.page({ key: w.keys.operator });
  await w.open(maker, `/#/approvals/${id}`);
  await expect(maker.getByText('You created it or added people, so somebody else decides.')).toBeVisible();
  await expect(maker.getByRole('button', { name: /^(Yes|No)/ })).toHaveCount(0);

  const second = await w.page({ key: w.keys.second, width: 390 });
  await w.open(second, '/#/approvals');
  const decision = second.getByRole('article', { name });
  for (const text of ['30,000.00 EUR', '3 people, 10,000.00 EUR each', '40,000.00 EUR', '3 lines, 30,000.00 EUR', 'user-1']) await expect(decision.getByText(text).first()).toBeVisible();
  await w.accessible(second, 'a decision on a phone');
  await w.fits(second, 'a decision on a phone');
  await w.api('PATCH', `/v1/promotions/${id}`, { maxAmount: 5_000_000 }, w.keys.operator);
  await w.open(second, `/#/approvals/${id}`);
  await expect(second.getByText('Budget: 40,000.00 EUR → 50,000.00 EUR')).toBeVisible();
  await button(second, 'No…').click();
  await confirm(second, 'Reject', { Reason: 'Too much' });
  await expect(second.getByText(/^Rejected by .*: Too much/)).toBeVisible();
  const p = await w.api('GET', `/v1/promotions/${id}`);
  expect([p.rejectReason, p.awaitingApproval]).toEqual(['Too much', false]);
  await w.open(maker, '/#/campaigns');
  await expect(maker.getByRole('region', { name: 'Needs a decision' }).getByText(/Rejected by .*: Too much/)).toBeVisible();
});

test('five complaints are answered from the search box', async ({ w }) => {
  const page = await w.page({ key: w.keys.viewer });
  await page.context().grantPermissions(['clipboard-read', 'clipboard-write']);
  const ask = async (text) => {
    await w.open(page, '/');
    await page.getByRole('searchbox').fill(text);
    await page.keyboard.press('Enter');
  };
  const got = page.getByRole('region', { name: 'What they got' });
  const message = page.getByRole('region', { name: 'Tell the customer' });

  // I did not get my points.
  const refused = (await w.api('GET', `/v1/promotions/${w.paid}/payouts?state=FAILED&limit=1`)).items[0];
  await ask(refused.userId);
  await expect(got.getByText(/not paid, because the provider refused it\. Reason: ./).first()).toBeVisible();
  await expect(page.getByRole('listitem').filter({ hasText: 'Failed' }).filter({ has: page.locator(`a[href$="/promotions/${w.paid}/payouts/${refused.targetId}"]`) }), 'a refusal is one event').toHaveCount(1);
  await expect(message.getByText(/Reason: /)).toHaveCount(0);
  await got.getByRole('listitem').filter({ hasText: 'the provider refused it' }).first().getByRole('button', { name: 'Tell the customer' }).click(); // other tests pay them, too
  await message.getByLabel('Tell the customer the reason, too').check();
  await expect(message.getByText(`Reason: ${refused.errorMessage}`)).toBeVisible();

  // Was I paid twice? And: it says paid, but my balance has nothing.
  const phone = `+8210${Math.random().toString().slice(2, 10)}`;
  const twice = await w.api('POST', '/v1/promotions', { name: w.unique('Twice'), type: 'POINT', amount: 500, currency: 'KRW' });
  await w.api('POST', `/v1/promotions/${twice.id}/targets`, `targetId,userId\n41,${phone}\n42,${phone}\n`, w.token, 'text/csv');
  await w.api('POST', `/v1/promotions/${twice.id}/start`);
  await w.until('both are decided', () => w.api('GET', `/v1/promotions/${twice.id}`), (p) => p.status === 'COMPLETED');
  await ask(phone.replace('+82', '+82 '));
  await heading(page, `Customer ${phone}`);
  const { payouts } = await w.api('GET', `/v1/users/${encodeURIComponent(phone)}/history`);
  const paid = payouts.filter((p) => p.state === 'SUCCEEDED');
  for (const p of paid) await expect(got.getByText(p.transactionKey, { exact: true })).toBeVisible();
  await expect(got.getByText(`${twice.name}: paid 2 times`), 'it says so if both were paid').toHaveCount(paid.length === 2 ? 1 : 0);

  // My coupon code does not work.
  const { id, name } = await w.api('POST', '/v1/coupon-templates', { name: w.unique('Used'), totalQuantity: 1 });
  await fetch(`${w.server}/v1/coupons/${id}/issue`, { method: 'POST', headers: { Authorization: `Bearer ${w.token}`, 'Content-Type': 'application/json', Prefer: 'wait=20' }, body: '{"userId":"till"}' });
  const coupon = (await w.api('GET', '/v1/users/till/coupons')).items.find((c) => c.templateId === id);
  await w.api('POST', `/v1/coupons/${coupon.id}/use`);
  await ask(coupon.code);
  await heading(page, 'Customer till');
  await expect(message.getByText(new RegExp(`of “${name}” was used on .*cannot be used again`))).toBeVisible();
  await w.accessible(page, 'an answer');
  await message.getByRole('button', { name: '한국어' }).click();
  await expect(message.getByText(new RegExp(`“${name}” 행사의 쿠폰.*이미 사용되어`))).toBeVisible();
  await heading(page, 'Customer till'); // the page itself stays as it was
  await button(message, 'Copy the text').click();
  expect(await page.evaluate(() => navigator.clipboard.readText())).toContain('이미 사용되어');

  // My coupon was cancelled. May I have another?
  const cancelled = await w.api('POST', '/v1/coupon-templates', { name: w.unique('Cancelled'), totalQuantity: 1 });
  await fetch(`${w.server}/v1/coupons/${cancelled.id}/issue`, { method: 'POST', headers: { Authorization: `Bearer ${w.token}`, 'Content-Type': 'application/json', Prefer: 'wait=20' }, body: '{"userId":"again"}' });
  const gone = (await w.api('GET', '/v1/users/again/coupons')).items.find((c) => c.templateId === cancelled.id);
  await w.api('POST', `/v1/coupons/${gone.id}/cancel`);
  await ask('again');
  await expect(got.getByText('This coupon cannot be used again. The customer may try to request another, as long as any are left.')).toBeVisible();
  await expect(message.getByText(/can no longer be used.* You may try to request another one/)).toBeVisible();
  await w.api('PATCH', `/v1/coupon-templates/${cancelled.id}`, { reissueAfterCancel: false });
  await ask('again');
  await expect(got.getByText(/may not request another: in this drop, cancelled coupons count/)).toBeVisible();
  await expect(message.getByText(/request another/), 'it depends on the setting of then').toHaveCount(0);
  await w.api('POST', `/v1/coupon-templates/${cancelled.id}/close`);
  await ask('again');
  await expect(got.getByText(/may not request another: the drop has closed/)).toBeVisible();
  await expect(message.getByText(/It is not possible to request another one/)).toBeVisible();

  // What finds nobody is no answer about a customer, unless somebody says that it is their number.
  await ask('TX-4711');
  await expect(got.getByText(/^Customers are found by their number/)).toBeVisible();
  await expect(message).toHaveCount(0);
  await w.accessible(page, 'nobody is found');
  await button(got, 'It is the number of the customer: show what to tell them').click();
  await expect(message.getByText(/no coupon under the customer number TX-4711/)).toBeVisible();

  // I waited in line and got nothing: nobody is refused after they got a place, so they asked when all were gone.
  await w.until('it is sold out', () => w.call('POST', `/v1/coupons/${id}/issue`, { userId: 'after' }), (a) => a.status === 409);
  await w.until('that is noted', () => w.api('GET', `/v1/users/after/history?templateId=${id}`), (h) => h.refusals.length > 0);
  await ask('after');
  await expect(got.getByText('Nothing is recorded under “after”')).toBeVisible();
  await button(page, name).click();
  await expect(message.getByText(new RegExp(`those who asked for “${name}”`)), 'the language is that of the customer before').toBeVisible();
  await message.getByRole('button', { name: '한국어' }).click();
  await expect(message.getByText(new RegExp(`“${name}”.*먼저 신청하신 분들께 모두 소진되었습니다`))).toBeVisible();
});

test('what may already be paid is red', async ({ w }) => {
  const page = await w.page({ key: w.keys.viewer, width: 390 });
  const { userId } = (await w.api('GET', '/v1/payouts?limit=1')).items[0];
  await w.open(page, `/#/people/${encodeURIComponent(userId)}`);
  await expect(page.getByText('May already be paid: do not pay by hand.').first()).toHaveClass(/text-danger/);
  await w.accessible(page, 'an unclear payout');
  await w.fits(page, 'an unclear payout');
});

test('on a phone, rows of tables are blocks', async ({ w }) => {
  const page = await w.page({ key: w.keys.admin, width: 390 });
  for (const view of ['promotions', 'coupons', 'unknown', 'audit', 'webhooks', 'keys', 'settings']) {
    await w.open(page, `/#/${view}`);
    const over = await page.locator('.stacked').evaluateAll((boxes) => boxes.map((b) => b.scrollWidth - b.clientWidth).filter((n) => n > 0));
    expect(over, `pixels that ${view} scrolls sideways`).toEqual([]);
  }
  const cell = page.locator('.stacked td').nth(1);
  expect(await cell.evaluate((c) => getComputedStyle(c, '::before').content), 'a cell does not name its column').toContain('"');
});
