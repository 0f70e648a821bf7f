// Why something was not paid, and who paused a promotion and why. The server says in English what Largesse found by itself.
import { plain } from './format';
import { translated } from './language.svelte';

const causes: [RegExp, string][] = [
  [/^the next payout would exceed the budget/, 'budget'],
  [/payouts that ended failed: check their error codes/, 'failures'],
  [/^waits for an approval/, 'approval'],
  [/^ended at /, 'ended'],
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

/** pauser is the person who paused; '' if Largesse did. */
export const pauser = (p: { pausedBy?: string }): string => (p.pausedBy === 'largesse' ? '' : plain(p.pausedBy));

/** answerOf is what came of a call to the provider: what Largesse found in the language of the page, otherwise the provider's words. */
export const answerOf = (code: string | undefined, message: string | undefined): string => translated('answer', code) ?? plain(message || code);

/** codedAnswer is answerOf with its code. */
export const codedAnswer = (code: string | undefined, message: string | undefined): string => plain([code, translated('answer', code) ?? message].filter(Boolean).join(': '));
