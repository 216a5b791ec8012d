// Puts the parts together: messages in, one drawing per frame out.

import { byId, isolated, make, makeName, reconcile, setData, setHidden, setName, setText, showFacts } from "./dom.js";
import { StoreClock } from "./clock.js";
import { colourOf, meet, setDark } from "./colours.js";
import { Connection } from "./connection.js";
import { Control } from "./control.js";
import { Demo } from "./demo.js";
import { Detail } from "./detail.js";
import { RoleList } from "./list.js";
import { Store, failoversOf, figuresOf, healthOf } from "./store.js";
import * as words from "./words.js";

const store = new Store();
const clock = new StoreClock();
const detail = new Detail(store, clock);
const list = new RoleList(store, clock, choose);
const control = new Control(store, () => detail.role);
const demo = new Demo(store, clock, control, () => detail.role);

const still = matchMedia("(prefers-reduced-motion: reduce)");
const system = matchMedia("(prefers-color-scheme: dark)");

// ---- what came in, drawn once per frame

const dirty = { changed: new Set(), gone: new Set(), isDue: false };

function hear(kind, message) {
  if (kind === "demo") return demo.hear(message);
  if (message.at) clock.set(message.at);
  if (kind === "beat") return undefined;
  // A server that had not yet looked had nothing to say about the window; by now it has.
  if (kind === "change" && store.isBlank) return readAll();
  const news = kind === "snapshot" ? store.replace(message) : store.update(message);
  for (const lock of news.changed) dirty.changed.add(lock);
  for (const lock of news.gone) dirty.gone.add(lock);
  announce(news.moved);
  meetNodes(news.changed);
  if (kind === "snapshot") demo.replace(store.demo);
  if (!dirty.isDue) {
    dirty.isDue = true;
    // A tab in the background gets no frames, and its title should be right all the same.
    document.hidden ? setTimeout(draw) : requestAnimationFrame(draw);
  }
  return undefined;
}

async function readAll() {
  try {
    hear("snapshot", await (await fetch("/api/state")).json());
  } catch {
    // The stream ends with the server, and says so itself.
  }
}

function draw() {
  dirty.isDue = false;
  const [changed, gone] = [[...dirty.changed], [...dirty.gone]];
  dirty.changed.clear();
  dirty.gone.clear();
  showMode();
  list.update(changed, gone);
  if (detail.lock !== null && !detail.role) choose(list.first, false);
  if (detail.lock === null && store.roles.size) choose(list.first, false);
  else if (changed.includes(detail.lock)) detail.update();
  else detail.showEvents();
  showTotals();
  showNodes();
  showAlerts();
  showSource();
  control.update();
  demo.update();
  showTitle();
}

function meetNodes(locks) {
  const names = store.nodes.map((each) => each.node);
  for (const lock of locks) {
    const role = store.roles.get(lock);
    if (role) names.push(...role.candidates.map((each) => each.node), ...role.terms.map((each) => each.node));
  }
  meet(names);
}

function showMode() {
  const mode = store.roles.size === 0 ? "empty" : store.roles.size === 1 ? "one" : "many";
  setData(document.body, "mode", mode);
  setHidden(byId("empty"), mode !== "empty");
  setHidden(byId("overview"), mode !== "many");
  setText(byId("empty-title"), store.isBlank ? "One moment…" : "No candidates yet");
  setText(byId("empty-text"), store.isBlank ? "The dashboard reads its store." : "As soon as a node takes part in an election, its role appears here by itself.");
}

function choose(lock, isToOpen) {
  detail.open(lock);
  list.select(lock);
  control.update();
  demo.update();
  showTitle();
  if (!isToOpen) return;
  document.body.classList.add("reading");
  byId("sentence").focus({ preventScroll: matchMedia("(min-width: 1080px)").matches });
}

// ---- the whole, in a few figures

function showTotals() {
  if (store.roles.size < 2) return;
  const now = clock.now();
  const roles = [...store.roles.values()];
  const kinds = roles.map((role) => healthOf(role, now));
  const none = kinds.filter((each) => each.word === "No leader").length;
  const risky = kinds.filter((each) => each.kind === "risk" || each.kind === "bad").length - none;
  showFacts(byId("totals"), [
    ["Roles", String(roles.length)],
    ["Without a leader", String(none), "", none ? "bad" : "good"],
    ["At risk", String(risky), "With a leader that is silent or overdue, or with two leaders at once", risky ? "risk" : "good"],
    ["Nodes", String(store.nodes.length)],
    ["Failovers", String(roles.reduce((sum, role) => sum + failoversOf(role), 0)), `In the last ${words.span(store.span)}`],
    ["Leaderless", words.took(roles.reduce((sum, role) => sum + figuresOf(role, now).leaderless, 0)), `All roles together, in the last ${words.span(store.span)}`],
  ]);
}

function showNodes() {
  if (store.roles.size < 2) return;
  const alive = store.nodes.filter((each) => each.is_alive).length;
  const all = words.count(store.nodes.length, "node");
  setText(byId("nodes-title"), alive === store.nodes.length ? all : `${all}, ${store.nodes.length - alive} not heard of`);
  const create = () => {
    const item = make("li");
    item.append(make("span", "swatch"), makeName(), make("small"));
    return item;
  };
  const update = (item, each) => {
    item.firstChild.style.background = colourOf(each.node);
    setName(item.children[1], each.node);
    setText(item.lastChild, each.is_alive ? `leads ${each.leads} of ${words.count(each.stands_for, "role")}` : "not heard of");
    setData(item, "kind", each.is_alive ? "" : "gone");
  };
  reconcile(byId("nodes"), store.nodes, (each) => `${each.instance} ${each.node}`, create, update);
}

// ---- alerts

const WORTH = { firing: 0, pending: 1, ok: 2, unknown: 3 };
let isEveryAlertShown = false;

function showAlerts() {
  const firing = store.alerts.filter((each) => each.state === "firing");
  const button = byId("alerts-button");
  setHidden(button, store.alerts.length === 0);
  const pending = store.alerts.filter((each) => each.state === "pending").length;
  setText(button, firing.length ? words.count(firing.length, "alert") : pending ? `${pending} building up` : "No alerts");
  setData(button, "kind", firing.some((each) => each.severity === "critical") ? "bad" : firing.length || pending ? "risk" : "good");
  const shown = store.alerts.filter((each) => isEveryAlertShown || !["ok", "unknown"].includes(each.state));
  shown.sort((a, b) => (WORTH[a.state] ?? 1) - (WORTH[b.state] ?? 1));
  button.setAttribute("aria-expanded", String(isEveryAlertShown));
  setHidden(byId("alerts"), shown.length === 0);
  reconcile(byId("alert-list"), shown, (each) => `${each.name} ${each.role ?? ""} ${each.summary}`, makeAlert, fillAlert);
}

function makeAlert() {
  const item = make("li");
  item.append(make("b"), makeName("role"), makeName("summary"), make("small"));
  return item;
}

function fillAlert(item, each) {
  const [name, role, summary, state] = item.children;
  setText(name, words.alertWord(each.name));
  // The summary often names the role itself; once is enough.
  const said = each.summary ?? "";
  setName(role, each.role && !said.includes(each.role) ? each.role : "");
  setName(summary, said);
  const since = each.since ? ` for ${words.span(clock.now() - each.since)}` : "";
  setText(state, each.state === "firing" ? `firing${since}` : each.state === "pending" ? `building up${since}` : each.state === "ok" ? "quiet" : "");
  setData(item, "kind", each.state === "unknown" ? "" : each.state === "ok" ? "good" : each.state === "pending" || each.severity !== "critical" ? "risk" : "bad");
}

byId("alerts-button").addEventListener("click", () => {
  isEveryAlertShown = !isEveryAlertShown;
  showAlerts();
});

// ---- fresh or stale

const link = { isUp: false, lostAt: null, hasBeenUp: false };

function showSource() {
  const source = store.source;
  const where = byId("where");
  setName(where.firstChild ?? where.appendChild(makeName()), source?.where ?? "");
  showLink();
}

function showLink() {
  const source = store.source;
  const isFresh = link.isUp && (source?.is_fresh ?? true);
  const isBlank = link.isUp && store.isBlank && !source?.error;
  const state = isFresh ? "live" : isBlank ? "connecting" : link.hasBeenUp || link.lostAt !== null ? "stale" : "connecting";
  setData(document.body, "link", state);
  setText(byId("link-text"), state === "live" ? "Live" : state === "stale" ? "Stale" : "Connecting…");
  setHidden(byId("stale"), state !== "stale");
  if (state === "stale") setText(byId("stale"), staleReason(source));
}

function staleReason(source) {
  if (!link.isUp) {
    const since = words.span((performance.now() - (link.lostAt ?? performance.now())) / 1000);
    const seen = link.hasBeenUp ? ` What you see is from ${words.clock(clock.now())}.` : "";
    return `No connection to the dashboard's server for ${since}.${seen} Trying again by itself.`;
  }
  const since = source.stale_since ? ` since ${words.clock(source.stale_since)}` : "";
  return `The dashboard cannot read its store${since}: ${isolated(source.error ?? "no reason given")}. Trying again by itself.`;
}

new Connection("/events", {
  message: hear,
  up() {
    if (link.isUp) return;
    Object.assign(link, { isUp: true, lostAt: null, hasBeenUp: true });
    showLink();
  },
  down() {
    link.isUp = false;
    link.lostAt ??= performance.now();
    if (link.hasBeenUp) clock.stop();
    showLink();
    showTitle();
  },
}, () => control.token);

// ---- time goes by

let ticks = 0;

function tick() {
  ticks += 1;
  if (document.body.dataset.link !== "connecting") showLink();
  if (document.hidden || store.seq < 0 || document.body.dataset.link !== "live") return;
  const isWholeSecond = ticks % 4 === 0;
  if (still.matches && !isWholeSecond) return;
  const now = clock.now();
  detail.tick(now, true);
  if (store.roles.size > 1) list.tick(now, ticks % 20 === 0);
  if (isWholeSecond) {
    showTotals();
    if (store.alerts.length) showAlerts();
    showTitle();
  }
}
setInterval(tick, 250);

// ---- said aloud: a change of leader, and nothing else

let waiting = [];

function announce(moved) {
  if (!moved.length) return;
  if (!waiting.length) setTimeout(sayAloud, 300);
  waiting.push(...moved);
}

function sayAloud() {
  const last = [...new Map(waiting.map((each) => [each.lock, each])).values()];
  waiting = [];
  const say = ({ role, to }) => (to ? `${isolated(to.node)} now leads ${isolated(role)}.` : `No node leads ${isolated(role)}.`);
  setText(byId("announcer"), last.length > 3 ? `${last.length} roles changed their leader.` : last.map(say).join(" "));
}

function showTitle() {
  const role = store.roles.size === 1 ? detail.role : null;
  const now = clock.now();
  const bad = [...store.roles.values()].filter((each) => healthOf(each, now).kind === "bad").length;
  let title = "pgleaderlock";
  if (role) title = `${role.leader ? isolated(role.leader.node) : "No node"} leads ${isolated(role.role)}`;
  else if (store.roles.size) title = bad ? `${bad} of ${words.count(store.roles.size, "role")} in trouble` : `${words.count(store.roles.size, "role")}, all led`;
  if (store.seq >= 0 && !link.isUp) title = `Stale · ${title}`;
  if (document.title !== title) document.title = title;
}

// ---- dark and light

function showTheme() {
  const chosen = document.documentElement.dataset.theme;
  setDark(chosen ? chosen === "dark" : system.matches);
  byId("theme").setAttribute("aria-pressed", String(chosen ? chosen === "dark" : system.matches));
  if (store.seq >= 0) {
    list.update([...store.roles.keys()], []);
    detail.update();
    showNodes();
  }
}

function toggleTheme() {
  const root = document.documentElement;
  const isDark = root.dataset.theme ? root.dataset.theme === "dark" : system.matches;
  root.dataset.theme = isDark ? "light" : "dark";
  try {
    localStorage.setItem("pgleaderlock.theme", root.dataset.theme);
  } catch {
    // Then it lasts until the page is left.
  }
  showTheme();
}

byId("theme").addEventListener("click", toggleTheme);
system.addEventListener("change", showTheme);
showTheme();

// ---- the keyboard

const hasList = () => store.roles.size > 1;
const KEYS = [
  ["/", "Go to the filter", hasList],
  ["↑ ↓", "Go through the roles", hasList],
  ["Enter", "Read a role", hasList],
  ["← →", "Go through the terms, on the timeline", () => store.roles.size > 0],
  ["Esc", "Back to the list", hasList],
  ["t", "Dark or light", () => true],
  ["?", "This help", () => true],
];

// Only keys that do something on the page as it is: one role has no list.
function showHelp() {
  const create = ([key, what]) => {
    const box = make("div");
    box.append(make("dt"), make("dd", "", what));
    box.firstChild.append(make("kbd", "", key));
    return box;
  };
  reconcile(byId("keys"), KEYS.filter(([, , isThere]) => isThere()), ([key]) => key, create, () => {});
  byId("help-dialog").showModal();
}

function back() {
  document.body.classList.remove("reading");
  if (store.roles.size > 1) list.focusBy(0);
}

const SHORTCUTS = {
  "/": () => hasList() && (document.body.classList.remove("reading"), byId("filter").focus()),
  "?": showHelp,
  t: toggleTheme,
  ArrowDown: () => list.focusBy(0),
  ArrowUp: () => list.focusBy(0),
  Escape: back,
};

addEventListener("keydown", (event) => {
  if (event.defaultPrevented || event.ctrlKey || event.metaKey || event.altKey) return;
  if (event.target.closest?.("input, dialog")) return;
  const isArrow = event.key === "ArrowDown" || event.key === "ArrowUp";
  if (isArrow && (store.roles.size < 2 || event.target !== document.body)) return; // arrows scroll what has the focus
  const run = Object.hasOwn(SHORTCUTS, event.key) ? SHORTCUTS[event.key] : null;
  if (!run) return;
  event.preventDefault();
  run();
});

byId("help").addEventListener("click", showHelp);
byId("back").addEventListener("click", back);
for (const dialog of document.querySelectorAll("dialog")) {
  dialog.addEventListener("click", (event) => {
    if (event.target === dialog || event.target.closest("[data-close]")) dialog.close();
  });
}
