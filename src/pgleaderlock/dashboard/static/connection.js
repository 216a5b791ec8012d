// The stream of events, kept alive. EventSource reconnects by itself only after some kinds of end, and never notices a
// peer that has gone silent; so each one is used once, and silence counts as an end.

const SILENCE_MS = 10_000;
const FIRST_WAIT_MS = 250;
const LONGEST_WAIT_MS = 8_000;

export class Connection {
  #listen;
  #source = null;
  #waitMs = FIRST_WAIT_MS;
  #silence = null;
  #retry = null;

  // listen: {message(kind, data), up(), down()}
  constructor(url, listen) {
    this.url = url;
    this.#listen = listen;
    const now = () => this.#retry !== null && !document.hidden && this.#open();
    addEventListener("online", now);
    document.addEventListener("visibilitychange", now);
    // A page that is kept for the back button would keep its stream too, and browsers allow six to a host.
    addEventListener("pagehide", () => this.#close());
    addEventListener("pageshow", (event) => event.persisted && this.#open());
    this.#open();
  }

  #open() {
    this.#close();
    const source = new EventSource(this.url);
    this.#source = source;
    for (const kind of ["snapshot", "change", "beat", "demo"]) {
      source.addEventListener(kind, (event) => source === this.#source && this.#heard(kind, event.data));
    }
    source.addEventListener("error", () => source === this.#source && this.#lost());
    this.#expectWord();
  }

  #heard(kind, data) {
    this.#expectWord();
    let message;
    try {
      message = JSON.parse(data);
    } catch {
      this.#lost(); // half a message: what follows would be built on it
      return;
    }
    this.#waitMs = FIRST_WAIT_MS;
    this.#listen.up();
    this.#listen.message(kind, message);
  }

  #expectWord() {
    clearTimeout(this.#silence);
    this.#silence = setTimeout(() => this.#lost(), SILENCE_MS);
  }

  #lost() {
    this.#close();
    this.#listen.down();
    // Up to a half sooner, so that a hundred open pages do not all come back in one moment.
    this.#retry = setTimeout(() => this.#open(), this.#waitMs * (0.5 + Math.random() / 2));
    this.#waitMs = Math.min(LONGEST_WAIT_MS, this.#waitMs * 1.7);
  }

  #close() {
    this.#source?.close();
    this.#source = null;
    clearTimeout(this.#silence);
    clearTimeout(this.#retry);
    this.#retry = null;
  }
}
