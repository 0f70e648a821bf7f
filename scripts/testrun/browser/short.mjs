// What is tried in every run.
import assert from 'node:assert/strict';
import { hostile } from './world.mjs';

const button = (page, name) => page.getByRole('button', { name, exact: true });
const heading = (page, name) => page.getByRole('heading', { name, exact: true }).waitFor();

export const short = {
  async 'sign in'(w) {
    const page = await w.page();
    const enter = async (key, keep) => {
      await page.getByLabel('Key or token').fill(key);
      if (keep) await page.getByRole('checkbox').check();
      await button(page, 'Sign in').click();
    };
    await page.goto(w.server + '/');
    await enter('lgs_wrong');
    await page.getByRole('alert').getByText('does not accept this key').waitFor();
    await enter(w.keys.viewer);
    await heading(page, 'Overview');
    const kept = () => page.evaluate(() => sessionStorage.length + localStorage.length);
    assert.equal(await kept(), 0, 'the key is stored although nobody asked for it');
    await page.reload();
    await enter(w.keys.viewer, true);
    await heading(page, 'Overview');
    await page.reload();
    await heading(page, 'Overview');
    await button(page, 'Sign out').click();
    await page.getByLabel('Key or token').waitFor();
    assert.equal(await kept(), 0, 'the key is still stored after the user signed out');
  },

  async 'pay a promotion from a file with wrong lines'(w) {
    const page = await w.page({ key: w.keys.operator });
    const name = w.unique(`Spring ${hostile}`);
    await w.open(page, '/#/promotions/new');
    await page.getByLabel('Name').fill(name);
    await page.getByLabel('Amount of each target').fill('1,000');
    await page.getByLabel('Currency').fill('EUR');
    await button(page, 'Create the draft').click();
    await heading(page, name);
    const lines = ['targetId,userId', ...Array.from({ length: 50 }, (_, n) => `${n},u${n}`), '7,u7', 'x,u51', '-1,u52'];
    await page.getByLabel('File of targets').setInputFiles({ name: 'targets.csv', mimeType: 'text/csv', buffer: Buffer.from(lines.join('\n')) });
    await page.getByText('50 new targets, 50,000 EUR in all; 1 known already, 0 in conflict, 2 rejected.').waitFor();
    const wrong = page.getByRole('region', { name: 'Lines with mistakes' });
    for (const line of ['53', '54']) await wrong.getByRole('cell', { name: line, exact: true }).waitFor();
    await button(page, 'Add 50 targets').click();
    await page.getByText('50 targets added, 50,000 EUR in all.').waitFor();
    await button(page, 'Start…').click();
    await page.getByText('Pay 50 targets: 50,000 EUR in all.').waitFor();
    await button(page, 'Pay 50').click();
    await page.locator('h1 + span').getByText('completed').waitFor();
    const id = page.url().split('/').pop();
    const p = await w.api('GET', `/v1/promotions/${id}`);
    assert.ok(p.counts.failed > 0 && p.counts.succeeded + p.counts.failed === 50, JSON.stringify(p.counts));
    await page.getByText(`${p.counts.succeeded} of 50`).waitFor();
    await button(page, 'Compare with the provider').click();
    await page.getByText('The books of both sides agree').waitFor();
    await w.accessible(page, page.url());
  },

  async 'a viewer changes nothing'(w) {
    const page = await w.page({ key: w.keys.viewer });
    for (const view of w.views.filter((v) => !v.startsWith('/drop') && !v.endsWith('/new'))) {
      await w.open(page, view);
      const offered = await page.locator('main').getByRole('button').allTextContents();
      const links = await page.locator('main').getByRole('link', { name: /^Create/ }).allTextContents();
      assert.deepEqual([...offered, ...links].filter((t) => /…$|^(Create|Add|Revoke|revoke|replay|discard|use|cancel|confirm|resend|it was)/.test(t) && t !== 'Go to…'), [], `offered to a viewer on ${view}`);
    }
    const description = await (await fetch(w.server + '/openapi.json')).json();
    let tried = 0;
    for (const [path, item] of Object.entries(description.paths)) {
      for (const [method, operation] of Object.entries(item)) {
        if (method === 'get' || !operation.operationId) continue;
        const kind = Object.keys(operation.requestBody?.content ?? { 'application/json': 0 })[0];
        const answer = await w.call(method.toUpperCase(), path.replaceAll(/\{[^}]*\}/g, '1'), kind === 'application/json' ? '{}' : 'x', w.keys.viewer, kind);
        assert.equal(answer.status, 403, `${method} ${path} by a viewer: ${answer.status} ${await answer.text()}`);
        tried++;
      }
    }
    assert.ok(tried > 30, `only ${tried} operations were tried`);
  },

  async 'every page is accessible, shows no markup of others, and fits a phone'(w) {
    const page = await w.page({ key: w.keys.admin });
    for (const view of w.views) {
      await page.setViewportSize({ width: 1440, height: 900 });
      await w.open(page, view);
      await w.accessible(page, view);
      await page.setViewportSize({ width: 360, height: 800 });
      const over = await page.evaluate(() => document.documentElement.scrollWidth - innerWidth);
      assert.ok(over <= 0, `${view} is ${over} pixels wider than a phone`);
    }
  },

  async 'the first load is small'(w) {
    const page = await w.page({ key: w.keys.admin });
    await w.open(page, '/');
    const size = await page.evaluate(() => performance.getEntries().filter((e) => e.entryType === 'navigation' || /\/assets\//.test(e.name)).reduce((sum, e) => sum + e.encodedBodySize, 0));
    assert.ok(size > 20_000 && size <= 250_000, `${size} bytes are loaded, want at most 250,000`);
  },
};
