// What the page says, in words.

import { t } from '../lib/language.svelte';

/** wait says how long it will take, without a precision that nobody has. */
export function wait(milliseconds: number): string {
  const s = milliseconds / 1000;
  if (s < 2) return t('wait.moment');
  if (s < 50) return t('wait.seconds', { n: Math.ceil(s / 5) * 5 });
  if (s < 3600) return t('wait.minutes', { n: Math.round(s / 60) || 1 });
  return t('wait.hours', { n: Math.round(s / 3600) });
}

/** countdown writes what is left as 12 days, 1 d 02:03:04, 02:03:04 or 03:04. */
export function countdown(milliseconds: number): string {
  const s = Math.max(0, Math.ceil(milliseconds / 1000));
  const two = (n: number) => String(n).padStart(2, '0');
  const [d, h, m] = [Math.floor(s / 86400), Math.floor((s % 86400) / 3600), Math.floor((s % 3600) / 60)];
  if (d > 2) return t('wait.days', { n: d });
  return (d ? `${t('time.days', { d })} ` : '') + (d || h ? two(h) + ':' : '') + `${two(m)}:${two(s % 60)}`;
}

/** ends maps why there is no coupon to what the page says, kindly, and whether it makes sense to ask again. */
const ends = {
  SOLD_OUT: ['end.soldOut', 'end.soldOutText', true],
  NOT_DRAWN: ['end.notDrawn', 'end.notDrawnText', true],
  USER_LIMIT: ['end.userLimit', 'end.userLimitText', false],
  HOLD_LAPSED: ['end.holdLapsed', 'end.holdLapsedText', true],
  CLOSED: ['end.closed', 'end.closedText', false],
  LEFT: ['end.left', 'end.leftText', true],
  HOLD_EXPIRED: ['end.holdExpired', 'end.holdExpiredText', true],
  CANCELLED: ['end.cancelled', 'end.cannotUse', true],
  EXPIRED: ['end.expired', 'end.cannotUse', false],
  ERROR: ['end.error', 'end.errorText', true],
} as const;

/** endOf says why there is no coupon. */
export function endOf(reason: string): { title: string; text: string; again: boolean } {
  const [title, text, again] = ends[reason as keyof typeof ends] ?? ends.ERROR;
  return { title: t(title), text: t(text), again };
}
