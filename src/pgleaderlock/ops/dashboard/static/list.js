// All roles in a grid: one row each, made once and then changed in place. Rows out of sight are neither laid out
// (content-visibility) nor drawn (the observer below).

import { byId, make, makeName, readable, setData, setHidden, setName, setText } from "./dom.js";
import { colourOf } from "./colours.js";
import { drawStrip } from "./timeline.js";
import { failoversOf, figuresOf, healthOf, leaderlessSince, leaseOf } from "./store.js";
import * as words from "./words.js";

const COLUMNS = [
  { key: "role", label: "Role", sorts: (a, b) => byName(a.role, b.role) },
  { key: "leader", label: "Leader", sorts: (a, b) => byName(a.leader?.node ?? "", b.leader?.node ?? "") },
  { key: "tenure", label: "For", sorts: (a, b) => (b.leader?.acquired_at ?? 0) - (a.leader?.acquired_at ?? 0) },
  { key: "lease", label: "Lease" },
  { key: "strip", label: "History" },
  { key: "leaderless", label: "Leaderless", sorts: (a, b) => b.leaderless_s - a.leaderless_s },
  { key: "failovers", label: "Failovers", sorts: (a, b) => failoversOf(b) - failoversOf(a) },
];
const compare = new Intl.Collator("en", { numeric: true }).compare;
const byName = (a, b) => compare(a, b);

export class RoleList {
  selected = null;
  #rows = new Map();
  #visible = new Set();
  #order = [];
  #sort = { key: "health", isReversed: false };
  #isTroubleOnly = false;
  #store;
  #clock;
  #choose;
  #watcher;

  constructor(store, clock, choose) {
    this.#store = store;
    this.#clock = clock;
    this.#choose = choose;
    this.#makeHead();
    const body = byId("rows");
    this.#watcher = new IntersectionObserver((entries) => this.#sight(entries), { rootMargin: "100px" });
    body.addEventListener("click", (event) => {
      const row = event.target.closest("[role=row]");
      if (row) this.#pick(row.dataset.lock, true);
    });
    body.addEventListener("keydown", (event) => this.#key(event));
    byId("filter").addEventListener("input", () => this.arrange());
    byId("filter").addEventListener("keydown", (event) => this.#filterKey(event));
    byId("trouble").addEventListener("click", () => {
      this.#isTroubleOnly = !this.#isTroubleOnly;
      byId("trouble").setAttribute("aria-pressed", String(this.#isTroubleOnly));
      this.arrange();
    });
  }

  update(changed, gone) {
    const now = this.#clock.now();
    for (const lock of gone) this.#drop(lock);
    for (const lock of changed) {
      const role = this.#store.roles.get(lock);
      if (role) this.#fill(this.#rows.get(lock) ?? this.#add(lock), role, now);
    }
    this.arrange();
  }

  // Sorted, filtered, and in the document only as far as something moved.
  arrange() {
    const now = this.#clock.now();
    const wanted = byId("filter").value.trim().toLowerCase();
    const rank = (role) => healthOf(role, now).rank;
    const sorts = COLUMNS.find((each) => each.key === this.#sort.key)?.sorts ?? ((a, b) => Math.min(4, rank(a)) - Math.min(4, rank(b)));
    const roles = [...this.#store.roles.values()].filter((role) => matches(role, wanted) && (!this.#isTroubleOnly || rank(role) < 4));
    roles.sort((a, b) => (this.#sort.isReversed ? -1 : 1) * sorts(a, b) || byName(a.role, b.role) || byName(a.lock, b.lock));
    this.#order = roles.map((role) => role.lock);
    this.#place();
    setText(byId("count"), roles.length === this.#store.roles.size ? words.count(roles.length, "role") : `${roles.length} of ${words.count(this.#store.roles.size, "role")}`);
    setText(byId("no-match"), this.#isTroubleOnly && !wanted ? "No trouble anywhere." : "No role or node is called that.");
    setHidden(byId("no-match"), roles.length > 0);
    byId("grid").setAttribute("aria-rowcount", String(roles.length + 1));
    this.select(this.selected);
  }

  #place() {
    const body = byId("rows");
    const focused = document.activeElement?.closest?.("#rows [role=row]");
    let next = body.firstElementChild;
    this.#order.forEach((lock, index) => {
      const { row } = this.#rows.get(lock);
      if (row === next) next = next.nextElementSibling;
      else body.insertBefore(row, next);
      const place = String(index + 2);
      if (row.getAttribute("aria-rowindex") !== place) row.setAttribute("aria-rowindex", place);
    });
    while (next) {
      const gone = next;
      next = next.nextElementSibling;
      gone.remove();
    }
    // A row that is moved loses the focus; the person at the keyboard must not.
    if (focused?.isConnected && document.activeElement !== focused) focused.focus({ preventScroll: true });
  }

  select(lock) {
    this.selected = lock;
    const inReach = this.#order.includes(lock) ? lock : this.#order[0];
    for (const [each, { row }] of this.#rows) {
      const isChosen = String(each === lock);
      if (row.getAttribute("aria-selected") !== isChosen) row.setAttribute("aria-selected", isChosen);
      const tabIndex = each === inReach ? 0 : -1;
      if (row.tabIndex !== tabIndex) row.tabIndex = tabIndex;
    }
  }

  get first() {
    return this.#order[0] ?? null;
  }

  // What moves by itself: how long, how much of the lease is left. For rows in sight only.
  tick(now, drawStrips) {
    for (const lock of this.#visible) {
      const parts = this.#rows.get(lock);
      const role = this.#store.roles.get(lock);
      if (!parts || !role) continue;
      this.#tickRow(parts, role, now);
      if (drawStrips) this.#drawStrip(parts, role, now);
    }
  }

  #tickRow(parts, role, now) {
    const health = healthOf(role, now);
    setData(parts.row, "kind", health.kind);
    if (parts.dot.title !== health.word) {
      parts.dot.title = health.word;
      setText(parts.state, health.word);
    }
    const lease = leaseOf(role.leader, now);
    setHidden(parts.track, !lease);
    if (lease) parts.fill.style.transform = `scaleX(${lease.part.toFixed(3)})`;
    setText(parts.leaderless, leaderlessText(role, now));
    const since = role.leader ? role.leader.acquired_at : leaderlessSince(role);
    setText(parts.tenure, since === null ? "" : words.span(now - since));
  }

  #drawStrip(parts, role, now) {
    drawStrip(parts.strip, role, now, this.#store.span, parts.strip.clientWidth, parts.strip.clientHeight);
  }

  #add(lock) {
    const row = make("div", "row");
    row.setAttribute("role", "row");
    row.dataset.lock = lock;
    const parts = { row };
    for (const { key } of COLUMNS) row.append(makeCell(key, parts));
    this.#rows.set(lock, parts);
    this.#watcher.observe(row);
    return parts;
  }

  #drop(lock) {
    const parts = this.#rows.get(lock);
    if (!parts) return;
    this.#watcher.unobserve(parts.row);
    parts.row.remove();
    this.#rows.delete(lock);
    this.#visible.delete(lock);
  }

  #fill(parts, role, now) {
    setName(parts.role, role.role);
    setName(parts.leader, role.leader ? role.leader.node : "no leader");
    parts.swatch.style.background = role.leader ? colourOf(role.leader.node) : "";
    setText(parts.leaderless, leaderlessText(role, now));
    const failovers = failoversOf(role);
    setText(parts.failovers, failovers ? String(failovers) : "–");
    if (this.#visible.has(role.lock)) {
      this.#tickRow(parts, role, now);
      this.#drawStrip(parts, role, now);
    } else setData(parts.row, "kind", healthOf(role, now).kind);
  }

  #sight(entries) {
    const now = this.#clock.now();
    for (const entry of entries) {
      const lock = entry.target.dataset.lock;
      const [parts, role] = [this.#rows.get(lock), this.#store.roles.get(lock)];
      if (entry.isIntersecting && parts && role) {
        this.#visible.add(lock);
        this.#tickRow(parts, role, now);
        this.#drawStrip(parts, role, now);
      } else this.#visible.delete(lock);
    }
  }

  #makeHead() {
    const head = byId("grid-head");
    for (const { key, label, sorts } of COLUMNS) {
      const cell = make("div", `cell ${key}`);
      cell.setAttribute("role", "columnheader");
      if (sorts) {
        const button = make("button", "", label);
        button.type = "button";
        button.addEventListener("click", () => this.#sortBy(key));
        cell.append(button);
        cell.setAttribute("aria-sort", "none");
      } else cell.textContent = label;
      head.append(cell);
    }
  }

  // Once: in its order. Twice: the other way round. Three times: trouble first again, as it was at the beginning.
  #sortBy(key) {
    if (this.#sort.key !== key) this.#sort = { key, isReversed: false };
    else if (!this.#sort.isReversed) this.#sort = { key, isReversed: true };
    else this.#sort = { key: "health", isReversed: false };
    COLUMNS.forEach((column, index) => {
      const isIt = column.key === this.#sort.key;
      const word = isIt ? (this.#sort.isReversed ? "descending" : "ascending") : "none";
      if (column.sorts) byId("grid-head").children[index].setAttribute("aria-sort", word);
    });
    this.arrange();
  }

  #pick(lock, isToOpen) {
    this.select(lock);
    this.#choose(lock, isToOpen);
  }

  focusBy(step) {
    const at = this.#order.indexOf(document.activeElement?.closest?.("[role=row]")?.dataset.lock ?? this.selected);
    const to = this.#order[Math.max(0, Math.min(this.#order.length - 1, at + step))];
    if (to) this.#focus(to);
  }

  #focus(lock) {
    this.#pick(lock, false);
    const { row } = this.#rows.get(lock);
    row.focus({ preventScroll: true });
    row.scrollIntoView({ block: "nearest" });
  }

  #key(event) {
    const page = 10;
    const step = { ArrowDown: 1, ArrowUp: -1, PageDown: page, PageUp: -page, Home: -this.#order.length, End: this.#order.length }[event.key];
    if (step) {
      event.preventDefault();
      this.focusBy(step);
    } else if (event.key === "Enter" || event.key === " ") {
      event.preventDefault();
      this.#pick(event.target.closest("[role=row]").dataset.lock, true);
    }
  }

  #filterKey(event) {
    if (event.key === "ArrowDown" || event.key === "Enter") {
      event.preventDefault();
      if (this.#order.length) this.#focus(this.#order[0]);
    } else if (event.key === "Escape") {
      event.target.value = "";
      event.target.blur();
      this.arrange();
    }
  }
}

function leaderlessText(role, now) {
  const { leaderless } = figuresOf(role, now);
  return leaderless > 0 ? words.took(leaderless) : "–";
}

const matches = (role, wanted) =>
  !wanted || readable(role.role).toLowerCase().includes(wanted) || readable(role.leader?.node ?? "no leader").toLowerCase().includes(wanted);

function makeCell(key, parts) {
  const cell = make("div", `cell ${key}`);
  cell.setAttribute("role", "gridcell");
  if (key === "role") {
    parts.dot = make("span", "dot");
    parts.state = make("span", "sr");
    parts.role = makeName();
    cell.append(parts.dot, parts.state, parts.role);
  } else if (key === "leader") {
    parts.swatch = make("span", "swatch");
    parts.leader = makeName();
    cell.append(parts.swatch, parts.leader);
  } else if (key === "lease") {
    parts.track = make("div", "track");
    parts.fill = make("div", "fill");
    parts.track.append(parts.fill);
    cell.append(parts.track);
  } else if (key === "strip") {
    parts.strip = make("canvas");
    parts.strip.setAttribute("aria-hidden", "true");
    cell.append(parts.strip);
  } else parts[key] = cell;
  return cell;
}
