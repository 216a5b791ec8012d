// The store's time of day, carried on between messages by the browser's monotonic clock. The browser's own time of day is
// never used: it may be hours off.

export class StoreClock {
  #at = 0;
  #heard = 0;
  #stoppedAt = null;

  set(at) {
    this.#at = at;
    this.#heard = performance.now();
    this.#stoppedAt = null;
  }

  // A page that has lost its server stops counting: how long a node has led is then not known.
  stop() {
    this.#stoppedAt ??= this.now();
  }

  now() {
    return this.#stoppedAt ?? this.#at + (performance.now() - this.#heard) / 1000;
  }
}
