// Who is signed in. The key stays in this module's memory; in session storage only
// if the user asked for it, so that a reload keeps it.

import { base } from './base';
import { t } from './language.svelte';

export type Role = 'shopper' | 'viewer' | 'issuer' | 'campaigner' | 'approver' | 'operator' | 'admin';
/** Needed is a role that controls need. The roles of its list have it, too. */
export type Needed = keyof typeof including;
export interface Me {
  name: string;
  role: Role;
  expiresAt?: string;
}

const storage = 'largesse.key';
const including = {
  issuer: ['issuer', 'operator', 'admin'], campaigner: ['campaigner', 'operator', 'admin'], approver: ['approver', 'operator', 'admin'], operator: ['operator', 'admin'], admin: ['admin'],
} satisfies Record<string, Role[]>;

class Session {
  me = $state<Me | null>(null);
  ended = $state(false); // the server no longer takes the key
  #key = '';

  /** header returns what every request carries. */
  get header(): Record<string, string> {
    return this.#key ? { Authorization: `Bearer ${this.#key}` } : {};
  }

  /** may tells whether the role allows what needs this role. An issuer reads nothing more than its own calls. */
  may(role: Needed): boolean {
    return (including[role] as Role[]).includes(this.me?.role ?? 'shopper');
  }

  /** resume signs in with a kept key, or without one where the server asks for none. */
  async resume(): Promise<void> {
    this.#key = sessionStorage.getItem(storage) ?? '';
    const said = await this.#ask();
    if (!said) this.leave();
  }

  /** enter signs in, and returns why not. */
  async enter(key: string, keep: boolean): Promise<string> {
    this.#key = key.trim();
    // A header cannot carry other characters.
    if (!/^[\x21-\x7e]+$/.test(this.#key)) {
      this.#key = '';
      return t('signIn.malformed');
    }
    let said: boolean;
    try {
      said = await this.#ask();
    } catch {
      this.#key = '';
      return t('signIn.silent');
    }
    if (!said) {
      this.#key = '';
      return t('signIn.refused');
    }
    if (keep) sessionStorage.setItem(storage, this.#key);
    return '';
  }

  /** is tells whether the role is one of these. */
  is(roles: readonly Role[]): boolean {
    return this.me !== null && roles.includes(this.me.role);
  }

  leave(ended = false): void {
    this.ended = ended && (this.ended || this.me !== null);
    this.#key = '';
    this.me = null;
    sessionStorage.removeItem(storage);
  }

  async #ask(): Promise<boolean> {
    const answer = await fetch(base + 'v1/me', { headers: this.header });
    if (answer.status === 401 || answer.status === 403) return false;
    if (!answer.ok) throw new Error(`HTTP ${answer.status}`);
    this.me = (await answer.json()) as Me;
    return true;
  }
}

export const session = new Session();
