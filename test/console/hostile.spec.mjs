// Shows what a provider, a receiver of webhooks and a stranger on Kafka say, at their worst.
import { button, expect, test } from './world.mjs';

const messages = [
  '<script>window.hacked=1</script>',
  '<img src=x onerror="window.hacked=1">',
  `"'></td></table><svg onload=window.hacked=1>`,
  'javascript:window.hacked=1',
  '<a href="javascript:window.hacked=1">look here</a> [here](javascript:window.hacked=1)',
  '{{constructor.constructor("window.hacked=1")()}} ${window.hacked=1} {@html "<b>x</b>"}',
  'paid \u202egnp.exe\u202c \u2066and \u200freversed',
  'NUL \u0000, a terminal \u001b[31mred\u001b[0m \u0007 \u009b2J',
  'x'.repeat(10_000),
];

/** provider refuses with each message in turn, and pays the others with a hostile key each. */
function provider(request, response) {
  const chunks = [];
  request.on('data', (c) => chunks.push(c)).on('end', () => {
    const say = (status, body) => response.writeHead(status, { 'Content-Type': 'application/json' }).end(JSON.stringify(body));
    if (request.method === 'GET') return say(request.url.startsWith('/v1/charges') ? 501 : 500, { code: messages[1], message: messages[6] });
    const n = Number(JSON.parse(Buffer.concat(chunks)).targetId);
    const message = messages[n % messages.length];
    if (n >= 40) return say(200, { transactionKey: `${n} ${message}` });
    if (n >= 36) return say(504, { code: message, message });
    say(422, { code: message.slice(0, 60), message });
  });
}

/** harmless expects that a page shows texts as texts. */
async function harmless(page, view, wanted) {
  const found = await page.evaluate(() => ({
    hacked: globalThis.hacked,
    markup: [...document.querySelectorAll('main img, main iframe, main object, main embed, main script, [onerror], [onload], [onclick], a[href^="javascript:" i]')].map((e) => e.outerHTML.slice(0, 300)),
    // Nobody sees these, and they change how the text around them reads.
    unseen: [document.body.innerText, ...[...document.querySelectorAll('[title], [aria-label]')].flatMap((e) => [e.title, e.getAttribute('aria-label') ?? ''])].filter((t) => /[\u0000-\u0008\u000e-\u001f\u007f-\u009f\u200e\u200f\u202a-\u202e\u2066-\u2069]/.test(t)).map((t) => JSON.stringify(t).slice(0, 300)),
    text: document.body.innerText,
    over: document.documentElement.scrollWidth - innerWidth,
  }));
  const { text, over, ...harm } = found;
  expect(harm, view).toEqual({ hacked: undefined, markup: [], unseen: [] });
  for (const piece of wanted) expect(text.includes(piece), `${view} does not show ${piece}`).toBe(true);
  expect(over <= 0, `${view} is ${over} pixels wider than the window`).toBe(true);
}

test('what a provider and a receiver say is only text', async ({ w }) => {
  const receiver = await w.listen((request, response) => {
    request.resume();
    response.writeHead(500, '<img src=x onerror=window.hacked=1>', { 'Content-Type': 'text/html' }).end(messages.join('\n'));
  });
  const server = await w.instance(await w.listen(provider), '--money-give-up-after', '1s', '--money-settle-after', '1h');
  const call = async (method, path, body, kind = 'application/json') => {
    const answer = await fetch(server + path, { method, headers: { 'Content-Type': kind }, body: typeof body === 'object' ? JSON.stringify(body) : body });
    const said = await answer.text();
    expect(answer.ok, `${method} ${path}: ${answer.status} ${said}`).toBe(true);
    return said && JSON.parse(said);
  };
  const hook = await call('POST', '/v1/webhook-endpoints', { url: `${receiver}/${encodeURIComponent(messages[1])}`, description: messages[2], events: ['payout.failed', 'payout.unknown'] });
  const { id } = await call('POST', '/v1/promotions', { name: messages[0], type: 'POINT', amount: 100, currency: 'EUR' });
  await call('POST', `/v1/promotions/${id}/targets`, 'targetId,userId\n' + Array.from({ length: 50 }, (_, n) => `${n},one user`).join('\n'), 'text/csv');
  await call('POST', `/v1/promotions/${id}/start`);
  const counts = async () => (await call('GET', `/v1/promotions/${id}`)).counts;
  await w.until('all but the unknown payouts are decided', counts, (c) => c.failed === 36 && c.succeeded === 10 && c.unknown === 4);
  await w.until('a delivery failed', () => call('GET', `/v1/webhook-endpoints/${hook.id}/deliveries`), (d) => d.items.some((x) => x.attempts.length > 0));

  const errors = [];
  for (const width of [1440, 390]) {
    const page = await w.page({ width });
    // A page asks whether it belongs to a demo; the answer no is a 404.
    page.on('console', (m) => m.type() === 'error' && !m.location().url.endsWith('/demo') && errors.push(`${page.url()}: ${m.text()} ${m.location().url}`));
    page.on('dialog', (d) => errors.push(`a dialog: ${d.message()}`));
    const promotion = `/#/promotions/${id}`;
    const shown = {
      '/': [], '/#/promotions': ['<script>'], [promotion]: ['<script>', 'onerror', '\\u202egnp.exe', '[31mred'],
      [`${promotion}?state=FAILED`]: ['javascript:window.hacked=1', 'svg onload'], [`${promotion}?state=UNKNOWN`]: ['Unclear'], [`${promotion}?state=SUCCEEDED`]: ['\\u202egnp.exe'],
      [`${promotion}?state=FAILED&code=${encodeURIComponent(messages[1])}`]: ['onerror'], '/#/unknown': [], '/#/people/one%20user': ['<script>', 'onerror', '\\u202egnp.exe'],
      [`${promotion}/payouts/6`]: ['\\u202egnp.exe', '\\u2066and'], [`/#/people/${encodeURIComponent(messages[6])}`]: ['\\u202egnp.exe'],
      '/#/webhooks': ['svg onload'], [`/#/webhooks/${hook.id}`]: ['500'], '/#/instances': [], '/#/audit': [], '/#/reconciliation': [],
    };
    for (const [view, wanted] of Object.entries(shown)) {
      await w.open(page, view, server);
      if (view.startsWith('/#/webhooks/')) await button(page, 'show').first().click();
      await harmless(page, `${view} at ${width}`, wanted);
    }
    // A file of a stranger, before anything of it is sent, and the form with what others wrote.
    await w.open(page, `${promotion}?tab=files`, server);
    await page.getByLabel('File of targets').setInputFiles({ name: 'paid \u202egnp.csv', mimeType: 'text/csv', buffer: Buffer.from(`targetId,userId\n${messages.map((m) => m.replaceAll('\n', ' ')).join(',\n')}`) });
    await expect(page.getByRole('region', { name: 'Lines with mistakes' })).toBeVisible();
    await harmless(page, `a file at ${width}`, ['paid \\u202egnp.csv', '<script>']);
    await button(page, 'Change…').click();
    await expect(page.getByRole('dialog').getByLabel('Name', { exact: true })).toBeVisible();
    await harmless(page, `the settings at ${width}`, ['<script>']);
  }
  expect(errors, 'the console of the browser').toEqual([]);
});

test('what a record of a stranger contains is only text', async ({ w }) => {
  for (const width of [1440, 390]) {
    const page = await w.page({ key: w.keys.viewer, width });
    await w.open(page, '/#/dead-letters?status=ALL');
    const rows = await button(page, 'show').count();
    expect(rows, 'dead letters').toBeGreaterThanOrEqual(3);
    const seen = [];
    for (let n = 0; n < rows; n++) {
      await button(page, 'show').nth(n).click();
      seen.push(...(await page.locator('pre').allTextContents()));
      await harmless(page, `dead letter ${n} at ${width}`, ['window.hacked']);
      await button(page, 'hide').click();
    }
    for (const written of ['\\u202e', '\\u0000', '\\u001b[31m']) expect(seen.some((t) => t.includes(written)), `no dead letter shows ${written}`).toBe(true);
  }
});
