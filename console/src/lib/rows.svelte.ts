// Whether rows of tables are roomy, as this browser remembers.

const storage = 'largesse.roomy';

class Rows {
  roomy = $state(localStorage.getItem(storage) === 'true');

  constructor() {
    this.#show();
  }

  toggle(): void {
    this.roomy = !this.roomy;
    if (this.roomy) localStorage.setItem(storage, 'true');
    else localStorage.removeItem(storage);
    this.#show();
  }

  #show(): void {
    document.documentElement.classList.toggle('roomy', this.roomy);
  }
}

export const rows = new Rows();
