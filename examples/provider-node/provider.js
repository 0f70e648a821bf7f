// A small provider for Largesse. It writes each charge to the disk before it answers, once per idempotency key.
'use strict';
const fs = require('node:fs');
const http = require('node:http');
const { unescape } = require('node:querystring');

const file = fs.openSync('charges.jsonl', 'a+');
const raw = fs.readFileSync(file);
const whole = raw.lastIndexOf('\n') + 1; // a crash can cut the last line, which was never answered
fs.ftruncateSync(file, whole);
const lines = raw.toString('utf8', 0, whole).split('\n').filter(Boolean);
const paid = new Map(lines.map((line) => [JSON.parse(line)[0], line])); // lines by idempotency key

// pay does not wait for anything, so nothing else runs between the check of the key and its line on the disk.
function pay(key, text) {
  let charge;
  try {
    charge = JSON.parse(text) ?? {};
  } catch {
    return [400, { code: 'MALFORMED' }];
  }
  const { promotionId, targetId, userId, amount, currency, voucherCode } = charge;
  if (key !== `${promotionId}:${targetId}` || !userId || !Number.isSafeInteger(amount) || amount < (voucherCode ? 0 : 1)) {
    return [400, { code: 'MALFORMED' }];
  }
  const line = JSON.stringify([key, userId, amount, currency, voucherCode]);
  if (paid.has(key)) return paid.get(key) === line ? success(key) : [422, { code: 'KEY_REUSED' }];
  if (userId === 'closed-1') return [422, { code: 'ACCOUNT_CLOSED' }]; // your own rules go here
  fs.appendFileSync(file, line + '\n'); // an error ends the process: the next one reads what is there
  fs.fsyncSync(file);
  paid.set(key, line);
  return success(key);
}

function lookUp(key) {
  return paid.has(key) ? success(key) : [404, { code: 'NOT_FOUND' }];
}

function success(key) {
  return [200, { transactionKey: `T-${key}` }];
}

function route(call, req, body) {
  if (call === 'POST /v1/points/charge' || call === 'POST /v1/vouchers/charge') return pay(req.headers['idempotency-key'], body);
  if (call.startsWith('GET /v1/transactions/')) return lookUp(unescape(call.slice('GET /v1/transactions/'.length)));
  return [404, { message: 'no such path' }];
}

http.createServer((req, res) => {
  const parts = [];
  req.on('data', (part) => parts.push(part)).on('end', () => {
    const [status, answer] = route(`${req.method} ${req.url}`, req, Buffer.concat(parts).toString());
    res.writeHead(status, { 'Content-Type': 'application/json' }).end(JSON.stringify(answer));
  });
}).listen(process.env.PORT ?? 9000, '127.0.0.1');
