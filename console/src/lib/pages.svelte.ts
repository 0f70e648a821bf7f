// A list that is read page by page with a cursor, however many rows there are. What its
// rows say follows the server; which rows are shown, and in which order, stays until
// somebody asks for it.

import { said } from './api';

interface Page<T> {
  items: T[];
  nextCursor?: string;
}

const pagesFollowed = 4; // of the rows shown, from the first one

export class Pages<T> {
  items = $state.raw<T[]>([]); // replaced as a whole, never changed inside
  more = $state(true);
  busy = $state(false);
  loaded = $state(false);
  error = $state<{ text: string; requestId?: string } | undefined>();
  fresh = $state(0); // rows that came since these were read
  freshMore = $state(false); // at least one page of them
  gone = $state.raw<ReadonlySet<string>>(new Set()); // IDs of rows that no longer belong to the list
  #read: (cursor: string | undefined) => Promise<Page<T>>;
  #cursor: string | undefined;
  #starts: (string | undefined)[] = []; // the cursor of each page that is shown
  #turn = 0;
  #looking = false;
  #id: (row: T) => string;

  constructor(read: (cursor: string | undefined) => Promise<Page<T>>, id: (row: T) => string) {
    this.#read = read;
    this.#id = id;
  }

  /** watch reads the rows shown again and again, and counts new ones; call it in an $effect, which gets its end. */
  watch(milliseconds: number): () => void {
    const timer = setInterval(() => void this.look(), milliseconds);
    return () => clearInterval(timer);
  }

  /** look reads the rows shown once more; call it when something says that they have changed. */
  async look(): Promise<void> {
    if (document.hidden || this.busy || this.#looking || !this.loaded) return;
    const turn = this.#turn;
    this.#looking = true;
    try {
      const starts = this.#starts.slice(0, pagesFollowed);
      const now: T[] = [];
      for (const start of starts) now.push(...(await this.#read(start)).items);
      if (turn !== this.#turn) return;
      if (this.items.length === 0) {
        if (now.length > 0) await this.restart(); // there is no row that could move
        return;
      }
      const by = new Map(now.map((row) => [this.#id(row), row]));
      const known = new Set(this.items.map(this.#id));
      this.items = this.items.map((row) => by.get(this.#id(row)) ?? row);
      this.fresh = now.filter((row) => !known.has(this.#id(row))).length;
      this.freshMore = this.fresh > 0 && this.fresh === now.length;
      const followed = starts.length < this.#starts.length ? now.length : this.items.length;
      this.gone = new Set(this.items.slice(0, followed).map(this.#id).filter((id) => !by.has(id)));
    } catch {
      // The next look shows it.
    } finally {
      this.#looking = false;
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
      this.#starts = first ? [undefined] : [...this.#starts, this.#cursor];
      this.#cursor = page.nextCursor;
      this.more = !!page.nextCursor;
      if (first) {
        this.fresh = 0;
        this.gone = new Set();
      }
      this.error = undefined;
      this.loaded = true;
    } catch (err) {
      if (turn === this.#turn) this.error = said(err);
    } finally {
      if (turn === this.#turn) this.busy = false;
    }
  }
}
