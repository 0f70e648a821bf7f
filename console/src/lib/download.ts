// Saves an answer of the API as a file. A link cannot: it has no key.

import { problemOf } from './api';
import { base } from './base';
import { saveFile } from './save';
import { session } from './session.svelte';

/** download reads a path of the API as a type, and saves it under a name; failures are thrown. */
export async function download(path: string, type: string, name: string): Promise<void> {
  const answer = await fetch(base + path, { headers: { ...session.header, Accept: type } });
  if (!answer.ok) throw await problemOf(answer);
  const file = await answer.blob();
  saveFile(name, type === 'text/csv' ? new Blob(['\ufeff', file], { type }) : file); // with the mark, Excel reads UTF-8
}
