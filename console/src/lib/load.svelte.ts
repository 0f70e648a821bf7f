// The data of a view: loaded, reloaded every so often while the page is visible, and
// kept on a failure, so that what was known stays readable with its age.

import { said } from './api';

export class Load<T> {
  data = $state.raw<T | undefined>(); // replaced as a whole, never changed inside
  error = $state<{ text: string; requestId?: string } | undefined>();
  at = $state(0); // of the data, by the browser's clock
  busy = $state(false);
  #read: (signal: AbortSignal) => Promise<T>;
  #turn = 0;

  constructor(read: (signal: AbortSignal) => Promise<T>) {
    this.#read = read;
  }

  /** stale tells that the newest try failed, and older data is shown. */
  get stale(): boolean {
    return this.error !== undefined && this.data !== undefined;
  }

  async now(signal: AbortSignal = new AbortController().signal): Promise<void> {
    const turn = ++this.#turn;
    this.busy = true;
    try {
      const data = await this.#read(signal);
      if (turn !== this.#turn) return; // a later call has answered for this one
      this.data = data;
      this.error = undefined;
      this.at = Date.now();
    } catch (err) {
      if (turn === this.#turn && !signal.aborted) this.error = said(err);
    } finally {
      if (turn === this.#turn) this.busy = false;
    }
  }

  /** every loads now and then every so many milliseconds; call it in an $effect, which gets its end. */
  every(milliseconds: number): () => void {
    const stopped = new AbortController();
    let timer: ReturnType<typeof setTimeout>;
    const again = async () => {
      if (!document.hidden) await this.now(stopped.signal);
      if (!stopped.signal.aborted) timer = setTimeout(again, milliseconds);
    };
    void again();
    const seen = () => {
      if (!document.hidden) void this.now(stopped.signal);
    };
    document.addEventListener('visibilitychange', seen);
    return () => {
      stopped.abort();
      clearTimeout(timer);
      document.removeEventListener('visibilitychange', seen);
    };
  }
}
