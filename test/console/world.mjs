// The server under test, what is in it, and the pages that look at it.
import { spawn } from 'node:child_process';
import { appendFileSync, existsSync, mkdirSync, mkdtempSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import { createServer, request as ask } from 'node:http';
import { createRequire } from 'node:module';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { test as base, expect } from '@playwright/test';

export { expect };

const axeSource = readFileSync(createRequire(import.meta.url).resolve('axe-core/axe.min.js'), 'utf8');

/** hostile is a name that runs a script if a page takes it for markup. */
export const hostile = `<img src=x onerror="window.hacked=1"><script>window.hacked=1</script>'"`;

export const button = (page, name) => page.getByRole('button', { name, exact: true });
export const dialog = (page) => page.getByRole('dialog');
export const heading = (page, name) => expect(page.getByRole('heading', { name, exact: true })).toBeVisible();
export const badge = (page, text) => expect(page.locator('h1 + span').getByText(text, { exact: true })).toBeVisible();

/** more chooses what is in the menu of a promotion. */
export async function more(page, name) {
  await page.locator('summary', { hasText: 'More' }).click();
  await button(page, name).click();
}

/** confirm answers the question of a dialog, and waits until it is done. */
export async function confirm(page, name, fields = {}) {
  for (const [label, text] of Object.entries(fields)) await dialog(page).getByLabel(label).fill(text);
  await button(dialog(page), name).click();
  await expect(dialog(page)).toHaveCount(0);
}

/** watchPlaces records each place that a page shows, over its reloads too. */
export function watchPlaces() {
  addEventListener('DOMContentLoaded', () => new MutationObserver(() => {
    const place = document.querySelector('[aria-live] .text-6xl')?.textContent;
    if (!place) return;
    const seen = JSON.parse(sessionStorage.getItem('places') ?? '[]');
    if (seen.at(-1) !== place) sessionStorage.setItem('places', JSON.stringify([...seen, place]));
  }).observe(document, { subtree: true, childList: true, characterData: true }));
}

/** placesOf returns the places that a page has shown, which never go backwards. */
export async function placesOf(page, tab) {
  const places = (await page.evaluate(() => JSON.parse(sessionStorage.getItem('places') ?? '[]'))).map((p) => Number(p.replaceAll(',', '')));
  expect(places, `the place of tab ${tab} went backwards`).toEqual(places.toSorted((a, b) => b - a));
  return places;
}

/** test runs a test with a World, on the instance of its worker. */
export const test = base.extend({
  site: [async ({}, use, worker) => {
    const site = JSON.parse(process.env.LARGESSE_INSTANCES)[worker.parallelIndex];
    // A worker that follows one whose test failed finds the instance filled.
    const kept = join(worker.project.outputDir, `site-${worker.parallelIndex}.json`);
    if (existsSync(kept)) {
      Object.assign(site, JSON.parse(readFileSync(kept, 'utf8')));
    } else {
      await fill(site);
      mkdirSync(worker.project.outputDir, { recursive: true });
      writeFileSync(kept, JSON.stringify(site));
    }
    await use(site);
  }, { scope: 'worker', timeout: 300_000 }],
  w: async ({ browser, site }, use) => {
    const world = new World(browser, site);
    await use(world);
    await world.close();
    expect(world.complaints, 'what the pages did and may not do').toEqual([]);
  },
});

/** fill puts one of everything into the server, with hostile names. */
async function fill(site) {
  const w = new World(undefined, site);
  site.keys = {};
  for (const role of ['viewer', 'issuer', 'campaigner', 'approver', 'operator', 'admin']) {
    site.keys[role] = (await w.api('POST', '/v1/api-keys', { name: `${role} ${hostile}`, role })).key;
  }
  site.keys.second = (await w.api('POST', '/v1/api-keys', { name: 'second operator', role: 'operator' })).key;
  site.paid = await w.promotion({ name: `Paid ${hostile}`, metadata: { [hostile.slice(0, 40)]: hostile } }, 40);
  await w.api('POST', `/v1/promotions/${site.paid}/start`);
  site.draft = await w.promotion({ name: 'A draft' }, 5);
  site.template = (await w.api('POST', '/v1/coupon-templates', { name: `Drop ${hostile}`, totalQuantity: 50, metadata: { [hostile.slice(0, 40)]: hostile } })).id;
  site.person = `u<b>${hostile.slice(0, 50)}`;
  for (const userId of [site.person, 'user-1', 'user-2']) {
    await w.api('POST', `/v1/coupons/${site.template}/issue`, { userId });
  }
  site.later = (await w.api('POST', '/v1/coupon-templates', { name: 'Opens later', totalQuantity: 5, opensAt: '2100-01-01T00:00:00Z' })).id;
  site.receiver = (await w.api('POST', '/v1/webhook-endpoints', { url: 'http://127.0.0.1:9/', description: hostile, events: ['promotion.completed', 'payout.failed'], enabled: false })).id;
  await w.api('POST', '/v1/reconciliations', { promotionId: site.paid });
  await w.until('the promotion is paid', () => w.api('GET', `/v1/promotions/${site.paid}`), (p) => p.status === 'COMPLETED');
}

class World {
  complaints = [];
  #contexts = [];
  #started = []; // processes of a test
  #proxies = [];
  #folders = [];
  #addresses = []; // which pages may call

  constructor(browser, site) {
    this.browser = browser;
    Object.assign(this, site);
    this.#addresses.push(this.server);
  }

  /** demo starts `largesse demo --open`, and returns its address. */
  demo(...args) {
    return this.#start(/in the console: (\S+)\//, 'demo', '--open', ...args);
  }

  /** instance starts one without sign-in, which pays at the address money, and returns its address. */
  async instance(money, ...more) {
    const folder = mkdtempSync(join(tmpdir(), 'largesse-instance-'));
    this.#folders.push(folder);
    const started = await this.#start(/serving on (http[^,\s]+)/, 'serve', '--data-dir', folder, '--listen', '127.0.0.1:0', '--money-url', money,
      '--money-timeout', '10s', '--webhook-allow-private', '--log-level', 'error', ...more);
    return started.server;
  }

  #start(address, ...args) {
    const child = spawn(process.env.LARGESSE_BINARY, args, { stdio: ['ignore', 'pipe', 'inherit'] });
    const started = { child, said: '', ended: new Promise((end) => child.on('close', end)) };
    this.#started.push(started);
    return new Promise((found, failed) => {
      child.stdout.on('data', (text) => {
        started.said += text;
        started.server = address.exec(started.said)?.[1];
        if (!started.server) return;
        this.#addresses.push(started.server);
        found(started);
      });
      child.on('close', (code) => failed(new Error(`${args[0]} ended with ${code}: ${started.said}`)));
    });
  }

  /** listen starts an HTTP server, and returns its address. */
  async listen(answer) {
    const server = createServer(answer);
    await new Promise((up) => server.listen(0, '127.0.0.1', up));
    this.#proxies.push(server);
    return `http://127.0.0.1:${server.address().port}`;
  }

  /** proxy stands between a page and the server, and returns its address. It passes on what answer does not take. */
  async proxy(answer) {
    const address = await this.listen((request, response) => {
      if (answer(request, response)) return;
      const on = ask(this.server + request.url, { method: request.method, headers: request.headers }, (got) => {
        response.writeHead(got.statusCode, got.headers);
        got.pipe(response);
      });
      on.on('error', () => response.destroy());
      response.on('close', () => on.destroy());
      request.pipe(on);
    });
    this.#addresses.push(address);
    return address;
  }

  /** api calls the server, and expects a success. */
  async api(method, path, body, key = this.token, kind = 'application/json') {
    const answer = await this.call(method, path, body, key, kind);
    const said = await answer.text();
    expect(answer.ok, `${method} ${path}: ${answer.status} ${said}`).toBe(true);
    return said && answer.headers.get('Content-Type')?.includes('json') ? JSON.parse(said) : said;
  }

  call(method, path, body, key = this.token, kind = 'application/json') {
    return fetch(this.server + path, {
      method, headers: { Authorization: `Bearer ${key}`, 'Content-Type': kind }, body: body === undefined || typeof body === 'string' ? body : JSON.stringify(body),
    });
  }

  /** unique makes a name that nothing else on the server has. */
  unique(name) {
    return `${name} ${Math.random().toString(36).slice(2, 10)}`;
  }

  /** until repeats read until its value is good, and returns it. */
  async until(what, read, good) {
    let value;
    await expect.poll(async () => Boolean(good(value = await read())) || value, { message: what, timeout: 300_000, intervals: [100] }).toBe(true);
    return value;
  }

  /** promotion makes one with targets 1 to n. */
  async promotion(more, n, key) {
    const p = await this.api('POST', '/v1/promotions', { type: 'POINT', amount: 100, currency: 'EUR', ...more }, key);
    const lines = Array.from({ length: n }, (_, i) => `${i + 1},user-${i + 1}\n`).join('');
    await this.api('POST', `/v1/promotions/${p.id}/targets`, 'targetId,userId\n' + lines, key, 'text/csv');
    return p.id;
  }

  /** views are the addresses of every page. */
  get views() {
    const of = (...parts) => '/#/' + parts.map(encodeURIComponent).join('/');
    return [
      '/', of('campaigns'), of('promotions'), of('promotions', 'new'), of('promotions', this.paid), `/#/promotions/${this.paid}?tab=payouts`, `/#/promotions/${this.paid}?tab=files`, `/#/promotions/${this.paid}?tab=details`, of('promotions', this.paid, 'report'), of('promotions', this.draft), of('coupons'), of('coupons', 'new'), of('coupons', this.template), of('coupons', this.template, 'report'),
      of('approvals'), of('unknown'), of('people'), of('people', this.person), of('people', 'user-1'), of('dead-letters'), of('webhooks'), of('webhooks', this.receiver), of('instances'),
      of('reconciliation'), of('keys'), of('audit'), of('settings'), of('nowhere'), `/drop/${this.template}?user=user-1`, `/drop/${this.template}?user=nobody`, `/drop/${this.later}?user=user-1`,
    ];
  }

  /** forms opens the form of each page on which something can be changed, and passes both to each. */
  async forms(page, each) {
    for (const view of [`/#/promotions/${this.draft}`, `/#/coupons/${this.template}`, `/#/webhooks/${this.receiver}`]) {
      await this.open(page, view);
      await page.locator('main').getByText(/^(Change(…| the receiver)|변경…|수신자 변경)$/).click();
      const form = page.locator('main form, dialog form').last();
      await expect(form).toBeVisible();
      await each(view, form);
    }
  }

  /** page opens a tab, signed in with a key if there is one. */
  async page({ key, width = 1440, scheme = 'light', locale = 'en-US' } = {}) {
    const context = await this.browser.newContext({ viewport: { width, height: 900 }, colorScheme: scheme, locale, timezoneId: 'Europe/Berlin', reducedMotion: 'reduce' });
    if (key) await context.addInitScript((k) => location.protocol === 'about:' || sessionStorage.setItem('largesse.key', k), key);
    this.#contexts.push(context);
    return this.tab(context);
  }

  /** tab opens one more tab of a browser context. */
  async tab(context) {
    const page = await context.newPage();
    page.on('pageerror', (err) => this.complaints.push(`error in ${page.url()}: ${err.message}`));
    page.on('console', (m) => {
      if (/Content.Security.Policy/i.test(m.text())) this.complaints.push(`${page.url()}: ${m.text()}`);
    });
    page.on('request', (r) => {
      if (!this.#addresses.some((own) => r.url().startsWith(own + '/')) && !r.url().startsWith('data:') && !r.url().startsWith('blob:')) this.complaints.push(`${page.url()} asked for ${r.url()}`);
    });
    return page;
  }

  /** open shows a view, and waits until its data is there. */
  async open(page, view, server = this.server) {
    await page.goto('about:blank'); // a change of the hash alone would not load anything
    await page.goto(server + view);
    await expect(page.locator('h1').first()).toBeVisible();
    await page.waitForFunction(() => !document.querySelector('[aria-busy=true]'));
  }

  /** accessible expects that axe finds nothing, and no hostile name became markup. */
  async accessible(page, view) {
    await page.evaluate(axeSource);
    const { violations } = await page.evaluate(() => globalThis.axe.run({ resultTypes: ['violations'] }));
    const found = violations.map((v) => `${v.id} (${v.help}): ${v.nodes.slice(0, 3).map((n) => `${n.html.slice(0, 200)} ${n.failureSummary}`).join('; ')}`);
    expect(found, `axe on ${view}`).toEqual([]);
    const harm = await page.evaluate(() => [globalThis.hacked ?? '', ...[...document.querySelectorAll('img, iframe, object, embed, script:not([src]), main b > img')].map((e) => e.outerHTML)].filter(Boolean));
    expect(harm, `markup from a name on ${view}`).toEqual([]);
  }

  /** fits expects that a page is not wider than its window. */
  async fits(page, view) {
    const over = await page.evaluate(() => document.documentElement.scrollWidth - innerWidth);
    expect(over, `pixels by which ${view} is wider than ${page.viewportSize().width}`).toBeLessThanOrEqual(0);
  }

  /** readable expects that a page cuts off no text, except where it is made to and says all of it in a title. */
  async readable(page, view) {
    const cut = await page.evaluate(() => [...document.querySelectorAll('main *, header *')].filter((e) => {
      const own = [...e.childNodes].some((n) => n.nodeType === Node.TEXT_NODE && n.textContent.trim() !== '');
      const { display, textOverflow } = getComputedStyle(e);
      return own && !['inline', 'none'].includes(display) && textOverflow !== 'ellipsis' && !e.closest('.sr-only, svg, select') && e.scrollWidth > e.clientWidth + 1;
    }).map((e) => `${e.outerHTML.slice(0, 200)} by ${e.scrollWidth - e.clientWidth}`));
    expect(cut, `texts of ${view} that are wider than their room`).toEqual([]);
  }

  /** formFits expects that a form needs no more room than it has. */
  async formFits(form, view) {
    const over = await form.evaluate((f) => Math.max(f.scrollWidth - f.clientWidth, document.documentElement.scrollWidth - innerWidth));
    expect(over, `pixels by which the form of ${view} is wider than its room`).toBeLessThanOrEqual(0);
  }

  /** picture saves what a page shows: the whole page, or what fits in the window. */
  async picture(page, name, fullPage = true) {
    await page.screenshot({ path: join(pictures(), name.replaceAll(/[^a-z0-9]+/gi, '-') + '.png'), fullPage });
  }

  /** figure keeps what a test measured, in the file figures.txt next to the pictures. */
  figure(text) {
    appendFileSync(join(pictures(), 'figures.txt'), text + '\n');
  }

  async close() {
    await Promise.all(this.#contexts.map((c) => c.close()));
    for (const { child, ended } of this.#started) {
      child.kill('SIGINT');
      await ended;
    }
    for (const proxy of this.#proxies) {
      proxy.close();
      proxy.closeAllConnections();
    }
    for (const folder of this.#folders) rmSync(folder, { recursive: true, force: true });
  }
}

/** pictures is the folder for pictures, which stays. */
function pictures() {
  const folder = process.env.LARGESSE_PICTURES || 'pictures';
  mkdirSync(folder, { recursive: true });
  return folder;
}
