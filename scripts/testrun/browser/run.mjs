// Uses the console in Chromium as people do. Prints one line of JSON per test:
// {"name", "failed"}, where failed says what is wrong, where, and which picture shows it.
import { mkdirSync } from 'node:fs';
import { parseArgs } from 'node:util';
import { chromium } from 'playwright-core';
import { features } from './features.mjs';
import { hostile } from './hostile.mjs';
import { line } from './line.mjs';
import { long } from './long.mjs';
import { short } from './short.mjs';
import { speed } from './speed.mjs';
import { World } from './world.mjs';

const text = { type: 'string', default: '' };
const { values: flags } = parseArgs({
  options: { server: text, money: text, token: text, binary: text, chromium: text, pictures: text, only: text, all: { type: 'boolean', default: false } },
});
mkdirSync(flags.pictures, { recursive: true });
// A container's root has no sandbox, and the pages are our own.
const browser = await chromium.launch({ executablePath: flags.chromium, args: ['--no-sandbox', '--disable-gpu', '--disable-dev-shm-usage'] });
const world = new World(browser, flags);
await world.fill();
let failures = 0;
for (const [name, test] of Object.entries(flags.all ? { ...short, ...long, ...line, ...hostile, ...speed, ...features } : short)) {
  if (!new RegExp(flags.only).test(name)) continue;
  let failed = '';
  try {
    await test(world);
    failed = world.complaints().join('\n');
  } catch (err) {
    failed = [err.message.replaceAll(/\u001b\[[0-9;]*m/g, ''), ...world.complaints()].join('\n');
  }
  if (failed) {
    failures++;
    failed += await world.where(name);
  }
  await world.close();
  console.log(JSON.stringify({ name, failed }));
}
await browser.close();
process.exit(failures ? 1 : 0);
