// The page that the console starts with: that of the role, unless somebody with several jobs has chosen another
// one in this browser.

import { session, type Role } from './session.svelte';

const storage = 'largesse.start';
const ofRole: Record<Role, string> = {
  shopper: '/people', viewer: '/people', issuer: '/people', campaigner: '/campaigns', approver: '/approvals', operator: '/overview', admin: '/overview',
};

/** starts are the pages to choose from, and their roles. */
export const starts = [
  { path: '/campaigns', roles: ['campaigner', 'operator', 'admin'] },
  { path: '/approvals', roles: ['approver', 'operator', 'admin'] },
  { path: '/people', roles: ['viewer', 'issuer', 'campaigner', 'approver', 'operator', 'admin'] },
  { path: '/overview', roles: ['operator', 'admin'] },
] as const;

class Start {
  #chosen = $state(localStorage.getItem(storage) ?? '');

  /** offered are the paths that the role may start with. */
  get offered(): string[] {
    return starts.filter((s) => session.is(s.roles)).map((s) => s.path);
  }

  get path(): string {
    return this.offered.includes(this.#chosen) ? this.#chosen : ofRole[session.me?.role ?? 'viewer'];
  }

  choose(path: string): void {
    this.#chosen = path;
    localStorage.setItem(storage, path);
  }
}

export const start = new Start();
