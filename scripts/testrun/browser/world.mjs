// The server under test, what is in it, and the pages that look at it.
import assert from 'node:assert/strict';
import { spawn } from 'node:child_process';
import { appendFileSync, mkdtempSync, readFileSync, rmSync } from 'node:fs';
import { createServer, request as ask } from 'node:http';
import { createRequire } from 'node:module';
import { tmpdir } from 'node:os';
import { join } from 'node:path';

const axeSource = readFileSync(createRequire(import.meta.url).resolve('axe-core/axe.min.js'), 'utf8');

/** hostile is a name that runs a script if a page takes it for markup. */
export const hostile = `<img src=x onerror="window.hacked=1"><script>window.hacked=1</script>'"`;

export const schemes = ['light', 'dark'];

export class World {
  keys = {};
  #browser;
  #flags;
  #contexts = [];
  #pages = [];
  #complaints = [];
  #made = 0;
  #started = []; // processes of a test
  #proxies = [];
  #folders = [];
  #addresses = []; // which pages may call, besides the server

  constructor(browser, flags) {
    this.#browser = browser;
    this.#flags = flags;
  }

  get server() {
    return this.#flags.server;
  }

  get browser() {
    return this.#browser;
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
    const process = spawn(this.#flags.binary, args, { stdio: ['ignore', 'pipe', 'inherit'] });
    const started = { process, said: '', ended: new Promise((end) => process.on('close', end)) };
    this.#started.push(started);
    return new Promise((found, failed) => {
      process.stdout.on('data', (text) => {
        started.said += text;
        started.server = address.exec(started.said)?.[1];
        if (!started.server) return;
        this.#addresses.push(started.server);
        found(started);
      });
      process.on('close', (code) => failed(new Error(`${args[0]} ended with ${code}: ${started.said}`)));
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

  /** figure keeps what a test measured, in the file figures.txt beside the pictures. */
  figure(text) {
    appendFileSync(`${this.#flags.pictures}/figures.txt`, text + '\n');
  }

  /** api calls the server, and expects a success. */
  async api(method, path, body, key = this.#flags.token, kind = 'application/json') {
    const answer = await this.call(method, path, body, key, kind);
    const said = await answer.text();
    assert.ok(answer.ok, `${method} ${path}: ${answer.status} ${said}`);
    return said && answer.headers.get('Content-Type')?.includes('json') ? JSON.parse(said) : said;
  }

  call(method, path, body, key = this.#flags.token, kind = 'application/json') {
    return fetch(this.server + path, {
      method, headers: { Authorization: `Bearer ${key}`, 'Content-Type': kind }, body: body === undefined || typeof body === 'string' ? body : JSON.stringify(body),
    });
  }

  /** unique makes a name that no other test has. */
  unique(name) {
    return `${name} ${++this.#made}`;
  }

  /** until repeats read until its value is good. It fails after a minute in which nothing changed, or after five. */
  async until(what, read, good) {
    const begin = Date.now();
    let seen;
    let changed = begin;
    for (;;) {
      const value = await read();
      if (good(value)) return value;
      const text = JSON.stringify(value) ?? 'nothing';
      if (text !== seen) changed = Date.now();
      seen = text;
      assert.ok(Date.now() < Math.min(changed + 60_000, begin + 300_000), `${what}: still ${text.slice(0, 500)} after ${Math.round((Date.now() - begin) / 1000)} s`);
      await new Promise((wake) => setTimeout(wake, 100));
    }
  }

  /** promotion makes one with targets 1 to n. */
  async promotion(more, n, key) {
    const p = await this.api('POST', '/v1/promotions', { type: 'POINT', amount: 100, currency: 'EUR', ...more }, key);
    const lines = Array.from({ length: n }, (_, i) => `${i + 1},user-${i + 1}\n`).join('');
    await this.api('POST', `/v1/promotions/${p.id}/targets`, 'targetId,userId\n' + lines, key, 'text/csv');
    return p.id;
  }

  /** fill puts one of everything into the server, with hostile names. */
  async fill() {
    for (const role of ['viewer', 'issuer', 'operator', 'admin']) {
      this.keys[role] = (await this.api('POST', '/v1/api-keys', { name: `${role} ${hostile}`, role })).key;
    }
    this.keys.second = (await this.api('POST', '/v1/api-keys', { name: 'second operator', role: 'operator' })).key;
    this.paid = await this.promotion({ name: `Paid ${hostile}`, metadata: { [hostile.slice(0, 40)]: hostile } }, 40);
    await this.api('POST', `/v1/promotions/${this.paid}/start`);
    this.draft = await this.promotion({ name: 'A draft' }, 5);
    this.template = (await this.api('POST', '/v1/coupon-templates', { name: `Drop ${hostile}`, totalQuantity: 50, metadata: { [hostile.slice(0, 40)]: hostile } })).id;
    this.person = `u<b>${hostile.slice(0, 50)}`;
    for (const userId of [this.person, 'user-1', 'user-2']) {
      await this.api('POST', `/v1/coupons/${this.template}/issue`, { userId });
    }
    this.later = (await this.api('POST', '/v1/coupon-templates', { name: 'Opens later', totalQuantity: 5, opensAt: '2100-01-01T00:00:00Z' })).id;
    this.receiver = (await this.api('POST', '/v1/webhook-endpoints', { url: 'http://127.0.0.1:9/', description: hostile, events: ['promotion.completed', 'payout.failed'], enabled: false })).id;
    await this.api('POST', '/v1/reconciliations', { promotionId: this.paid });
    await this.until('the promotion is paid', () => this.api('GET', `/v1/promotions/${this.paid}`), (p) => p.status === 'COMPLETED');
  }

  /** views are the addresses of every page. */
  get views() {
    const of = (...parts) => '/#/' + parts.map(encodeURIComponent).join('/');
    return [
      '/', of('promotions'), of('promotions', 'new'), of('promotions', this.paid), of('promotions', this.draft), of('coupons'), of('coupons', 'new'), of('coupons', this.template),
      of('approvals'), of('unknown'), of('people'), of('people', this.person), of('people', 'user-1'), of('dead-letters'), of('webhooks'), of('webhooks', this.receiver), of('instances'),
      of('reconciliation'), of('keys'), of('audit'), of('settings'), of('nowhere'), `/drop/${this.template}?user=user-1`, `/drop/${this.template}?user=nobody`, `/drop/${this.later}?user=user-1`,
    ];
  }

  /** forms are the addresses of the pages on which something can be changed. */
  get forms() {
    return [`/#/promotions/${this.draft}`, `/#/coupons/${this.template}`, `/#/webhooks/${this.receiver}`];
  }

  /** page opens a tab, signed in with a key if there is one. */
  async page({ key, width = 1440, scheme = 'light' } = {}) {
    const context = await this.#browser.newContext({ viewport: { width, height: 900 }, colorScheme: scheme, locale: 'en-US', timezoneId: 'Europe/Berlin', reducedMotion: 'reduce' });
    context.setDefaultTimeout(60_000);
    if (key) await context.addInitScript((k) => location.protocol === 'about:' || sessionStorage.setItem('largesse.key', k), key);
    this.#contexts.push(context);
    return this.tab(context);
  }

  /** tab opens one more tab of a browser context. */
  async tab(context) {
    const page = await context.newPage();
    page.on('pageerror', (err) => this.#complaints.push(`error in ${page.url()}: ${err.message}`));
    page.on('console', (m) => {
      if (/Content.Security.Policy/i.test(m.text())) this.#complaints.push(`${page.url()}: ${m.text()}`);
    });
    page.on('request', (r) => {
      if (![this.server, ...this.#addresses].some((own) => r.url().startsWith(own + '/')) && !r.url().startsWith('data:') && !r.url().startsWith('blob:')) this.#complaints.push(`${page.url()} asked for ${r.url()}`);
    });
    this.#pages.push(page);
    return page;
  }

  /** open shows a view, and waits until its data is there. */
  async open(page, view, server = this.server) {
    await page.goto('about:blank'); // a change of the hash alone would not load anything
    await page.goto(server + view);
    await page.locator('h1').first().waitFor();
    await page.waitForFunction(() => !document.querySelector('[aria-busy=true]') && !document.body.innerText.includes('One moment…'));
  }

  /** accessible expects that axe finds nothing, and no hostile name became markup. */
  async accessible(page, view) {
    await page.evaluate(axeSource);
    const { violations } = await page.evaluate(() => globalThis.axe.run({ resultTypes: ['violations'] }));
    const found = violations.map((v) => `${v.id} (${v.help}): ${v.nodes.slice(0, 3).map((n) => `${n.html.slice(0, 200)} ${n.failureSummary}`).join('; ')}`);
    assert.deepEqual(found, [], `axe on ${view}`);
    const harm = await page.evaluate(() => [globalThis.hacked ?? '', ...[...document.querySelectorAll('img, iframe, object, embed, script:not([src]), main b > img')].map((e) => e.outerHTML)].filter(Boolean));
    assert.deepEqual(harm, [], `markup from a name on ${view}`);
  }

  /** picture saves what a page shows: the whole page, or what fits in the window. */
  async picture(page, name, fullPage = true) {
    const path = `${this.#flags.pictures}/${name.replaceAll(/[^a-z0-9]+/gi, '-')}.png`;
    await page.screenshot({ path, fullPage });
    return path;
  }

  /** where says which page was open last, and makes a picture of it. */
  async where(name) {
    const page = this.#pages.at(-1);
    if (!page) return '';
    try {
      return `\nat ${page.url()}\npicture: ${await this.picture(page, 'failed ' + name)}`;
    } catch (err) {
      return `\nat ${page.url()}, and a picture failed: ${err.message}`;
    }
  }

  complaints() {
    return this.#complaints.splice(0);
  }

  async close() {
    await Promise.all(this.#contexts.splice(0).map((c) => c.close()));
    for (const { process, ended } of this.#started.splice(0)) {
      process.kill('SIGINT');
      await ended;
    }
    for (const proxy of this.#proxies.splice(0)) {
      proxy.close();
      proxy.closeAllConnections();
    }
    for (const folder of this.#folders.splice(0)) rmSync(folder, { recursive: true, force: true });
    this.#addresses = [];
    this.#pages = [];
    this.#complaints = [];
  }
}
