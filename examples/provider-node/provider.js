// A small provider for Largesse: one line per charge in a file, on the disk before it answers.
'use strict';
const fs = require('node:fs');
const http = require('node:http');
const path = require('node:path');
const { parseArgs } = require('node:util');

const { values: args } = parseArgs({ options: {
  listen: { type: 'string', default: '127.0.0.1:9000' },
  file: { type: 'string', default: 'charges.jsonl' },
} });
const token = process.env.PROVIDER_TOKEN;

// Read the charges. A crash can leave half a line at the end, which was never answered: cut it off.
const file = fs.openSync(args.file, 'a+', 0o600);
const text = fs.readFileSync(args.file);
const whole = text.lastIndexOf('\n') + 1;
fs.ftruncateSync(file, whole);
fs.fsyncSync(fs.openSync(path.dirname(path.resolve(args.file)))); // a new file's name is on the disk, too
const list = text.subarray(0, whole).toString().split('\n').filter(Boolean).map((line) => JSON.parse(line));
const byKey = new Map(list.map((c) => [c.idempotencyKey, c]));

// charge does not wait for anything, so nothing else runs between the check of the key and its line on the disk.
function charge(url, key, c) {
  if (typeof c !== 'object' || c === null) return [400, { code: 'MALFORMED' }];
  const { promotionId, targetId, userId, amount, voucherCode = '' } = c;
  const voucher = url === '/v1/vouchers/charge';
  if (!key || key !== `${promotionId}:${targetId}` || typeof userId !== 'string' || !userId
    || !Number.isSafeInteger(amount) || amount < (voucher ? 0 : 1) || typeof voucherCode !== 'string' || voucher !== (voucherCode !== '')) {
    return [422, { code: 'INVALID' }];
  }
  let known = byKey.get(key);
  if (known && (known.userId !== userId || known.amount !== amount || known.voucherCode !== voucherCode)) {
    return [422, { code: 'KEY_REUSED' }];
  }
  if (!known && userId.startsWith('closed-')) return [422, { code: 'ACCOUNT_CLOSED' }]; // your own rules go here
  if (!known) {
    known = { idempotencyKey: key, promotionId, targetId, userId, amount, voucherCode, transactionKey: `T-${list.length + 1}` };
    try {
      const line = Buffer.from(JSON.stringify(known) + '\n');
      if (fs.writeSync(file, line) !== line.length) throw new Error('the disk is full');
      fs.fsyncSync(file);
    } catch (err) { // what is on the disk is not known: read it again at the next start
      console.error(err);
      process.exit(1);
    }
    list.push(known);
    byKey.set(key, known);
  }
  return [200, { transactionKey: known.transactionKey }];
}

// page lists charges. The cursor is the number of charges before it.
function page(query) {
  const limit = Math.min(Number(query.get('limit')) || 1000, 1000);
  const charges = [];
  for (let i = Number(query.get('cursor')) || 0; i < list.length; i++) {
    if (charges.length === limit) return [200, { charges, nextCursor: String(i) }];
    if (list[i].promotionId === query.get('promotionId')) charges.push(list[i]);
  }
  return [200, { charges }];
}

function route(req, body) {
  const { pathname, searchParams } = new URL(req.url, 'http://provider');
  if (token && req.headers.authorization !== `Bearer ${token}`) return [401, { code: 'UNAUTHORIZED' }];
  if (req.method === 'POST' && (pathname === '/v1/points/charge' || pathname === '/v1/vouchers/charge')) {
    let parsed;
    try { parsed = JSON.parse(body); } catch { return [400, { code: 'MALFORMED' }]; }
    return charge(pathname, req.headers['idempotency-key'], parsed);
  }
  if (req.method === 'GET' && pathname.startsWith('/v1/transactions/')) {
    const known = byKey.get(decodeURIComponent(pathname.slice(17)));
    return known ? [200, { transactionKey: known.transactionKey }] : [404, { code: 'NOT_FOUND' }];
  }
  return req.method === 'GET' && pathname === '/v1/charges' ? page(searchParams) : [404, {}];
}

const server = http.createServer((req, res) => {
  const parts = [];
  req.on('data', (part) => parts.push(part));
  req.on('end', () => {
    let status = 500, answer = { code: 'INTERNAL' };
    try { [status, answer] = route(req, Buffer.concat(parts).toString()); } catch (err) { console.error(err); }
    res.writeHead(status, { 'Content-Type': 'application/json' }).end(JSON.stringify(answer));
  });
});
const [, host, port] = args.listen.match(/^(.*):(\d+)$/);
server.listen(Number(port), host, () => console.log(`http://${host}:${server.address().port}`));
