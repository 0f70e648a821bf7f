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
  fresh = $state(0); // rows that came since the first page was read
  freshMore = $state(false); // at least one page of them
  #read: (cursor: string | undefined) => Promise<Page<T>>;
  #cursor: string | undefined;
  #turn = 0;
  #id: ((row: T) => string) | undefined;

  constructor(read: (cursor: string | undefined) => Promise<Page<T>>, id?: (row: T) => string) {
    this.#read = read;
    this.#id = id;
  }

  /** watch counts new rows now and then, and leaves the list as it is; call it in an $effect, which gets its end. */
  watch(milliseconds: number): () => void {
    const timer = setInterval(() => void this.#look(), milliseconds);
    return () => clearInterval(timer);
  }

  async #look(): Promise<void> {
    const id = this.#id;
    if (!id || document.hidden || this.busy || !this.loaded) return;
    const turn = this.#turn;
    try {
      const { items } = await this.#read(undefined);
      if (turn !== this.#turn) return;
      const known = new Set(this.items.map(id));
      this.fresh = items.filter((row) => !known.has(id(row))).length;
      this.freshMore = this.fresh > 0 && this.fresh === items.length && known.size > 0;
    } catch {
      // The next look shows it.
    }
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
      if (first) this.fresh = 0;
      this.error = undefined;
      this.loaded = true;
    } catch (err) {
      if (turn === this.#turn) this.error = said(err);
    } finally {
      if (turn === this.#turn) this.busy = false;
    }
  }
}
