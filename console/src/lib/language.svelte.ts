// The language of the pages, and their texts in it. The messages are in console/messages, in ICU MessageFormat.

import { IntlMessageFormat } from 'intl-messageformat';
import en from '../../messages/en.json';
import ko from '../../messages/ko.json';
import type { Group, Messages, Value } from './messages';

type Key = keyof Messages;
const texts: Record<string, Record<string, string | undefined>> = { en, ko };
const names: Record<string, string> = { en: 'English', ko: '한국어' }; // each in itself
const storage = 'largesse.language';

/** offered are the languages of this server by their tags, the default one first. */
export const offered = (document.documentElement.dataset.languages ?? 'en,ko').split(',');

/** first decides the language of a page: its address, then what was chosen before, then what the browser wants. */
function first(): string {
  const wanted = [new URLSearchParams(location.search).get('lang'), localStorage.getItem(storage), ...navigator.languages];
  return wanted.map((tag) => tag?.split('-')[0]?.toLowerCase() ?? '').find((tag) => offered.includes(tag)) ?? offered[0]!;
}

class Language {
  #chosen = $state(first());
  #spoken: string | undefined; // in speak

  constructor() {
    this.#show();
  }

  get now(): string {
    return this.#spoken ?? this.#chosen;
  }

  /** speak makes texts in another language than that of the page, such as a customer's. */
  speak<T>(tag: string, make: () => T): T {
    this.#spoken = tag;
    try {
      return make();
    } finally {
      this.#spoken = undefined;
    }
  }

  /** locale has the region that the browser prefers for the language: 31/12 and 24 hours for en-GB. */
  get locale(): string {
    return navigator.languages.find((tag) => tag.split('-')[0] === this.now) ?? this.now;
  }

  /** choose changes the language of everything that is shown, and remembers it. */
  choose(tag: string): void {
    this.#chosen = tag;
    localStorage.setItem(storage, tag);
    const query = new URLSearchParams(location.search);
    query.delete('lang'); // it would win after a reload
    history.replaceState(null, '', location.pathname + (query.size ? `?${query}` : '') + location.hash);
    this.#show();
  }

  #show(): void {
    document.documentElement.lang = this.now;
  }
}

export const language = new Language();

/** nameOf is the name of a language in itself. */
export const nameOf = (tag: string): string => names[tag] ?? tag;

const formats = new Map<string, IntlMessageFormat>();

function format(key: string, values: Record<string, unknown> | undefined): unknown {
  const { locale, now } = language;
  const text = texts[now]?.[key] ?? '';
  if (!values) return text;
  const id = `${locale} ${key}`;
  let found = formats.get(id);
  if (!found) formats.set(id, (found = new IntlMessageFormat(text, locale)));
  return found.format(values as Record<string, string>);
}

/** t is the text of a message in the language of the page. */
export function t<K extends Key>(key: K, ...[values]: Messages[K] extends undefined ? [] : [Messages[K]]): string {
  return format(key, values) as string;
}

/** named translates a code of the server; a code without a message is written in small letters. */
export function named(group: Group, code: string): string {
  return texts[language.now]?.[`${group}.${code}`] ?? code.toLowerCase().replaceAll('_', ' ');
}

/** translated is the message for a code of the server, which itself says it in English; undefined without one. */
export function translated(group: 'error' | 'line' | 'pause' | 'answer' | 'drift' | 'trouble', code: string | undefined): string | undefined {
  return texts[language.now]?.[`${group}.${code}`];
}

/** Drawn is a part of a sentence that a snippet draws: <name>text</name>, or {name}, whose text is empty. */
export interface Drawn {
  name: string;
  text: string;
}

/** sentence splits a message at what snippets draw. */
export function sentence(key: Key, values: Record<string, Value>, snippets: string[]): (string | Drawn)[] {
  const draw = snippets.map((name) => [name, (parts: string[] = []): Drawn => ({ name, text: parts.join('') })] as const);
  const found = format(key, { ...values, ...Object.fromEntries(draw) });
  return [found].flat().map((part) => (typeof part === 'function' ? (part as () => Drawn)() : (part as string | Drawn)));
}
