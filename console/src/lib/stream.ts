// Server-sent events through fetch, because EventSource cannot send a key. A cut
// stream is resumed after the last event; if streams do not work, the caller polls.

import { problemOf, Problem } from './api';
import { base } from './base';
import { session } from './session.svelte';

export interface Event {
  name: string;
  data: string;
  id: string;
}

/** parseEvents cuts a text into whole events, and returns the rest. */
export function parseEvents(text: string): { events: Event[]; rest: string } {
  const events: Event[] = [];
  const blocks = text.split(/\r?\n\r?\n/);
  const rest = blocks.pop() ?? '';
  for (const block of blocks) {
    const e: Event = { name: 'message', data: '', id: '' };
    let data: string[] = [];
    for (const line of block.split(/\r?\n/)) {
      const colon = line.indexOf(':');
      if (colon <= 0) continue; // a comment
      const value = line.slice(colon + 1).replace(/^ /, '');
      if (line.startsWith('event:')) e.name = value;
      else if (line.startsWith('data:')) data = [...data, value];
      else if (line.startsWith('id:')) e.id = value;
    }
    if (data.length > 0) events.push({ ...e, data: data.join('\n') });
  }
  return { events, rest };
}

export interface Follow {
  path: string; // such as v1/promotions/1/events
  event: (e: Event) => void;
  /** live tells whether the stream runs; false while it is cut. */
  live?: (on: boolean) => void;
  /** end tells that the server refuses the stream, now and later. */
  end?: (p: Problem) => void;
}

/** silence ends a stream without a byte: the server writes something at once, and then at least every 15 s. */
const silence = 40_000;

/** follow reads a stream until the returned function is called. */
export function follow(f: Follow): () => void {
  const stopped = new AbortController();
  void run(f, stopped.signal);
  return () => stopped.abort();
}

async function run(f: Follow, signal: AbortSignal): Promise<void> {
  let last = '';
  for (let failures = 0; !signal.aborted; ) {
    const cut = new AbortController();
    let timer = setTimeout(() => cut.abort(), silence);
    try {
      const headers: Record<string, string> = { ...session.header, Accept: 'text/event-stream' };
      if (last) headers['Last-Event-ID'] = last;
      const answer = await fetch(base + f.path, { headers, signal: AbortSignal.any([signal, cut.signal]) });
      if (!answer.ok || !answer.body) {
        const problem = await problemOf(answer);
        if (answer.status < 500 && answer.status !== 429) {
          f.end?.(problem);
          return;
        }
        throw problem;
      }
      const reader = answer.body.pipeThrough(new TextDecoderStream()).getReader();
      let text = '';
      for (;;) {
        const { value, done } = await reader.read();
        if (done) break;
        // Only now: a proxy may send the head of an answer, and keep the rest back.
        f.live?.(true);
        failures = 0;
        clearTimeout(timer);
        timer = setTimeout(() => cut.abort(), silence);
        const { events, rest } = parseEvents(text + value);
        text = rest;
        for (const e of events) {
          if (e.id) last = e.id;
          f.event(e);
          if (e.name === 'done') {
            f.live?.(false);
            return;
          }
        }
      }
    } catch {
      // The connection broke, or the server is away: below we wait and try again.
    } finally {
      clearTimeout(timer);
      cut.abort(); // a body that is not read to its end
    }
    if (signal.aborted) return;
    f.live?.(false);
    failures++;
    await new Promise((wake) => setTimeout(wake, Math.min(10_000, 500 * 2 ** Math.min(failures, 5)) * (0.5 + Math.random())));
  }
}
