// One role, large: who leads it, for how long, who else would, and what happened.

import { byId, make, makeChoice, makeName, readable, reconcile, setData, setHidden, setName, setText, showFacts } from "./dom.js";
import { colourOf } from "./colours.js";
import { Timeline, showTermsTable } from "./timeline.js";
import { failoversOf, figuresOf, healthOf, leaderlessSince, leaseOf, standbysOf } from "./store.js";
import * as words from "./words.js";

const RANGES = [60, 300, 900, 3600, 21600, 86400];
const DEMO_RANGE = "60"; // a failover of some milliseconds is to be seen

export class Detail {
  lock = null;
  #store;
  #clock;
  #timeline;
  #showRanges;
  #showScope;
  #range = "auto";
  #scope = "role";
  #led = null;
  #who = makeName("node");
  #what = makeName("role");

  constructor(store, clock) {
    this.#store = store;
    this.#clock = clock;
    byId("who").append(this.#who);
    byId("what").append(this.#what);
    this.#timeline = new Timeline({ plot: byId("plot"), canvas: byId("canvas"), axis: byId("axis"), lanes: byId("lanes"), tooltip: byId("tooltip") });
    this.#showRanges = makeChoice(byId("ranges"), (value) => {
      this.#range = value;
      this.#showHistory();
    });
    this.#showScope = makeChoice(byId("scope"), (value) => {
      this.#scope = value;
      this.showEvents();
    });
    byId("terms-details").addEventListener("toggle", () => this.#showHistory());
  }

  get role() {
    return this.#store.roles.get(this.lock) ?? null;
  }

  open(lock) {
    const isAnother = lock !== this.lock;
    this.lock = lock;
    if (isAnother) this.#led = null;
    this.update();
  }

  update() {
    const role = this.role;
    setHidden(byId("detail"), !role);
    if (!role) return;
    this.#showSentence(role);
    this.#showFacts(role);
    this.#showCandidates(role);
    this.#showHistory();
    this.showEvents();
    this.tick(this.#clock.now(), true);
  }

  // What moves by itself.
  tick(now, drawTimeline) {
    const role = this.role;
    if (!role) return;
    const health = healthOf(role, now);
    setData(byId("hero"), "kind", health.kind);
    setText(byId("health"), [health.word, takeoverOf(role, now)].filter(Boolean).join(", "));
    const since = role.leader ? role.leader.acquired_at : leaderlessSince(role);
    setText(byId("tenure"), since === null ? "" : `for ${words.span(now - since)}`);
    this.#tickLease(role, now);
    this.#showFigures(role, now);
    this.#tickCandidates(now);
    if (drawTimeline) this.#timeline.draw(now);
    if (this.#range === "auto" && !this.#store.can.demo.length && this.#autoRange(role, now) !== this.#shownRange) this.#showHistory();
  }

  #shownRange = 0;

  #showSentence(role) {
    const hero = byId("hero");
    const leader = role.leader;
    setName(this.#who, leader ? leader.node : "No node");
    setText(byId("verb"), "leads");
    setName(this.#what, role.role);
    hero.style.setProperty("--who", leader ? colourOf(leader.node) : "var(--bad)");
    const led = leader ? `${leader.instance} ${leader.token}` : "";
    if (this.#led !== null && this.#led !== led) {
      hero.classList.remove("moved");
      void hero.offsetWidth; // the animation begins anew only if the browser has seen it gone
      hero.classList.add("moved");
    }
    this.#led = led;
  }

  #showFacts(role) {
    const leader = role.leader;
    const now = this.#clock.now();
    showFacts(byId("facts"), leader
      ? [
          ["Token", leader.token ?? null, "Grows with every term: pass it on to whatever the leader writes to, so that a late write of an old leader can be refused."],
          ["Since", words.dayAndClock(leader.acquired_at, now)],
          ["Host", leader.host],
          ["Process", leader.process_id ?? null],
          ["Version", leader.version],
          ["Lock", role.lock],
        ]
      : [
          ["Standby", String(standbysOf(role).length)],
          ["Last leader", (role.last_leader ?? role.terms.at(-1))?.node],
          ["Lock", role.lock],
        ]);
  }

  // Confirmed or overdue: what is left of a lease nears nothing before each renewal, and says nothing while it is renewed.
  #tickLease(role, now) {
    const lease = leaseOf(role.leader, now);
    setHidden(byId("lease"), !role.leader);
    if (!role.leader) return;
    setHidden(byId("lease-track"), !lease);
    if (!lease) {
      setText(byId("lease-state"), "Held for as long as its session lives; nothing to renew.");
      setText(byId("lease-renewed"), "");
      return;
    }
    byId("lease-fill").style.transform = `scaleX(${lease.part.toFixed(4)})`;
    const state = lease.isOverdue ? "Lease: renewal overdue" : "Lease: confirmed";
    setText(byId("lease-state"), state);
    byId("lease-track").setAttribute("aria-label", state);
    setText(byId("lease-renewed"), lease.isOverdue ? `last renewal seen ${words.span(lease.renewedAgo)} ago` : "");
  }

  #showCandidates(role) {
    const create = () => {
      const item = make("li");
      const text = make("div");
      item.append(make("span", "swatch"), text, make("span", "state"));
      const line = make("div", "line");
      line.append(makeName(), make("span", "place"));
      text.append(line, make("small"));
      text.lastChild.append(makeName());
      return item;
    };
    const update = (item, each) => {
      const isLeader = role.leader?.instance === each.instance && role.leader?.node === each.node;
      item.firstChild.style.background = colourOf(each.node);
      const [name, place] = item.children[1].firstChild.children;
      setName(name, each.node);
      setText(place, each.place ?? "");
      setHidden(place, !each.place);
      setName(item.children[1].lastChild.firstChild, [each.host, each.process_id && `pid ${each.process_id}`].filter(Boolean).join(" · "));
      item.dataset.kind = !each.is_alive ? "gone" : isLeader ? "leads" : "";
      item.since = each.since;
      item.state = each.is_alive ? words.stateWord(isLeader ? "leader" : each.state) : "not heard of";
      item.seenAt = each.is_alive ? null : this.#store.nodes.find((node) => node.instance === each.instance)?.seen_at;
    };
    const now = this.#clock.now();
    reconcile(byId("candidates"), role.candidates, (each) => `${each.instance} ${each.node}`, create, update);
    setHidden(byId("no-candidates"), role.candidates.length > 0);
    this.#tickCandidates(now);
  }

  #tickCandidates(now) {
    for (const item of byId("candidates").children) {
      const since = item.seenAt ?? item.since;
      setText(item.lastChild, since ? `${item.state} for ${words.span(now - since)}` : item.state);
    }
  }

  #autoRange(role, now) {
    const first = Math.min(now, ...role.terms.map((term) => term.began_at), ...role.gaps.map((gap) => gap.began_at));
    return this.#ranges().find((each) => each >= (now - first) * 1.02) ?? this.#ranges().at(-1);
  }

  #ranges() {
    const span = Math.round(this.#store.span);
    return [...RANGES.filter((each) => each < span * 0.98), span];
  }

  #showHistory() {
    const role = this.role;
    if (!role) return;
    const now = this.#clock.now();
    const ranges = this.#ranges();
    const wanted = this.#range === "auto" && this.#store.can.demo.length ? DEMO_RANGE : this.#range;
    const chosen = ranges.includes(Number(wanted)) ? Number(wanted) : this.#autoRange(role, now);
    this.#shownRange = chosen;
    this.#showRanges(ranges.map((each) => [String(each), words.span(each)]), String(chosen));
    this.#timeline.show(role, now, chosen);
    this.#timeline.keepChosen();
    if (byId("terms-details").open) showTermsTable(byId("terms"), role, now);
    this.#showFigures(role, now);
  }

  #showFigures(role, now) {
    const failovers = failoversOf(role);
    const { leaderless, led } = figuresOf(role, now);
    const how = Object.entries(role.failovers ?? {}).map(([each, n]) => `${n} × ${words.failoverWord(each)}`);
    const within = `In the last ${words.span(this.#store.span)}`;
    const isAtMost = leaderless > 0 && role.gaps.some((gap) => gap.at_most);
    const exactness = isAtMost ? "\nA leader that vanished led until it was last heard of, or longer" : "";
    showFacts(byId("figures"), [
      ["Leaderless", leaderless > 0 ? `${isAtMost ? "≤ " : ""}${words.took(leaderless)}` : "never", within + exactness, leaderless > 0 ? "" : "good"],
      ["Led", `${isAtMost ? "≥ " : ""}${words.percent(led)}`, within + exactness],
      ["Failovers", String(failovers), how.join("\n") || within],
      ["Two at once", role.overlaps ? `${role.overlaps} ×` : "never", within, role.overlaps ? "bad" : "good"],
    ]);
    setText(byId("how"), readable(how.join(" · ")));
    setHidden(byId("how"), !how.length);
    setHidden(byId("terms-explained"), !(leaderless > 0 && failovers));
  }

  showEvents() {
    const isMany = this.#store.roles.size > 1;
    setHidden(byId("scope"), !isMany);
    this.#showScope([["role", "This role"], ["all", "All roles"]], this.#scope);
    const isAll = isMany && this.#scope === "all";
    const events = this.#store.eventsToShow.filter((each) => isAll || each.lock === this.lock);
    const now = this.#clock.now();
    reconcile(byId("events"), events, eventKey, makeEvent, (item, each) => fillEvent(item, each, now, isAll));
    setHidden(byId("no-events"), events.length > 0);
  }
}

// What follows from a lease that is not renewed: the leader's own, or that of one that is not valid any more.
function takeoverOf(role, now) {
  const lease = leaseOf(role.leader ?? role.last_leader, now);
  if (!lease?.isOverdue) return "";
  if (lease.left === 0) return role.leader ? "its lease has ended" : "";
  const inTime = `in about ${lease.left < 10 ? `${lease.left.toFixed(1)} s` : words.span(lease.left)}`;
  if (standbysOf(role).length) return `takeover ${inTime}`;
  return role.leader ? `no standby, its lease ends ${inTime}` : "";
}

const eventKey = (each) => `${each.at} ${each.lock} ${each.node} ${each.event} ${each.token}`;

function makeEvent() {
  const item = make("li");
  const text = make("p");
  text.append(makeName(), make("span"), makeName("role"), make("small"));
  text.lastChild.append(makeName());
  item.append(make("time"), make("span", "swatch"), text);
  return item;
}

const GOOD = new Set(["acquired", "recovered"]);
const BAD = new Set(["lost", "vanished", "overlap"]);

function fillEvent(item, each, now, isWithRole) {
  const [time, swatch, text] = item.children;
  const [node, word, role, more] = text.children;
  setText(time, words.dayAndClock(each.at, now));
  swatch.style.background = colourOf(each.node);
  setName(node, each.node);
  setText(word, ` ${words.eventWord(each.event)}${isWithRole ? " of " : ""}`);
  setName(role, isWithRole ? each.role : "");
  setName(more.firstChild, [words.causeWord(each.cause), each.detail].filter(Boolean).join(" – "));
  item.dataset.kind = GOOD.has(each.event) ? "good" : BAD.has(each.event) ? "bad" : "";
}
