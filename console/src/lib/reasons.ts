// Why Largesse paused a promotion by itself: the server says it in English.
import { translated } from './language.svelte';

const causes: [RegExp, string][] = [
  [/^the next payout would exceed the budget/, 'budget'],
  [/payouts that ended failed: check their error codes/, 'failures'],
  [/^waits for an approval/, 'approval'],
  [/^the canary is bad/, 'canary'],
  [/^the provider responded|cannot be sent to the provider/, 'provider'],
  [/^outcomes of promotion/, 'outcomes'],
  [/^the books do not balance|has charged target .* twice|has confirmed target/, 'books'],
];

/** pauseReason is a reason in the language of the page; one that a person wrote stays as it is. */
export function pauseReason(text: string): string {
  const cause = causes.find(([pattern]) => pattern.test(text))?.[1];
  return translated('pause', cause) ?? text;
}
