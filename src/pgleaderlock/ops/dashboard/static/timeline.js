// Terms as bars and gaps in red, on a canvas: a role may have three hundred of them, and the axis moves all the time.

import { make, makeName, reconcile, setData, setHidden, setName, setText, readable } from "./dom.js";
import { colourOf } from "./colours.js";
import * as words from "./words.js";

const LANE = 30;
const BAR = 16;
const AXIS = 24;
const MANY_GAPS = 30;
const NEAR_PX = 5;
const STEPS = [1, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 21600, 43200, 86400];

const endOf = (each, now) => each.ended_at ?? now;

// Sizes the canvas for the screen's pixels, and clears it.
function prepare(canvas, width, height) {
  const ratio = devicePixelRatio || 1;
  const [w, h] = [Math.round(width * ratio), Math.round(height * ratio)];
  if (canvas.width !== w || canvas.height !== h) [canvas.width, canvas.height] = [w, h];
  const context = canvas.getContext("2d");
  context.setTransform(ratio, 0, 0, ratio, 0, 0);
  context.clearRect(0, 0, width, height);
  return context;
}

function palette() {
  const style = getComputedStyle(document.documentElement);
  return { gap: style.getPropertyValue("--bad"), line: style.getPropertyValue("--line"), text: style.getPropertyValue("--muted") };
}

// A role's history in one line, for a row of the list. A gap of milliseconds is still to be seen: it happened.
export function drawStrip(canvas, role, now, span, width, height) {
  const context = prepare(canvas, width, height);
  const from = now - span;
  const scale = width / span;
  for (const term of role.terms) {
    const end = endOf(term, now);
    if (end <= from) continue;
    const x = Math.max(0, (term.began_at - from) * scale);
    context.fillStyle = colourOf(term.node);
    context.fillRect(x, 0, Math.max(1, (end - from) * scale - x), height);
  }
  context.fillStyle = palette().gap;
  for (const gap of role.gaps) {
    const end = endOf(gap, now);
    if (end <= from) continue;
    const x = Math.max(0, (gap.began_at - from) * scale);
    const wide = (end - from) * scale - x;
    // A gap too short to be seen is a mark at the edge: were it as tall as a long one, a busy hour would be all red.
    if (wide >= 1) context.fillRect(x, 0, wide, height);
    else context.fillRect(Math.min(x, width - 1.5), height - 4, 1.5, 4);
  }
}

export class Timeline {
  #parts;
  #role = null;
  #now = 0;
  #span = 60;
  #lanes = [];
  #shown = [];
  #chosen = null;
  #isByKey = false;
  #isCrowded = false;

  constructor(parts) {
    this.#parts = parts; // {plot, canvas, lanes, tooltip}
    const { plot } = parts;
    plot.addEventListener("pointermove", (event) => this.#point(event));
    plot.addEventListener("pointerdown", (event) => this.#point(event));
    // A finger that is lifted leaves too; what it touched stays explained until the next touch.
    plot.addEventListener("pointerleave", (event) => this.#isByKey || event.pointerType === "touch" || this.#choose(null));
    plot.addEventListener("blur", () => this.#choose(null));
    plot.addEventListener("focus", () => plot.matches(":focus-visible") && this.#choose(this.#shown.at(-1) ?? null, true));
    plot.addEventListener("keydown", (event) => this.#key(event));
    addEventListener("scroll", () => this.#chosen && this.#placeTooltip(), { passive: true, capture: true });
    new ResizeObserver(() => this.draw(this.#now)).observe(plot);
  }

  show(role, now, span) {
    if (this.#role?.lock !== role.lock) this.#choose(null);
    this.#role = role;
    this.#span = span;
    this.#lanes = lanesOf(role, now - span);
    this.#showLanes();
    this.draw(now);
    this.#describe();
  }

  draw(now) {
    if (!this.#role) return;
    this.#now = now;
    const { canvas, plot } = this.#parts;
    const width = plot.clientWidth;
    const height = this.#lanes.length * LANE;
    if (!width) return;
    canvas.style.height = `${height}px`;
    const context = prepare(canvas, width, height);
    const colours = palette();
    this.#shown = this.#inWindow();
    this.#isCrowded = this.#shown.filter((each) => each.node === undefined).length > MANY_GAPS;
    this.#drawAxis(context, width, height, colours);
    for (const each of this.#shown) each.node === undefined ? this.#drawGap(context, each, width, colours) : this.#drawTerm(context, each, width);
    setData(plot, "bars", String(this.#shown.filter((each) => each.node !== undefined).length));
    setData(plot, "gaps", String(this.#shown.filter((each) => each.node === undefined).length));
    if (!this.#chosen) return;
    this.#drawChosen(context, width);
    this.#fillTooltip();
  }

  #inWindow() {
    const from = this.#now - this.#span;
    const isIn = (each) => endOf(each, this.#now) >= from && each.began_at <= this.#now;
    return [...this.#role.terms.filter(isIn), ...this.#role.gaps.filter(isIn)].sort((a, b) => a.began_at - b.began_at);
  }

  #x(at, width) {
    return ((at - this.#now) / this.#span + 1) * width;
  }

  #drawAxis(context, width, height, colours) {
    const axis = prepare(this.#parts.axis, width, AXIS);
    const step = STEPS.find((each) => (each / this.#span) * width >= 74) ?? STEPS.at(-1);
    axis.font = "11px Inter, system-ui, sans-serif";
    axis.textAlign = "center";
    const zone = new Date(this.#now * 1000).getTimezoneOffset() * 60; // so that ticks are on whole hours where we are
    for (let at = Math.ceil((this.#now - this.#span - zone) / step) * step + zone; at <= this.#now; at += step) {
      const x = Math.round(this.#x(at, width)) + 0.5;
      context.strokeStyle = colours.line;
      context.beginPath();
      context.moveTo(x, 0);
      context.lineTo(x, height);
      context.stroke();
      axis.fillStyle = colours.text;
      if (x > 26 && x < width - 26) axis.fillText(step < 60 ? words.clock(at) : words.shortClock(at), x, AXIS - 7);
    }
  }

  #box(each, width) {
    const x = Math.max(-8, this.#x(each.began_at, width));
    const end = Math.min(width, this.#x(endOf(each, this.#now), width));
    const lane = this.#lanes.indexOf(each.node);
    return { x, width: Math.max(2.5, end - x), y: lane * LANE + (LANE - BAR) / 2, lane };
  }

  #drawTerm(context, term, width) {
    const box = this.#box(term, width);
    context.fillStyle = colourOf(term.node);
    context.beginPath();
    // A hair's breadth between neighbours, so that two terms of one node look like two.
    const shown = Math.max(2, box.width - (term.ended_at === null ? 0 : 1));
    context.roundRect(box.x, box.y, shown, BAR, Math.min(5, shown / 2));
    context.fill();
  }

  #drawGap(context, gap, width, colours) {
    const box = this.#box(gap, width);
    const height = this.#lanes.length * LANE;
    const x = Math.min(box.x, width - box.width);
    const isShort = box.width < 3;
    context.fillStyle = colours.gap;
    // A leader that vanished may have led on, unheard of: its gap is at most this long, and paler.
    const certainty = gap.at_most ? 0.5 : 1;
    context.globalAlpha = certainty * (isShort ? 0.45 : 0.2);
    // Where there are many, the marks at the top must do: lines would hide what they are between.
    if (!isShort || !this.#isCrowded) context.fillRect(x, 0, isShort ? 1.5 : box.width, height);
    context.globalAlpha = certainty;
    context.fillRect(x - (isShort ? 0.75 : 0), 0, isShort ? 3 : box.width, 4);
    context.globalAlpha = 1;
  }

  #drawChosen(context, width) {
    const box = this.#box(this.#chosen, width);
    const isGap = this.#chosen.node === undefined;
    context.strokeStyle = getComputedStyle(this.#parts.plot).color;
    context.lineWidth = 2;
    context.beginPath();
    if (isGap) context.rect(box.x - 2, 1, box.width + 4, this.#lanes.length * LANE - 2);
    else context.roundRect(box.x - 2, box.y - 2, box.width + 4, BAR + 4, 6);
    context.stroke();
    context.lineWidth = 1;
  }

  #showLanes() {
    const create = () => {
      const item = make("li");
      item.append(make("span", "swatch"), makeName());
      return item;
    };
    const update = (item, node) => {
      item.firstChild.style.background = colourOf(node);
      setName(item.lastChild, node);
      setData(item, "leads", String(this.#role.leader?.node === node));
    };
    reconcile(this.#parts.lanes, this.#lanes, (node) => node, create, update);
  }

  #point(event) {
    const area = this.#parts.plot.getBoundingClientRect();
    const [x, y] = [event.clientX - area.left, event.clientY - area.top];
    const width = area.width;
    const near = (each) => {
      const box = this.#box(each, width);
      return x >= box.x - NEAR_PX && x <= box.x + box.width + NEAR_PX;
    };
    const lane = Math.floor(y / LANE);
    const inLane = this.#shown.filter((each) => each.node !== undefined && this.#lanes[lane] === each.node && near(each));
    const exact = inLane.find((each) => x >= this.#box(each, width).x && x <= this.#box(each, width).x + this.#box(each, width).width);
    const gap = lane < this.#lanes.length ? this.#shown.find((each) => each.node === undefined && near(each)) : null;
    const isOnWideBar = exact && this.#box(exact, width).width > 3 * NEAR_PX && !this.#isOnGap(gap, x, width);
    this.#choose((isOnWideBar ? exact : gap) ?? exact ?? inLane[0] ?? null);
  }

  #isOnGap(gap, x, width) {
    if (!gap) return false;
    const box = this.#box(gap, width);
    return x >= box.x - 2 && x <= box.x + box.width + 2;
  }

  #key(event) {
    if (event.key === "Escape" && this.#chosen) {
      event.stopPropagation();
      this.#choose(null);
      return;
    }
    const at = this.#shown.findIndex((each) => isSame(each, this.#chosen));
    const to = { ArrowLeft: at < 0 ? this.#shown.length - 1 : at - 1, ArrowRight: at + 1, Home: 0, End: this.#shown.length - 1 }[event.key];
    if (to === undefined) return;
    event.preventDefault();
    const next = this.#shown[Math.max(0, Math.min(this.#shown.length - 1, to))];
    if (next) this.#choose(next, true);
  }

  #choose(each, isByKey = false) {
    this.#isByKey = isByKey;
    if (each === this.#chosen) return;
    this.#chosen = each;
    setHidden(this.#parts.tooltip, !each);
    this.draw(this.#now);
    this.#describe();
  }

  // A new answer brings new objects for the same terms; what was pointed at stays pointed at.
  keepChosen() {
    if (!this.#chosen) return;
    this.#chosen = this.#shown.find((each) => isSame(each, this.#chosen)) ?? null;
    setHidden(this.#parts.tooltip, !this.#chosen);
    if (this.#chosen) this.#fillTooltip();
  }

  #fillTooltip() {
    const { tooltip } = this.#parts;
    const each = this.#chosen;
    const head = make("p", "tooltip-head");
    if (each.node === undefined) head.append("No leader");
    else {
      const swatch = make("span", "swatch");
      swatch.style.background = colourOf(each.node);
      const name = makeName();
      setName(name, each.node);
      head.append(swatch, name);
    }
    const lines = linesFor(each, this.#now).map((line) => make("p", "", line));
    tooltip.replaceChildren(head, ...lines);
    this.#placeTooltip();
  }

  #placeTooltip() {
    const { plot, tooltip } = this.#parts;
    const area = plot.getBoundingClientRect();
    const box = this.#box(this.#chosen, area.width);
    const middle = area.left + Math.max(0, box.x) + Math.min(box.width, area.width - Math.max(0, box.x)) / 2;
    const half = tooltip.offsetWidth / 2;
    const x = Math.max(8, Math.min(innerWidth - 2 * half - 8, middle - half));
    const top = area.top + (this.#chosen.node === undefined ? 0 : box.y) - tooltip.offsetHeight - 10;
    tooltip.style.left = `${x}px`;
    tooltip.style.top = `${top < 8 ? area.top + (box.lane + 1) * LANE + 6 : top}px`;
  }

  // The slider that the plot is to a screen reader: its value is the bar that the arrow keys have reached.
  #describe() {
    const { plot } = this.#parts;
    const at = this.#shown.findIndex((each) => isSame(each, this.#chosen));
    const text = at < 0
      ? `${words.count(this.#shown.filter((each) => each.node !== undefined).length, "term")}, ${words.count(this.#shown.filter((each) => each.node === undefined).length, "gap")}`
      : [this.#chosen.node === undefined ? "No leader" : readable(this.#chosen.node), ...linesFor(this.#chosen, this.#now)].join(", ");
    setAttribute(plot, "aria-valuemin", "0");
    setAttribute(plot, "aria-valuemax", String(Math.max(0, this.#shown.length - 1)));
    setAttribute(plot, "aria-valuenow", String(Math.max(0, at)));
    setAttribute(plot, "aria-valuetext", text);
  }
}

function setAttribute(node, name, value) {
  if (node.getAttribute(name) !== value) node.setAttribute(name, value);
}

function isSame(a, b) {
  return Boolean(a && b) && a.began_at === b.began_at && a.node === b.node && a.token === b.token;
}

function linesFor(each, now) {
  const lasted = endOf(each, now) - each.began_at;
  const until = each.ended_at === null ? "now" : words.clock(each.ended_at);
  const from = `${words.dayAndClock(each.began_at, now)} – ${until}`;
  if (each.node === undefined) {
    const howLong = `for ${each.at_most ? "at most " : ""}${words.took(lasted)}${each.ended_at === null ? " so far" : ""}`;
    const why = each.at_most ? "since the leader was last heard of" : words.causeWord(each.cause);
    return [howLong, from, why].filter(Boolean);
  }
  const token = each.token === null ? "" : `token ${each.token}`;
  const led = each.ended_at === null ? `leads for ${words.took(lasted)}` : `led for ${words.took(lasted)}`;
  const end = each.ended_at === null ? "" : `ended: ${words.endWord(each.end, each.cause) || "unknown how"}`;
  return [led, from, end, token].filter(Boolean);
}

function lanesOf(role, from) {
  const names = new Set(role.candidates.map((each) => each.node));
  if (role.leader) names.add(role.leader.node);
  for (const term of role.terms) if (term.ended_at === null || term.ended_at >= from) names.add(term.node);
  return [...names].sort(new Intl.Collator("en", { numeric: true }).compare);
}

// For the reader who prefers rows: the newest first.
export function showTermsTable(body, role, now) {
  const all = [...role.terms, ...role.gaps].sort((a, b) => b.began_at - a.began_at);
  const create = () => {
    const row = make("tr");
    for (let i = 0; i < 5; i += 1) row.append(make("td"));
    row.firstChild.append(makeName());
    return row;
  };
  const update = (row, each) => {
    const cells = row.children;
    const isGap = each.node === undefined;
    setData(row, "kind", isGap ? "bad" : "");
    setName(cells[0].firstChild, isGap ? "no leader" : each.node);
    setText(cells[1], words.dayAndClock(each.began_at, now));
    setText(cells[2], `${each.at_most ? "≤ " : ""}${words.took(endOf(each, now) - each.began_at)}`);
    setText(cells[3], each.ended_at === null ? (isGap ? "not yet over" : "leads") : isGap ? words.causeWord(each.cause) : words.endWord(each.end, each.cause));
    setText(cells[4], isGap || each.token === null ? "" : String(each.token));
  };
  reconcile(body, all, (each) => `${each.began_at} ${each.node ?? ""} ${each.token ?? ""}`, create, update);
}
