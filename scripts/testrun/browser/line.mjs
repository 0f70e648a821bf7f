// Tries the page of a customer on bad networks. The server serves one user at once, so a
// proxy says in its name where in the line they are; what they get is real.
import assert from 'node:assert/strict';

const button = (page, name) => page.getByRole('button', { name, exact: true });

/** Queue stands before the server. */
class Queue {
  rank = 40; // of the next answers; undefined: the server answers
  late = []; // ranks of answers that overtook each other: they come first
  network = 'good';
  asked = 0;
  polls = 0;
  streams = 0;
  #open = new Set();
  #id;
  #user;

  constructor(id, user) {
    this.#id = id;
    this.#user = user;
  }

  #request(rank) {
    return JSON.stringify({ requestId: `${this.#id}:${this.#user}`, templateId: this.#id, userId: this.#user, status: 'WAITING', ticket: 1, queueRank: rank, estimatedWaitMillis: rank * 500 });
  }

  answer = (request, response) => {
    if (this.network === 'away') return response.destroy();
    const path = decodeURIComponent(request.url);
    if (request.method === 'POST' && path === `/v1/coupons/${this.#id}/issue`) {
      this.asked++;
      request.resume();
      response.writeHead(202, { 'Content-Type': 'application/json' }).end(this.#request(this.rank));
      return true;
    }
    if (this.asked === 0 || this.rank === undefined || !path.startsWith(`/v1/issue-requests/${this.#id}:${this.#user}`)) return false;
    if (!path.endsWith('/events')) {
      this.polls++;
      return response.writeHead(200, { 'Content-Type': 'application/json' }).end(this.#request(this.late.shift() ?? this.rank));
    }
    this.streams++;
    switch (this.network) {
      case 'streams are blocked':
        return response.destroy();
      case 'a proxy refuses streams':
        return response.writeHead(502, { 'Content-Type': 'text/html' }).end('<h1>Bad Gateway</h1>');
      case 'a proxy keeps streams back':
        response.writeHead(200, { 'Content-Type': 'text/event-stream' }).flushHeaders();
        break;
      default:
        response.writeHead(200, { 'Content-Type': 'text/event-stream' });
        response.write(this.#event(this.rank));
    }
    this.#open.add(response);
    response.on('close', () => this.#open.delete(response));
    return true;
  };

  #event(rank) {
    return `id: 1.${rank}\nevent: rank\ndata: ${this.#request(rank)}\n\n`;
  }

  /** move changes the rank, and says so in the streams that work. */
  move(rank) {
    this.rank = rank;
    if (this.network === 'good') for (const s of this.#open) s.write(this.#event(rank));
  }

  /** change changes the network, and cuts what is open. */
  change(network) {
    this.network = network;
    for (const s of this.#open) s.destroy();
  }
}

/** watchPlaces records each place that a page shows, over its reloads too. */
function watchPlaces() {
  addEventListener('DOMContentLoaded', () => new MutationObserver(() => {
    const place = document.querySelector('[aria-live] .text-6xl')?.textContent;
    if (!place) return;
    const seen = JSON.parse(sessionStorage.getItem('places') ?? '[]');
    if (seen.at(-1) !== place) sessionStorage.setItem('places', JSON.stringify([...seen, place]));
  }).observe(document, { subtree: true, childList: true, characterData: true }));
}

export const line = {
  async 'a place in line outlives bad networks, reloads and a second tab'(w) {
    const { id } = await w.api('POST', '/v1/coupon-templates', { name: w.unique('Slow'), totalQuantity: 5 });
    const queue = new Queue(id, 'patient');
    const server = await w.proxy(queue.answer);
    const tabs = [await w.page({ key: w.keys.issuer })];
    await tabs[0].addInitScript(watchPlaces);
    const shows = (place, some = tabs) => Promise.all(some.map((page) => page.locator('[aria-live] .text-6xl').getByText(String(place), { exact: true }).waitFor()));
    const streamsTried = () => {
      const before = queue.streams;
      return w.until(`${queue.network}: the page tries a stream`, () => queue.streams - before, (n) => n > 0);
    };
    const polled = (n) => {
      const before = queue.polls;
      return w.until(`${queue.network}: the page polls`, () => queue.polls - before, (polls) => polls >= n);
    };
    await w.open(tabs[0], `/drop/${id}?user=patient`, server);
    await button(tabs[0], 'Get your coupon').click();
    await shows(40);
    await w.api('POST', `/v1/coupons/${id}/issue`, { userId: 'patient' });
    await w.until('a stream runs', () => queue.streams, (n) => n > 0);
    queue.move(38);
    await shows(38);

    queue.change('streams are blocked');
    queue.move(30);
    const cut = Date.now();
    await shows(30);
    w.figure(`a customer's page without its stream: the new place after ${Date.now() - cut} ms`);
    queue.late = [34, 36];
    await polled(2);
    await shows(30);

    queue.change('a proxy refuses streams');
    await streamsTried();
    queue.move(25);
    await shows(25);

    queue.change('a proxy keeps streams back');
    await streamsTried();
    const polls = queue.polls;
    await polled(2);
    queue.move(20);
    await shows(20);
    assert.ok(queue.polls >= polls + 2, 'a page whose stream says nothing does not poll');
    assert.equal(await tabs[0].getByText('The connection is bad').count(), 0, 'a page that polls complains');

    queue.change('away');
    await tabs[0].getByText('The connection is bad').waitFor();
    await shows(20);
    queue.rank = 12;
    queue.change('streams are blocked');
    await shows(12);
    await tabs[0].getByText('The connection is bad').waitFor({ state: 'detached' });

    await tabs[0].reload();
    await shows(12);
    const second = await w.tab(tabs[0].context());
    await second.addInitScript(watchPlaces);
    tabs.push(second);
    await w.open(second, `/drop/${id}?user=patient`, server);
    await shows(12);
    queue.move(7);
    await shows(7);
    queue.change('good');
    await streamsTried();
    queue.move(3);
    await shows(3);
    queue.rank = undefined;
    queue.change('good');
    await Promise.all(tabs.map((page) => page.getByText('It is yours').waitFor()));

    const { items } = await w.api('GET', '/v1/users/patient/coupons');
    const mine = items.filter((c) => c.templateId === id);
    assert.equal(mine.length, 1);
    assert.equal(queue.asked, 1, 'the page asked again by itself');
    for (const [n, page] of tabs.entries()) {
      assert.equal(await page.locator('.code').textContent(), mine[0].code, `the code of tab ${n}`);
      const places = (await page.evaluate(() => JSON.parse(sessionStorage.getItem('places')))).map(Number);
      assert.deepEqual(places, places.toSorted((a, b) => b - a), `the place of tab ${n} went backwards`);
      assert.ok(places.length >= 3, `tab ${n} saw only ${places}`);
    }
    await tabs[0].reload();
    await tabs[0].getByText(mine[0].code).waitFor();
  },

  async 'who asks too early is asked for again'(w) {
    const { id } = await w.api('POST', '/v1/coupon-templates', { name: w.unique('Early'), totalQuantity: 1 });
    let early = 0;
    const server = await w.proxy((request, response) => {
      if (request.method !== 'POST' || early === 3) return false;
      early++;
      request.resume();
      response.writeHead(409, { 'Content-Type': 'application/problem+json' }).end(JSON.stringify({ status: 409, title: 'Not open', code: 'NOT_OPEN' }));
      return true;
    });
    const page = await w.page({ key: w.keys.issuer });
    await w.open(page, `/drop/${id}?user=early`, server);
    await button(page, 'Get your coupon').click();
    await page.getByText('It is yours').waitFor();
    assert.equal(early, 3);
  },
};
