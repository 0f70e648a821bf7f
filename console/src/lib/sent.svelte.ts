// How something ends that a person sends: whether it is under way, and what is wrong with it.

import { Problem, said } from './api';

export class Sent {
  busy = $state(false);
  error = $state<{ text: string; requestId?: string }>();
  wrong = $state<Record<string, string>>({}); // by field

  /** run sends it. What it throws becomes the error. */
  async run(send: () => Promise<void>): Promise<void> {
    this.busy = true;
    this.clear();
    try {
      await send();
    } catch (err) {
      this.fail(err);
    } finally {
      this.busy = false;
    }
  }
  fail(err: unknown): void {
    this.error = said(err);
    this.wrong = err instanceof Problem ? err.fields : {};
  }
  clear(): void {
    this.error = undefined;
    this.wrong = {};
  }
}
