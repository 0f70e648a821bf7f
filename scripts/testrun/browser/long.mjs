// What is tried in the long run, besides what is tried in every run.
import assert from 'node:assert/strict';
import { createServer } from 'node:http';
import { schemes } from './world.mjs';

const button = (page, name) => page.getByRole('button', { name, exact: true });
const dialog = (page) => page.getByRole('dialog');
const badge = (page, text) => page.locator('h1 + span').getByText(text, { exact: true }).waitFor();

/** confirm answers the question of a dialog, and waits until it is done. */
async function confirm(page, name, fields = {}) {
  for (const [label, text] of Object.entries(fields)) await dialog(page).getByLabel(label).fill(text);
  await dialog(page).getByRole('button', { name, exact: true }).click();
  await dialog(page).waitFor({ state: 'detached' });
}

export const long = {
  async 'steer a running promotion'(w) {
    const id = await w.promotion({ name: w.unique('Steered'), ratePerSecond: 1 }, 60, w.keys.operator);
    const page = await w.page({ key: w.keys.operator });
    await w.open(page, `/#/promotions/${id}`);
    await button(page, 'Start…').click();
    await confirm(page, 'Pay 60');
    await badge(page, 'running');
    await button(page, 'Pause…').click();
    await confirm(page, 'Pause');
    await badge(page, 'paused');
    const before = await w.api('GET', `/v1/promotions/${id}`);
    assert.ok(before.counts.succeeded + before.counts.failed < 60, 'it was paid before it was paused');
    await button(page, 'Rate…').click();
    await confirm(page, 'Change', { 'Calls per second': '1,000' });
    await page.getByText('at most 1,000 per second', { exact: true }).waitFor();
    await button(page, 'Resume…').click();
    await confirm(page, 'Resume');
    await badge(page, 'completed');
  },

  async 'retry what failed, for one cause'(w) {
    const page = await w.page({ key: w.keys.operator });
    await w.open(page, `/#/promotions/${w.paid}`);
    const causes = page.getByRole('region', { name: 'Failures by cause' });
    await causes.getByRole('link').first().click();
    await page.getByText('failed', { exact: true }).first().waitFor();
    assert.match(page.url(), /state=FAILED&code=/);
    await button(page, 'Retry failed…').click();
    await confirm(page, 'Retry');
    await page.getByText(/payouts? will be tried again\./).waitFor();
    await badge(page, 'completed');
  },

  async 'resolve an unknown payout'(w) {
    const page = await w.page({ key: w.keys.operator });
    await w.open(page, '/#/unknown');
    const row = page.getByRole('row').nth(1);
    const [promotion, target] = await row.getByRole('cell').allTextContents();
    await row.getByRole('button', { name: 'it was paid' }).click();
    await confirm(page, 'Settle it', { 'How you know': 'The provider said so.', 'Transaction key': 'T-1' });
    const p = await w.api('GET', `/v1/promotions/${promotion}/payouts/${target}`);
    assert.equal(p.state, 'SUCCEEDED');
    assert.notDeepEqual((await page.getByRole('row').nth(1).getByRole('cell').allTextContents()).slice(0, 2), [promotion, target]);
  },

  async 'approve as a second person'(w) {
    const name = w.unique('Dear');
    const id = await w.promotion({ name, amount: 1_000_000 }, 3, w.keys.operator);
    const approve = async (page) => {
      await button(page, 'Approve…').click();
      await dialog(page).getByText('3 targets, 3,000,000 EUR in all').waitFor();
      await dialog(page).getByRole('button', { name: 'Approve', exact: true }).click();
    };
    const maker = await w.page({ key: w.keys.operator });
    await w.open(maker, `/#/promotions/${id}`);
    await approve(maker);
    await dialog(maker).getByRole('alert').waitFor();
    assert.ok((await w.api('GET', `/v1/promotions/${id}`)).awaitingApproval, 'who made it has approved it');
    const second = await w.page({ key: w.keys.second });
    await w.open(second, '/#/approvals');
    await second.getByRole('link', { name, exact: true }).click();
    await approve(second);
    await button(second, 'Start…').click();
    await confirm(second, 'Pay 3');
    await badge(second, 'completed');
  },

  async 'a drop with 200 people, ten of them in tabs'(w) {
    const { id } = await w.api('POST', '/v1/coupon-templates', { name: w.unique('Rush'), totalQuantity: 100, opensAt: new Date(Date.now() + 15_000).toISOString() });
    const tabs = [];
    for (let n = 0; n < 10; n++) {
      const page = await w.page({ key: w.keys.issuer });
      await page.addInitScript(() => {
        globalThis.places = [];
        addEventListener('DOMContentLoaded', () => new MutationObserver(() => {
          const place = document.querySelector('[aria-live] .text-6xl')?.textContent;
          if (place && globalThis.places.at(-1) !== place) globalThis.places.push(place);
        }).observe(document, { subtree: true, childList: true, characterData: true }));
      });
      await w.open(page, `/drop/${id}?user=tab-${n}`);
      tabs.push(page);
    }
    const asked = tabs.map((page) => button(page, 'Get your coupon').click()); // each waits for the opening
    await button(tabs[0], 'Get your coupon').or(tabs[0].getByText('It is yours')).waitFor();
    const others = Array.from({ length: 190 }, (_, n) => w.call('POST', `/v1/coupons/${id}/issue`, { userId: `crowd-${n}` }));
    const statuses = (await Promise.all(others)).map((a) => a.status);
    assert.deepEqual([...new Set(statuses)].filter((s) => ![201, 202, 409].includes(s)), [], 'answers to the crowd');
    await Promise.all(asked);
    let mine = 0;
    for (const [n, page] of tabs.entries()) {
      const yes = page.getByText('It is yours');
      await yes.or(page.getByText('Sold out')).waitFor();
      const coupons = await w.api('GET', `/v1/users/tab-${n}/coupons`);
      assert.equal(await yes.count(), coupons.items.filter((c) => c.templateId === id).length, `tab ${n} says something else than the server`);
      mine += await yes.count();
      const places = (await page.evaluate(() => globalThis.places)).map((p) => Number(p.replaceAll(',', '')));
      assert.deepEqual(places, places.toSorted((a, b) => b - a), `the place of tab ${n} went backwards`);
    }
    const t = await w.until('all coupons are issued', () => w.api('GET', `/v1/coupon-templates/${id}`), (x) => x.counters.waiting === 0 && x.counters.issuedTotal === 100);
    assert.equal(t.counters.count, 100);
    assert.ok(mine <= 10);
    await tabs[0].reload();
    await tabs[0].getByText('It is yours').or(tabs[0].getByText('Get your coupon')).first().waitFor();
  },

  async 'a held coupon is confirmed, or goes to the next'(w) {
    const { id } = await w.api('POST', '/v1/coupon-templates', { name: w.unique('Held'), totalQuantity: 1, holdSeconds: 5 });
    const first = await w.page({ key: w.keys.issuer });
    await w.open(first, `/drop/${id}?user=slow`);
    await button(first, 'Get your coupon').click();
    await first.getByText('It is held for you').waitFor();
    await first.getByText('The time to confirm is over').waitFor();
    const second = await w.page({ key: w.keys.issuer });
    await w.open(second, `/drop/${id}?user=quick`);
    await button(second, 'Get your coupon').click();
    await button(second, 'Confirm').click();
    await second.getByText('It is yours').waitFor();
    const { items } = await w.api('GET', '/v1/users/quick/coupons');
    assert.equal(items[0].status, 'ISSUED');
  },

  async 'cancel a coupon'(w) {
    const { id } = await w.api('POST', '/v1/coupon-templates', { name: w.unique('Cancelled'), totalQuantity: 3 });
    const asked = await fetch(`${w.server}/v1/coupons/${id}/issue`, { method: 'POST', headers: { Authorization: `Bearer ${w.keys.issuer}`, 'Content-Type': 'application/json', Prefer: 'wait=20' }, body: '{"userId":"u1"}' });
    assert.equal(asked.status, 201);
    const page = await w.page({ key: w.keys.operator });
    await w.open(page, `/#/coupons/${id}`);
    await button(page, 'cancel').click();
    await confirm(page, 'Cancel');
    await page.getByRole('cell').getByText('cancelled', { exact: true }).waitFor();
    await page.getByText('3', { exact: true }).first().waitFor();
  },

  async 'replay and discard dead letters'(w) {
    const page = await w.page({ key: w.keys.operator });
    await w.open(page, '/#/dead-letters');
    await button(page, 'show').first().click();
    await page.locator('pre').getByText('window.hacked').first().waitFor();
    await w.accessible(page, '/#/dead-letters, opened');
    await button(page, 'discard').last().click();
    await confirm(page, 'Discard');
    await page.getByText(/Message \d+ discarded\./).waitFor();
    await button(page, 'replay').first().click();
    await confirm(page, 'Replay');
    await page.getByText(/Message \d+ replayed\./).waitFor();
  },

  async 'a receiver of webhooks, and a delivery again'(w) {
    const got = [];
    const receiver = createServer((request, answer) => {
      got.push(request.headers['webhook-id']);
      request.resume().on('end', () => answer.end());
    });
    await new Promise((up) => receiver.listen(0, '127.0.0.1', up));
    try {
      const page = await w.page({ key: w.keys.admin });
      await w.open(page, '/#/webhooks');
      await page.getByText('Add a receiver').click();
      await page.getByLabel('Address').fill(`http://127.0.0.1:${receiver.address().port}/hook`);
      await page.getByLabel('Description').fill('my receiver');
      await button(page, 'Add the receiver').click();
      await page.getByText(/^whsec_/).waitFor();
      await page.getByRole('link', { name: 'my receiver' }).click();
      await button(page, 'Send a test…').click();
      await confirm(page, 'Send');
      await w.until('the test arrives', () => got.length, (n) => n >= 1);
      await page.getByRole('region', { name: 'Deliveries' }).getByRole('button', { name: 'resend' }).first().click();
      await w.until('it arrives again', () => got.length, (n) => n >= 2);
      assert.equal(got[1], got[0], 'the message has another id');
    } finally {
      receiver.close();
    }
  },

  async 'the buttons of the demo'(w) {
    const page = await w.page({ key: w.keys.admin });
    await w.open(page, '/');
    assert.equal((await w.call('GET', '/demo')).status, 404, 'an instance has the controls of the demo');
    assert.equal(await page.getByRole('complementary', { name: 'Demo' }).count(), 0);
    const demo = await w.demo('--targets', '400', '--shoppers', '20', '--coupons', '3');
    await w.open(page, '/', demo.server);
    const bar = page.getByRole('complementary', { name: 'Demo' });
    await button(bar, 'Break the provider').click();
    await button(bar, 'Repair the provider').waitFor();
    await button(bar, 'Add 100 people').click();
    await page.getByText('100 people will be paid.').waitFor();
    await w.accessible(page, 'the demo');
    await w.until('the instance is killed', async () => { // it refuses while it publishes
      await button(bar, 'Kill the instance').click({ timeout: 1000 }).catch(() => {}); // a click that came late finds no button
      return button(bar, 'Start the instance').count();
    }, (n) => n === 1);
    await page.getByRole('status').getByText(/^As of/).first().waitFor();
    await page.reload();
    await page.getByText('The server does not answer.').waitFor();
    await button(bar, 'Start the instance').click();
    await page.getByRole('heading', { name: 'Overview' }).waitFor();
    await button(bar, 'Repair the provider').click();
    await button(bar, 'Break the provider').waitFor();
    const said = await w.until('the books are closed', () => demo.said, (text) => text.includes('The server keeps running') && text.includes('more people 1: nothing else was charged'));
    assert.ok(!said.includes('BROKEN'), said);
  },

  async 'the picture of the README'(w) {
    const page = await w.page({ key: w.keys.admin });
    const demo = await w.demo('--targets', '60000', '--shoppers', '100', '--coupons', '10');
    const read = async () => (await (await fetch(demo.server + '/v1/promotions?status=RUNNING')).json()).items ?? [];
    const [paying] = await w.until('a promotion is half paid', read, ([p]) => p && p.counts.succeeded > 0.5 * p.totalCount);
    await w.open(page, `/#/promotions/${paying.id}`, demo.server);
    await w.picture(page, 'readme promotion', false);
  },

  async 'a role that may not read is told so'(w) {
    const page = await w.page({ key: w.keys.issuer });
    for (const view of ['/', '/#/promotions', '/#/audit']) {
      await w.open(page, view);
      await page.getByRole('alert').first().waitFor();
    }
  },

  async 'every flow starts from the keyboard'(w) {
    const page = await w.page({ key: w.keys.operator });
    await w.open(page, '/');
    await page.keyboard.press('Control+k');
    await page.keyboard.type('create a promotion');
    await page.keyboard.press('Enter');
    await page.getByRole('heading', { name: 'Create a promotion' }).waitFor();
    await page.getByLabel('Name').focus();
    await page.keyboard.type('By keyboard');
    await page.keyboard.press('Enter');
    await page.getByRole('heading', { name: 'By keyboard' }).waitFor();
  },

  async 'every page in all sizes, light and dark'(w) {
    for (const scheme of schemes) {
      for (const width of [1440, 1024, 390]) {
        const page = await w.page({ key: w.keys.admin, width, scheme });
        for (const view of w.views) {
          await w.open(page, view);
          if (scheme === 'dark' && width === 1440) await w.accessible(page, `${view}, dark`);
          const over = await page.evaluate(() => document.documentElement.scrollWidth - innerWidth);
          assert.ok(over <= 0, `${view} is ${over} pixels wider than ${width}`);
          await w.picture(page, `${view} ${width} ${scheme}`);
        }
        for (const view of w.forms) {
          await w.open(page, view);
          await page.locator('main').getByText(/^Change(…| the receiver)$/).click();
          const form = page.locator('main form, dialog form').last();
          await form.waitFor();
          if (scheme === 'dark' && width === 1440) await w.accessible(page, `${view}, changed, dark`);
          const over = await form.evaluate((f) => Math.max(f.scrollWidth - f.clientWidth, document.documentElement.scrollWidth - innerWidth));
          assert.ok(over <= 0, `the form of ${view} is ${over} pixels wider than there is room at ${width}`);
          await w.picture(page, `change ${view} ${width} ${scheme}`, false);
        }
      }
    }
  },
};
