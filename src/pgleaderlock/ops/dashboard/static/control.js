// The token, and what needs it everywhere: asking a leader to step down. What the demo does with it is in demo.js.

import { byId, isolated, setHidden, setText } from "./dom.js";

const KEY = "pgleaderlock.token";
export const NEEDS_TOKEN = "Disabled: needs the token that the dashboard printed when it started.";
const REFUSAL_SHOWN_MS = 10_000;

function keep(token) {
  try {
    if (token) sessionStorage.setItem(KEY, token);
    else sessionStorage.removeItem(KEY);
  } catch {
    // Without storage it lasts until the page is left.
  }
  return token;
}

// The token comes in the fragment, which browsers do not send, and leaves the address bar before anyone copies it.
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
  #pending = null; // the term that was asked to end
  onToken = () => {};

  constructor(store, role) {
    this.#store = store;
    this.#role = role;
    addEventListener("hashchange", () => this.#use(takeToken() || this.#token));
    byId("unlock").addEventListener("click", () => this.#unlockOrLock());
    byId("token-form").addEventListener("submit", (event) => {
      event.preventDefault();
      const typed = byId("token-input").value.trim();
      byId("token-input").value = "";
      byId("token-dialog").close();
      this.#use(keep(typed));
    });
    byId("step-down").addEventListener("click", () => this.#confirm());
    byId("ask-yes").addEventListener("click", () => this.#stepDown());
  }

  get token() {
    return this.#token;
  }

  #use(token) {
    this.#token = token;
    this.update();
    this.onToken();
  }

  update() {
    const { can } = this.#store;
    const isAnything = can.step_down || can.demo.length > 0;
    setHidden(byId("unlock"), !isAnything);
    setText(byId("unlock"), this.#token ? "Disable actions" : "Enable actions");
    byId("unlock").title = this.#token ? "Forget the token" : "Enter the token that the dashboard printed when it started";
    const leader = this.#role()?.leader;
    const button = byId("step-down");
    // Between two leaders a button that has the focus stays, and keeps it: hidden or disabled it would lose it.
    setHidden(button, !can.step_down || can.demo.length > 0 || (!leader && document.activeElement !== button));
    button.disabled = !this.#token;
    button.setAttribute("aria-disabled", String(!this.#token || !leader));
    button.title = this.#token ? "" : NEEDS_TOKEN;
    this.#forgetWhatIsDone();
  }

  #forgetWhatIsDone() {
    if (!this.#pending) return;
    const leader = this.#store.roles.get(this.#pending.lock)?.leader;
    const isSame = leader && leader.instance === this.#pending.leader.instance && leader.token === this.#pending.leader.token;
    if (!isSame) this.#say("", null);
  }

  #say(text, pending) {
    this.#pending = pending;
    setText(byId("step-down-reason"), text);
  }

  #unlockOrLock() {
    if (this.#token) this.#use(keep(""));
    else this.#askForToken("");
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
    const answer = await this.post("/api/step-down", { lock: this.asked.lock, instance, token });
    if (answer.isGood) {
      this.#say("Asked. It hands over as soon as its work is done.", this.asked);
      this.update(); // it may be done by now
      return;
    }
    this.#say(answer.text, null);
    setTimeout(() => byId("step-down-reason").textContent === answer.text && this.#say("", null), REFUSAL_SHOWN_MS);
  }

  async post(path, body) {
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
      this.#use(keep(""));
      this.#askForToken("That token was refused.");
    }
    const text = said.text ?? said.error ?? said.detail ?? (response.ok ? "" : `The server refused (${response.status}).`);
    return { isGood: response.ok, text: String(text) };
  }
}
