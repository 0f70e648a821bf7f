// What the page says, in words.

import { plural } from '../lib/format';

/** wait says how long it will take, without a precision that nobody has. */
export function wait(milliseconds: number): string {
  const s = milliseconds / 1000;
  if (s < 2) return 'a moment';
  if (s < 50) return `about ${Math.ceil(s / 5) * 5} seconds`;
  if (s < 90) return 'about a minute';
  if (s < 3600) return `about ${Math.round(s / 60)} minutes`;
  const hours = Math.round(s / 3600);
  return hours === 1 ? 'about an hour' : `about ${hours} hours`;
}

/** countdown writes what is left as 12 days, 1 d 02:03:04, 02:03:04 or 03:04. */
export function countdown(milliseconds: number): string {
  const s = Math.max(0, Math.ceil(milliseconds / 1000));
  const two = (n: number) => String(n).padStart(2, '0');
  const [d, h, m] = [Math.floor(s / 86400), Math.floor((s % 86400) / 3600), Math.floor((s % 3600) / 60)];
  if (d > 2) return plural(d, 'day');
  return (d ? `${d} d ` : '') + (d || h ? two(h) + ':' : '') + `${two(m)}:${two(s % 60)}`;
}

/** ends says why there is no coupon, kindly. */
export const ends: Record<string, { title: string; text: string; again: boolean }> = {
  SOLD_OUT: { title: 'Sold out', text: 'All coupons went to people who asked before. Thank you for waiting. If somebody gives theirs back, it becomes free again.', again: true },
  NOT_DRAWN: { title: 'Not drawn this time', text: 'The draw chose other people. Thank you for taking part.', again: true },
  USER_LIMIT: { title: 'You have yours', text: 'You already have as many coupons of this offer as one person may have.', again: false },
  HOLD_LAPSED: { title: 'Others come first now', text: 'You did not confirm a coupon in time. Ask again a little later.', again: true },
  CLOSED: { title: 'This offer has ended', text: 'No more coupons are given out. Thank you for your interest.', again: false },
  LEFT: { title: 'You left the line', text: 'Your place went to the next person. You may ask again, and then wait at the end.', again: true },
  HOLD_EXPIRED: { title: 'The time to confirm is over', text: 'The coupon was held for you and then went to the next person. You may ask again.', again: true },
  CANCELLED: { title: 'The coupon was cancelled', text: 'It can no longer be used.', again: true },
  EXPIRED: { title: 'The coupon has expired', text: 'It can no longer be used.', again: false },
  ERROR: { title: 'That did not work', text: 'Something failed on our side. Ask again: nothing is lost.', again: true },
};
