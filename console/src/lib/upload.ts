// Sends a file, and says how much of it has left the browser, which fetch cannot.

import { problemOf } from './api';
import { base } from './base';
import { session } from './session.svelte';

/**
 * upload posts a file to a path of the API and returns its answer; failures are thrown. sent gets the share of the
 * file that was sent, from 0 to 1. After 1, the server still reads it. A signal ends it.
 */
export async function upload<T>(path: string, file: Blob, type: string, sent: (share: number) => void, signal?: AbortSignal): Promise<T> {
  const response = await new Promise<Response>((resolve, reject) => {
    const request = new XMLHttpRequest();
    request.open('POST', base + path);
    for (const [name, value] of Object.entries({ ...session.header, 'Content-Type': type })) request.setRequestHeader(name, value);
    request.upload.onprogress = (e) => sent(e.total > 0 ? e.loaded / e.total : 1);
    request.onload = () => resolve(new Response(request.responseText, { status: request.status }));
    request.onerror = request.onabort = () => reject(new TypeError());
    signal?.addEventListener('abort', () => request.abort());
    request.send(file);
  });
  if (!response.ok) throw await problemOf(response);
  return (await response.json()) as T;
}
