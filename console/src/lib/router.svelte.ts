// The address of the view, in the hash: every view, filters included, can be sent to a
// colleague, and the server needs no routes for it.

class Router {
  path = $state('/');
  query = $state(new URLSearchParams());

  constructor() {
    this.#read();
    addEventListener('hashchange', () => this.#read());
  }

  /** parts of the path: "/promotions/7" is ["promotions", "7"]. */
  get parts(): string[] {
    return this.path.split('/').filter(Boolean).map(decode);
  }

  go(path: string, query: Record<string, string> = {}): void {
    location.hash = href(path, query).slice(1);
  }

  /** set changes filters in place: going back skips them. */
  set(query: Record<string, string | undefined>): void {
    const next = new URLSearchParams(this.query);
    for (const [name, value] of Object.entries(query)) {
      if (value) next.set(name, value);
      else next.delete(name);
    }
    const text = next.toString();
    history.replaceState(null, '', '#' + this.path + (text ? '?' + text : ''));
    this.query = next;
  }

  #read(): void {
    const [path = '/', query = ''] = location.hash.slice(1).split('?', 2);
    this.path = path || '/';
    this.query = new URLSearchParams(query);
  }
}

function decode(part: string): string {
  try {
    return decodeURIComponent(part);
  } catch {
    return part;
  }
}

/** href is the link to a view. */
export function href(path: string, query: Record<string, string> = {}): string {
  const text = new URLSearchParams(Object.entries(query).filter(([, v]) => v)).toString();
  return '#' + path + (text ? '?' + text : '');
}

export const router = new Router();
