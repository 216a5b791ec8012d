// The stream of events, kept alive. It is read with fetch, because EventSource sends no header: with the token an
// operator has a place beside all anonymous pages. Each stream is used once, and silence counts as an end.

const SILENCE_MS = 10_000;
const FIRST_WAIT_MS = 250;
const LONGEST_WAIT_MS = 8_000;

export class Connection {
  #listen;
  #token;
  #stream = null;
  #waitMs = FIRST_WAIT_MS;
  #silence = null;
  #retry = null;

  // listen: {message(kind, data), up(), down()}; token: () => the operator's token, or ""
  constructor(url, listen, token) {
    this.url = url;
    this.#listen = listen;
    this.#token = token;
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
    const stream = new AbortController();
    this.#stream = stream;
    this.#expectWord();
    this.#read(stream)
      .catch(() => {}) // refused, cut off, or closed by ourselves: all of it is an end
      .then(() => stream === this.#stream && this.#lost());
  }

  async #read(stream) {
    const token = this.#token();
    const headers = token ? { Accept: "text/event-stream", "X-Pgleaderlock-Token": token } : { Accept: "text/event-stream" };
    const response = await fetch(this.url, { headers, signal: stream.signal, cache: "no-store" });
    if (!response.ok) return;
    const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
    let pieces = []; // of a message that is not complete: a long one is joined once, not with each piece
    let last = "";
    for (;;) {
      const { value, done } = await reader.read();
      if (done || stream !== this.#stream) return;
      pieces.push(value);
      const isWhole = value.includes("\n\n") || (last === "\n" && value.startsWith("\n"));
      last = value.at(-1) ?? last;
      if (!isWhole) continue;
      const messages = pieces.join("").split("\n\n");
      pieces = [messages.pop()];
      for (const each of messages) if (stream === this.#stream) this.#parse(each);
    }
  }

  #parse(text) {
    const fields = new Map(text.split("\n").map((line) => [line.slice(0, line.indexOf(": ")), line.slice(line.indexOf(": ") + 2)]));
    if (fields.has("event")) this.#heard(fields.get("event"), fields.get("data"));
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
    const stream = this.#stream;
    this.#stream = null;
    stream?.abort();
    clearTimeout(this.#silence);
    clearTimeout(this.#retry);
    this.#retry = null;
  }
}
