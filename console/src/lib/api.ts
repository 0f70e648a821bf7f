// Calls of the API, typed by its description.

import createClient from 'openapi-fetch';
import { base } from './base';
import type { components, paths } from './schema';
import { session } from './session.svelte';
import { language, t, translated } from './language.svelte';

export type Schemas = components['schemas'];
export type Promotion = Schemas['Promotion'];
export type Counts = Schemas['Counts'];
export type Payout = Schemas['Payout'];
export type Template = Schemas['Template'];
export type Coupon = Schemas['Coupon'];
export type ProblemBody = Schemas['Problem'];

/** Problem is an answer of the API that says what went wrong. */
export class Problem extends Error {
  constructor(
    readonly status: number,
    readonly body: Partial<ProblemBody>,
  ) {
    super(translated('error', body.code) ?? body.detail ?? body.title ?? t('server.status', { status }));
  }
  get code(): string {
    return this.body.code ?? '';
  }
  /** fields maps a field to what is wrong with it. */
  get fields(): Record<string, string> {
    return Object.fromEntries((this.body.errors ?? []).map((e) => [e.field, fieldError(e)]));
  }
}

/** fieldError is what is wrong with a field. Amounts have the range of minor units, which nobody types: they have no numbers. */
function fieldError({ field, detail }: NonNullable<ProblemBody['errors']>[number]): string {
  const [, from, to] = (!/amount|Seconds$|FailureRate$/i.test(field) && /(?:must be|is not) from (\d+) to (\d+)/.exec(detail)) || [];
  if (from && to) return t('form.range', { from: Number(from), to: Number(to) });
  if (/characters, not 0$/.test(detail)) return t('form.missing');
  const longest = /(?:at most|1 to|more than) (\d+) characters|characters, more than (\d+)/.exec(detail);
  if (longest) return t('form.longest', { n: Number(longest[1] ?? longest[2]!) });
  if (/^is missing|must not be empty/.test(detail)) return t('form.missing');
  if (/has passed; omit/.test(detail)) return t('form.passed');
  return language.now === 'en' ? detail : t('form.wrong');
}

/** approveSeen approves what the caller looks at, and reads it again. If it has changed since, nothing is approved. */
export async function approveSeen(approve: () => Promise<unknown>, seen: { now: () => Promise<unknown> }): Promise<void> {
  try {
    await approve();
  } catch (err) {
    if (!(err instanceof Problem && err.status === 412)) throw err;
    await seen.now();
    throw new Error(t('approve.changed'));
  }
  await seen.now();
}

export const api = createClient<paths>({ baseUrl: location.origin + base.replace(/\/$/, '') });

api.use({
  onRequest({ request }) {
    for (const [name, value] of Object.entries(session.header)) request.headers.set(name, value);
    return request;
  },
  async onResponse({ response }) {
    if (response.ok || response.status === 304) return response;
    throw await problemOf(response);
  },
});

/** problemOf reads an answer that is not a success. A refused key ends the session. */
export async function problemOf(response: Response): Promise<Problem> {
  if (response.status === 401) session.leave(true);
  let body: Partial<ProblemBody> = {};
  try {
    body = (await response.json()) as ProblemBody;
  } catch {
    // Something between us and the server answered.
  }
  return new Problem(response.status, body);
}

/** Result is what a call of the client returns. */
interface Result<T> {
  data?: T;
  response: Response;
}

/** read returns the data of a call; failures are thrown. */
export async function read<T>(call: Promise<Result<T>>): Promise<Exclude<T, string>> {
  return (await call).data as Exclude<T, string>; // a file, such as CSV, is asked for by download
}

/** said is one sentence about a failure, and the ID to look for in the log. */
export function said(err: unknown): { text: string; requestId?: string } {
  if (err instanceof Problem) return { text: err.message, requestId: err.body.requestId };
  if (err instanceof TypeError) return { text: t('server.silent') };
  return { text: err instanceof Error ? err.message : String(err) };
}

/** Keys makes the same idempotency key for the same body: a repeat after a lost answer does nothing twice. */
export class Keys {
  #keys = new Map<string, string>();
  of(body: unknown): { 'Idempotency-Key': string } {
    const text = JSON.stringify(body);
    const key = this.#keys.get(text) ?? [...crypto.getRandomValues(new Uint8Array(16))].map((n) => n.toString(16).padStart(2, '0')).join('');
    this.#keys.set(text, key);
    return { 'Idempotency-Key': key };
  }
  /** forget lets the next call be another one. */
  forget(): void {
    this.#keys.clear();
  }
}
