// Tries the page of a customer on bad networks. The server serves one user at once, so a
// proxy says in its name where in the line they are; what they get is real.
import { button, expect, placesOf, test, watchPlaces } from './world.mjs';

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

test('a place in line outlives bad networks, reloads and a second tab', async ({ w }) => {
  const { id } = await w.api('POST', '/v1/coupon-templates', { name: w.unique('Slow'), totalQuantity: 5 });
  const queue = new Queue(id, 'patient');
  const server = await w.proxy(queue.answer);
  const tabs = [await w.page({ key: w.keys.issuer })];
  await tabs[0].addInitScript(watchPlaces);
  const shows = (place, some = tabs) => Promise.all(some.map((page) => expect(page.locator('[aria-live] .text-6xl').getByText(String(place), { exact: true })).toBeVisible()));
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
  await shows(30);
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
  expect(queue.polls, 'polls of a page whose stream says nothing').toBeGreaterThanOrEqual(polls + 2);
  await expect(tabs[0].getByText('The connection is bad'), 'a page that polls complains').toHaveCount(0);

  queue.change('away');
  await expect(tabs[0].getByText('The connection is bad')).toBeVisible();
  await shows(20);
  queue.rank = 12;
  queue.change('streams are blocked');
  await shows(12);
  await expect(tabs[0].getByText('The connection is bad')).toHaveCount(0);

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
  await Promise.all(tabs.map((page) => expect(page.getByText('It is yours')).toBeVisible()));

  const { items } = await w.api('GET', '/v1/users/patient/coupons');
  const mine = items.filter((c) => c.templateId === id);
  expect(mine).toHaveLength(1);
  expect(queue.asked, 'the page asked again by itself').toBe(1);
  for (const [n, page] of tabs.entries()) {
    await expect(page.locator('.code'), `the code of tab ${n}`).toHaveText(mine[0].code);
    expect((await placesOf(page, n)).length, `places that tab ${n} saw`).toBeGreaterThanOrEqual(3);
  }
  await tabs[0].reload();
  await expect(tabs[0].getByText(mine[0].code)).toBeVisible();
});

test('who asks too early is asked for again', async ({ w }) => {
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
  await expect(page.getByText('It is yours')).toBeVisible();
  expect(early).toBe(3);
});
