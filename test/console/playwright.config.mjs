import { defineConfig } from '@playwright/test';

// A machine may be busy: what is waited for comes, or it is missing.
const patience = 60_000;

export default defineConfig({
  testDir: '.',
  outputDir: 'results',
  fullyParallel: true,
  workers: 2,
  retries: 0,
  timeout: 600_000,
  expect: { timeout: patience },
  use: {
    actionTimeout: patience,
    navigationTimeout: patience,
    screenshot: 'only-on-failure',
    trace: { mode: 'retain-on-failure', screenshots: false, sources: false },
    launchOptions: {
      executablePath: process.env.LARGESSE_CHROMIUM,
      // A container's root has no sandbox, and the pages are our own.
      args: ['--no-sandbox', '--disable-gpu', '--disable-dev-shm-usage'],
    },
  },
  projects: [
    { name: 'console', testIgnore: '*.nightly.spec.mjs' },
    // They measure, so one test runs at a time and nothing is recorded.
    { name: 'nightly', testMatch: '*.nightly.spec.mjs', workers: 1, use: { trace: 'off' } },
  ],
});
