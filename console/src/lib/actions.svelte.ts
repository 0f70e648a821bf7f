// What the page that is open can do: the palette offers it, too.

export interface Action {
  label: string;
  run: () => void;
}

class Actions {
  list = $state.raw<Action[]>([]);

  /** offer sets what the page can do; call it in an $effect, which gets its end. */
  offer(list: Action[]): () => void {
    this.list = list;
    return () => {
      if (this.list === list) this.list = [];
    };
  }
}

export const actions = new Actions();
