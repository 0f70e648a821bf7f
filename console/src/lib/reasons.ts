// Why something was not paid, who paused a promotion and why, and what does not balance. The server says in English what Largesse found by itself.
import type { Schemas } from './api';
import { plain } from './format';
import { named, t, translated } from './language.svelte';
import { session } from './session.svelte';

/** pauseReason is why something is paused, in the language of the page; what a person wrote stays as it is. */
export function pauseReason(p: { pauseReason?: string; pauseCause?: string }): string {
  const [, by, why] = /^(?:rejected|paused) by "(.*?)"(?:: (.*))?$/s.exec(p.pauseReason ?? '') ?? [];
  if (p.pauseCause === 'rejected' && by) return t('pause.rejected', { name: plain(by), why: plain(why) });
  if (p.pauseCause === 'person' && by) return ''; // the page says who
  return translated('pause', p.pauseCause) ?? plain(p.pauseReason);
}

/** pauser is the person who paused; '' if Largesse did. */
export const pauser = (p: { pausedBy?: string }): string => (p.pausedBy === 'largesse' ? '' : plain(p.pausedBy));

/** answerOf is what came of a call to the provider: what Largesse found in the language of the page, otherwise the provider's words. */
export const answerOf = (code: string | undefined, message: string | undefined): string => translated('answer', code) ?? plain(message || code);

/** codedAnswer is answerOf, for operators with its code. */
export const codedAnswer = (code: string | undefined, message: string | undefined): string => (session.may('operator') ? plain([code, translated('answer', code) ?? message].filter(Boolean).join(': ')) : answerOf(code, message));

/** driftOf is what a reconciliation found, in the language of the page. */
export function driftOf(d: Schemas['Drift']): string {
  const [kind, state] = d.what.split('.');
  const found = translated('drift', d.what) ?? translated('drift', kind);
  if (!found) return plain(d.detail) || d.what;
  const of = kind === 'counts' || kind === 'amounts' ? named('state', state!.toUpperCase()) : d.userId;
  const exact = namesPayouts.has(d.what) ? d.detail : '';
  return plain([found, of && `(${of})`, exact && `(${exact})`].filter(Boolean).join(' '));
}
// Drifts whose details name the payouts and their transaction keys.
const namesPayouts = new Set(['charges.twice', 'transactions']);

/** troubleOf is why a part of Largesse is in trouble, in the language of the page, with the words of the log. */
export function troubleOf(part: string, reason: string | undefined): string {
  const found = translated('trouble', part);
  return found ? `${found} (${plain(reason)})` : plain(reason);
}
