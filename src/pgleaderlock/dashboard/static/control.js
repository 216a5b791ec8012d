// The few things one may ask for: a step-down, and in the demo worse. All of it needs the token.

import { byId, isolated, make, makeName, readable, reconcile, setData, setHidden, setName, setText } from "./dom.js";
import * as words from "./words.js";

const KEY = "pgleaderlock.token";
const NEEDS_TOKEN = "Locked: it takes the token that the dashboard printed when it started.";
const LOG_KEPT = 50;
const GIVE_UP_MS = 60_000;

const ACTIONS = {
  kill: ["Kill −9", "Its process dies on the spot."],
  freeze: ["Freeze", "Its process stands still; its connections stay open."],
  cut: ["Cut off", "Its network falls silent."],
  step_down: ["Step down", "It is asked to hand over."],
};

function keep(token) {
  try {
    if (token) sessionStorage.setItem(KEY, token);
    else sessionStorage.removeItem(KEY);
  } catch {
    // Without storage it lasts until the page is left.
  }
  return token;
}

// The token comes in the fragment, which browsers send to nobody, and leaves the address bar before anyone copies it.
function takeToken() {
  const found = new URLSearchParams(location.hash.slice(1)).get("token");
  if (found) {
    history.replaceState(null, "", location.pathname + location.search);
    return keep(found);
  }
  try {
    return sessionStorage.getItem(KEY) ?? "";
  } catch {
    return "";
  }
}

export class Control {
  #store;
  #role;
  #token = takeToken();
  #running = new Map();
  #measured = [];
  #log = [];
  #timer = null;

  constructor(store, role) {
    this.#store = store;
    this.#role = role;
    addEventListener("hashchange", () => {
      this.#token = takeToken() || this.#token;
      this.update();
    });
    byId("unlock").addEventListener("click", () => this.#unlockOrLock());
    byId("token-form").addEventListener("submit", (event) => {
      event.preventDefault();
      this.#token = keep(byId("token-input").value.trim());
      byId("token-input").value = "";
      byId("token-dialog").close();
      this.update();
    });
    byId("step-down").addEventListener("click", () => this.#confirm());
    byId("ask-yes").addEventListener("click", () => this.#stepDown());
  }

  get token() {
    return this.#token;
  }

  update() {
    const { can } = this.#store;
    const isAnything = can.step_down || can.demo.length > 0;
    setHidden(byId("unlock"), !isAnything);
    setText(byId("unlock"), this.#token ? "Lock buttons" : "Unlock buttons");
    byId("unlock").title = this.#token ? "Forget the token" : NEEDS_TOKEN;
    const leader = this.#role()?.leader;
    setHidden(byId("step-down"), !can.step_down || can.demo.length > 0 || !leader);
    byId("step-down").disabled = !this.#token;
    byId("step-down").title = this.#token ? "" : NEEDS_TOKEN;
    this.#showDemo(this.#actions);
  }

  // In the order of the explanations above, whatever order the server has them in.
  get #actions() {
    const order = Object.keys(ACTIONS);
    return [...this.#store.can.demo].sort((a, b) => order.indexOf(a) - order.indexOf(b));
  }

  #unlockOrLock() {
    if (this.#token) {
      this.#token = keep("");
      this.update();
    } else this.#askForToken("");
  }

  #askForToken(reason) {
    setText(byId("token-reason"), reason);
    byId("token-dialog").showModal();
    byId("token-input").focus();
  }

  #confirm() {
    const role = this.#role();
    if (!role?.leader) return;
    this.asked = role;
    setText(byId("ask-title"), `Ask ${isolated(role.leader.node)} to hand over ${isolated(role.role)}?`);
    byId("ask-dialog").showModal();
  }

  async #stepDown() {
    byId("ask-dialog").close();
    const { instance, token } = this.asked.leader; // the term that the dialog named: the next leader is not meant
    const answer = await this.#post("/api/step-down", { lock: this.asked.lock, instance, token });
    setText(byId("step-down-reason"), answer.isGood ? "Asked. It hands over as soon as its work is done." : answer.text);
    setTimeout(() => setText(byId("step-down-reason"), ""), 6000);
  }

  async #post(path, body) {
    let response;
    try {
      response = await fetch(path, {
        method: "POST",
        headers: { "Content-Type": "application/json", "X-Pgleaderlock-Token": this.#token },
        body: JSON.stringify(body),
      });
    } catch {
      return { isGood: false, text: "The dashboard's server did not answer." };
    }
    const said = await response.json().catch(() => ({}));
    if (response.status === 401 || response.status === 403) {
      this.#token = keep("");
      this.update();
      this.#askForToken("That token was refused.");
    }
    const text = said.text ?? said.error ?? said.detail ?? (response.ok ? "" : `The server refused (${response.status}).`);
    return { isGood: response.ok, text: String(text) };
  }

  // ---- the demo

  #showDemo(actions) {
    setHidden(byId("demo"), actions.length === 0);
    const create = (action) => {
      const item = make("li");
      const button = make("button", "demo-button");
      button.type = "button";
      const [label, hint] = ACTIONS[action] ?? [String(action), ""];
      button.append(make("b", "", label), make("span", "", hint), make("i"));
      button.addEventListener("click", () => this.#run(action));
      item.append(button);
      return item;
    };
    const update = (item, action) => {
      const button = item.firstChild;
      button.disabled = !this.#token || this.#running.size > 0;
      button.classList.toggle("running", this.#running.has(action));
    };
    reconcile(byId("demo-buttons"), actions, (action) => action, create, update);
    setText(byId("demo-reason"), this.#token ? this.refusal ?? "" : NEEDS_TOKEN);
    setHidden(byId("demo-reason"), Boolean(this.#token) && !this.refusal);
  }

  async #run(action) {
    if (this.#running.size) return;
    this.refusal = "";
    this.#running.set(action, performance.now());
    this.update();
    this.#timer = setInterval(() => this.#count(action), 50);
    const answer = await this.#post(`/api/demo/${encodeURIComponent(action)}`, { role: this.#role()?.role });
    if (answer.isGood) return;
    this.refusal = answer.text;
    this.#finish(action);
  }

  // While it runs, the button counts; what is measured comes from the server, which was there.
  #count(action) {
    const began = this.#running.get(action);
    const ms = performance.now() - began;
    if (ms > GIVE_UP_MS) this.#finish(action);
    else setText(this.#counter(action), words.milliseconds(Math.round(ms)));
  }

  #counter(action) {
    const at = this.#actions.indexOf(action);
    return byId("demo-buttons").children[at]?.querySelector("i") ?? make("i");
  }

  #finish(action) {
    if (!this.#running.delete(action)) return;
    clearInterval(this.#timer);
    setText(this.#counter(action), "");
    this.update();
  }

  hear(message) {
    const isMeasured = message.failover_ms !== null && message.failover_ms !== undefined;
    this.#log.unshift({ ...message, isMeasured, number: (this.#log[0]?.number ?? 0) + 1 });
    this.#log.length = Math.min(this.#log.length, LOG_KEPT);
    if (isMeasured) {
      this.#measured.push(message);
      setHidden(byId("demo-results"), false);
      setText(byId("demo-big"), words.milliseconds(message.failover_ms));
      setName(byId("demo-text"), message.text ?? "");
    }
    if (message.alarm) this.refusal = readable(message.text);
    if (isMeasured || message.alarm) this.#finish(message.action);
    this.#showMeasured();
    this.update();
  }

  #showMeasured() {
    const actions = this.#actions.filter((action) => this.#measured.some((each) => each.action === action));
    reconcile(byId("demo-table"), actions, (action) => action, makeFigures, (row, action) => {
      const all = this.#measured.filter((each) => each.action === action).map((each) => each.failover_ms).sort((a, b) => a - b);
      const values = [labelOf(action), String(all.length), ...[all[0], median(all), all.at(-1)].map(words.milliseconds)];
      values.forEach((value, index) => setText(row.children[index], value));
    });
    reconcile(byId("demo-log"), this.#log, (each) => each.number, makeLine, (line, each) => {
      setText(line.children[0], each.isMeasured ? labelOf(each.action) : "");
      setName(line.children[1], each.text ?? each.node);
      setText(line.children[2], each.isMeasured ? words.milliseconds(each.failover_ms) : "");
      setData(line, "kind", each.alarm ? "bad" : each.isMeasured ? "" : "note");
    });
  }
}

const labelOf = (action) => ACTIONS[action]?.[0] ?? String(action);

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

function makeLine() {
  const line = make("li");
  line.append(make("b"), makeName(), make("span"));
  return line;
}
