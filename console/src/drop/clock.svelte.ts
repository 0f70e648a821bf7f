// The server's clock. Its answers carry the time in whole seconds; each narrows the
// bounds between which the difference to this browser's clock must be.

export class Clock {
  now = $state(Date.now());
  #low = -Infinity;
  #high = Infinity;
  #timer = setInterval(() => this.#tick(), 250);

  #tick(): void {
    this.now = Date.now() + this.#difference;
  }

  get #difference(): number {
    return Number.isFinite(this.#low) ? (this.#low + this.#high) / 2 : 0;
  }

  /** learn takes an answer, and when its request was sent. */
  learn(answer: Response, sent: number): void {
    const said = Date.parse(answer.headers.get('Date') ?? '');
    if (Number.isNaN(said)) return;
    // It was written between the request and now, in the second that begins with said.
    const low = said - Date.now();
    const high = said + 1000 - sent;
    if (low > this.#high || high < this.#low) {
      this.#low = low; // a clock was set
      this.#high = high;
    } else {
      this.#low = Math.max(this.#low, low);
      this.#high = Math.min(this.#high, high);
    }
    this.#tick();
  }

  stop(): void {
    clearInterval(this.#timer);
  }
}
