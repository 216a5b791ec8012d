// The demo: buttons that harm the leader, and how long each failover took. The server keeps what was measured, so that a
// reload and every other page show it too.

import { byId, make, makeName, readable, reconcile, setData, setHidden, setName, setText } from "./dom.js";
import { NEEDS_TOKEN } from "./control.js";
import * as words from "./words.js";

const LOG_SHOWN = 50;
const GIVE_UP_S = 60;
const COUNT_EVERY_MS = 50;

const ACTIONS = {
  kill: ["Kill −9", "Its process dies on the spot."],
  freeze: ["Freeze", "Its process stands still; its connections stay open."],
  cut: ["Cut off", "Its network falls silent."],
  step_down: ["Step down", "It is asked to hand over."],
};
const labelOf = (action) => ACTIONS[action]?.[0] ?? String(action);

export class Demo {
  #store;
  #clock;
  #control;
  #role;
  #notes = []; // what the server said, the oldest first
  #running = null; // {action, since}: one at a time
  #timer = null;
  #refusal = "";

  constructor(store, clock, control, role) {
    this.#store = store;
    this.#clock = clock;
    this.#control = control;
    this.#role = role;
    control.onToken = () => this.update();
  }

  // After a reload, or when this page could not keep up.
  replace(notes) {
    this.#notes = notes.map((note, number) => ({ ...note, number }));
    const last = this.#notes.findLast((note) => note.action && note.phase);
    if (last?.phase === "begun" && this.#clock.now() - last.at < GIVE_UP_S) this.#begin(last.action, last.at);
    else if (this.#running) this.#finish();
    this.update();
  }

  hear(note) {
    this.#notes.push({ ...note, number: (this.#notes.at(-1)?.number ?? -1) + 1 });
    if (note.phase === "begun") this.#begin(note.action, note.at);
    if (note.phase === "failed") this.#refusal = readable(note.text);
    if (note.phase !== "begun" && note.action === this.#running?.action) this.#finish();
    this.update();
  }

  update() {
    setHidden(byId("demo"), this.#actions.length === 0);
    reconcile(byId("demo-buttons"), this.#actions, (action) => action, (action) => this.#makeButton(action), (item, action) => this.#fillButton(item, action));
    const reason = this.#control.token ? this.#refusal : NEEDS_TOKEN;
    setText(byId("demo-reason"), reason);
    setHidden(byId("demo-reason"), !reason);
    this.#showMeasured();
  }

  // In the order of the explanations above, whatever order the server has them in.
  get #actions() {
    const order = Object.keys(ACTIONS);
    return [...this.#store.can.demo].sort((a, b) => order.indexOf(a) - order.indexOf(b));
  }

  #makeButton(action) {
    const item = make("li");
    const button = make("button", "demo-button");
    button.type = "button";
    const [label, hint] = ACTIONS[action] ?? [String(action), ""];
    const head = make("span", "demo-label");
    head.append(make("b", "", label), make("i"));
    button.append(head, make("span", "", hint));
    button.addEventListener("click", () => this.#run(action));
    item.append(button);
    return item;
  }

  // A button that is disabled loses the focus; one that is only said to be disabled keeps it.
  #fillButton(item, action) {
    const button = item.firstChild;
    button.disabled = !this.#control.token;
    button.setAttribute("aria-disabled", String(!this.#control.token || this.#running !== null));
    button.classList.toggle("running", this.#running?.action === action);
    if (this.#running?.action !== action) setText(button.querySelector("i"), "");
  }

  async #run(action) {
    if (this.#running) return;
    this.#refusal = "";
    this.#begin(action, this.#clock.now());
    const answer = await this.#control.post(`/api/demo/${encodeURIComponent(action)}`, { role: this.#role()?.role });
    if (answer.isGood) return;
    this.#refusal = answer.text;
    this.#finish();
    this.update();
  }

  // While it runs, the button counts; what is measured comes from the server, which was there.
  #begin(action, since) {
    this.#running = { action, since };
    clearInterval(this.#timer);
    this.#timer = setInterval(() => this.#count(), COUNT_EVERY_MS);
    this.update();
  }

  #count() {
    const { action, since } = this.#running;
    const seconds = Math.max(0, this.#clock.now() - since);
    if (seconds > GIVE_UP_S) this.#finish();
    else setText(byId("demo-buttons").children[this.#actions.indexOf(action)]?.querySelector("i") ?? make("i"), counted(seconds));
  }

  #finish() {
    this.#running = null;
    clearInterval(this.#timer);
    this.update();
  }

  #showMeasured() {
    const measured = this.#notes.filter((note) => note.phase === "measured");
    const last = measured.at(-1);
    setHidden(byId("demo-results"), this.#notes.length === 0);
    setHidden(byId("demo-figures"), !last);
    // What was measured last is not what is being measured.
    byId("demo-results").setAttribute("aria-busy", String(this.#running !== null));
    setText(byId("demo-big"), last ? words.milliseconds(last.failover_ms) : "");
    setName(byId("demo-text"), last?.text);
    const actions = this.#actions.filter((action) => measured.some((note) => note.action === action));
    reconcile(byId("demo-table"), actions, (action) => action, makeFigures, (row, action) => fillFigures(row, action, measured));
    // That something was begun is in its result too.
    const told = this.#notes.filter((note, index) => note.phase !== "begun" || index === this.#notes.length - 1);
    reconcile(byId("demo-log"), told.slice(-LOG_SHOWN).reverse(), (note) => note.number, makeLine, fillLine);
  }
}

const counted = (seconds) => (seconds < 1 ? `${Math.round(seconds * 1000)} ms` : `${seconds.toFixed(1)} s`);

function median(sorted) {
  const middle = sorted.length >> 1;
  return sorted.length % 2 ? sorted[middle] : (sorted[middle - 1] + sorted[middle]) / 2;
}

function makeFigures() {
  const row = make("tr");
  row.append(make("th"), make("td"), make("td"), make("td"), make("td"));
  row.firstChild.scope = "row";
  return row;
}

function fillFigures(row, action, measured) {
  const all = measured.filter((note) => note.action === action).map((note) => note.failover_ms).sort((a, b) => a - b);
  const values = [labelOf(action), String(all.length), ...[all[0], median(all), all.at(-1)].map(words.milliseconds)];
  values.forEach((value, index) => setText(row.children[index], value));
}

function makeLine() {
  const line = make("li");
  line.append(make("b"), makeName(), make("span"));
  return line;
}

function fillLine(line, note) {
  const isMeasured = note.phase === "measured";
  setText(line.children[0], isMeasured ? labelOf(note.action) : "");
  setName(line.children[1], note.text ?? note.node);
  setText(line.children[2], isMeasured ? words.milliseconds(note.failover_ms) : "");
  setData(line, "kind", note.phase === "failed" ? "bad" : isMeasured ? "" : "note");
}
