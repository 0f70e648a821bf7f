// A list that is read page by page with a cursor, however many rows there are.

import { said } from './api';

interface Page<T> {
  items: T[];
  nextCursor?: string;
}

export class Pages<T> {
  items = $state.raw<T[]>([]); // replaced as a whole, never changed inside
  more = $state(true);
  busy = $state(false);
  loaded = $state(false);
  error = $state<{ text: string; requestId?: string } | undefined>();
  #read: (cursor: string | undefined) => Promise<Page<T>>;
  #cursor: string | undefined;
  #turn = 0;

  constructor(read: (cursor: string | undefined) => Promise<Page<T>>) {
    this.#read = read;
  }

  /** restart reads the first page; the rows of before stay until it is there. */
  async restart(): Promise<void> {
    await this.#load(true);
  }

  async next(): Promise<void> {
    if (this.busy || !this.more) return;
    await this.#load(false);
  }

  async #load(first: boolean): Promise<void> {
    const turn = ++this.#turn;
    this.busy = true;
    try {
      const page = await this.#read(first ? undefined : this.#cursor);
      if (turn !== this.#turn) return;
      this.items = first ? page.items : [...this.items, ...page.items];
      this.#cursor = page.nextCursor;
      this.more = !!page.nextCursor;
      this.error = undefined;
      this.loaded = true;
    } catch (err) {
      if (turn === this.#turn) this.error = said(err);
    } finally {
      if (turn === this.#turn) this.busy = false;
    }
  }
}
