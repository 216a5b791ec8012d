// The store's time of day, carried on between messages by the browser's monotonic clock. What the browser believes the
// time of day to be is never asked: it may be hours off.

export class StoreClock {
  #at = 0;
  #heard = 0;
  #stoppedAt = null;

  set(at) {
    this.#at = at;
    this.#heard = performance.now();
    this.#stoppedAt = null;
  }

  // A page that has lost its server stops counting: how long somebody has led is then not known.
  stop() {
    this.#stoppedAt ??= this.now();
  }

  now() {
    return this.#stoppedAt ?? this.#at + (performance.now() - this.#heard) / 1000;
  }
}
