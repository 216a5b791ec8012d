// What the server said last. Knows no document; tells which roles an answer changed.

const EVENTS_KEPT = 200;

export class Store {
  roles = new Map();
  nodes = [];
  alerts = [];
  events = [];
  demo = []; // what the demo did and measured, the oldest first
  source = null;
  can = { step_down: false, demo: [] };
  span = 3600;
  seq = -1;
  isBlank = true; // nothing was said yet, or by a server that had not yet looked
  version = "";

  // Both return {changed: locks, gone: locks, moved: [{role, from, to}]}.
  replace(state) {
    const before = this.roles;
    const isFirst = this.seq < 0;
    this.roles = new Map(state.roles.map((role) => [role.lock, role]));
    this.nodes = state.nodes ?? [];
    this.alerts = state.alerts ?? [];
    this.events = state.events ?? [];
    this.demo = state.demo ?? [];
    this.source = state.source ?? null;
    this.can = { step_down: Boolean(state.can?.step_down), demo: state.can?.demo ?? [] };
    this.isBlank = !state.at;
    this.span = Math.max(60, state.window_s);
    this.version = state.version ?? "";
    this.seq = state.seq;
    return {
      changed: [...this.roles.keys()],
      gone: [...before.keys()].filter((lock) => !this.roles.has(lock)),
      moved: isFirst ? [] : moves(before, this.roles.values()),
    };
  }

  update(change) {
    if (change.seq < this.seq) return { changed: [], gone: [], moved: [] };
    this.seq = change.seq;
    const changed = (change.roles ?? []).map((role) => merged(this.roles.get(role.lock), role));
    const moved = moves(this.roles, changed);
    for (const role of changed) this.roles.set(role.lock, role);
    for (const lock of change.gone ?? []) this.roles.delete(lock);
    for (const lease of change.leases ?? []) this.#renew(change.at, lease);
    this.nodes = change.nodes ?? this.nodes;
    this.alerts = change.alerts ?? this.alerts;
    this.source = change.source ?? this.source;
    if (change.events?.length) {
      // Some are written late, by a leader that was frozen or cut off: they belong where they happened.
      const all = [...change.events, ...this.events].sort((a, b) => b.at - a.at);
      this.events = all.slice(0, EVENTS_KEPT);
    }
    return { changed: changed.map((role) => role.lock), gone: change.gone ?? [], moved };
  }

  // "vanished" is when others saw a leader last. It stands in until the node itself has written how its term ended.
  get eventsToShow() {
    const ended = new Set(this.events.filter((each) => ENDS.has(each.event)).map(termKey));
    return this.events.filter((each) => each.event !== "vanished" || !ended.has(termKey(each)));
  }

  // Leaders that renewed, and nothing else: times are in milliseconds from now, for all these roles at once.
  #renew(at, [renewed, until, due, locks]) {
    const time = (ms) => (ms === null ? null : at + ms / 1000);
    for (const lock of locks) {
      const leader = this.roles.get(lock)?.leader;
      if (leader) Object.assign(leader, { renewed_at: time(renewed), lease_until: time(until), renewal_due_at: time(due) });
    }
  }
}

// A role with what changed of it. Of long lists that is how many to drop, how many to keep, and what follows.
function merged(old, change) {
  const role = { ...old, ...change };
  for (const name of ["terms", "gaps"]) {
    const splice = change[`${name}_change`];
    if (!splice) continue;
    const [drop, keep, added] = splice;
    role[name] = [...(old?.[name] ?? []).slice(drop, drop + keep), ...added];
    delete role[`${name}_change`];
  }
  return role;
}

const ENDS = new Set(["released", "lost", "reconnecting", "stopped"]);
const termKey = (each) => `${each.lock} ${each.node} ${each.token}`;

function moves(before, roles) {
  const found = [];
  for (const role of roles) {
    const old = before.get(role.lock);
    if (!old || sameTerm(old.leader, role.leader)) continue;
    found.push({ lock: role.lock, role: role.role, from: old.leader, to: role.leader });
  }
  return found;
}

const sameTerm = (a, b) => a === b || (a && b && a.node === b.node && a.instance === b.instance && a.token === b.token);

// How a role is, the worst first: what lists are sorted by, and what their dots say.
export const HEALTH = {
  overlap: { rank: 0, kind: "bad", word: "Two led at once" },
  none: { rank: 1, kind: "bad", word: "No leader" },
  silent: { rank: 2, kind: "risk", word: "Leader not heard of" },
  overdue: { rank: 3, kind: "risk", word: "Not renewing" },
  closed: { rank: 4, kind: "off", word: "All nodes have left" },
  alone: { rank: 4, kind: "good", word: "Healthy, no standby" },
  good: { rank: 5, kind: "good", word: "Healthy" },
};

export function healthOf(role, now) {
  const leader = role.leader;
  if (role.overlaps > 0) return HEALTH.overlap;
  if (!leader) return role.is_closed && !role.is_expected ? HEALTH.closed : HEALTH.none;
  if (leaseOf(leader, now)?.isOverdue) return HEALTH.overdue;
  if (!leader.is_alive) return HEALTH.silent;
  return standbysOf(role).length || !role.candidates.length ? HEALTH.good : HEALTH.alone;
}

export const standbysOf = (role) => role.candidates.filter((each) => each.is_alive && each.instance !== role.leader?.instance);

const ENDS_AFTER = 1 / 0.9; // the leader is valid for nine tenths of its lease; at the end the server frees the lock

// What is known of a lease; null where nothing expires. Whether a renewal is overdue is the server's to say, of the moment
// at which it looked: what a page shows is older than that.
export function leaseOf(leader, now) {
  if (!leader || leader.lease_until === null || leader.lease_until === undefined) return null;
  const valid = leader.lease_until - leader.renewed_at;
  const isOverdue = Boolean(leader.is_overdue);
  const left = Math.max(0, leader.renewed_at + ENDS_AFTER * valid - now);
  const part = isOverdue ? Math.min(1, left / Math.max(0.001, valid)) : 1;
  return { left, isOverdue, part, renewedAgo: Math.max(0, now - leader.renewed_at) };
}

export const failoversOf = (role) => Object.values(role.failovers ?? {}).reduce((sum, n) => sum + n, 0);

// How long no node led, and the part of the time in which one did: as the server judged it, and counted on from there.
// The server sends them when something happens, not while one node leads on: so both parts are counted on here.
export function figuresOf(role, now) {
  const isOver = role.counted_until !== null && role.counted_until !== undefined;
  const passed = role.judged_at && !isOver ? Math.max(0, now - role.judged_at) : 0;
  const isLed = !role.gaps.some((gap) => gap.ended_at === null);
  const led = role.availability ?? 1;
  const leaderless = role.leaderless_s + (isLed ? 0 : passed);
  if (!passed || !leaderless) return { leaderless, led };
  const known = led < 1 ? role.leaderless_s / (1 - led) : Math.max(0, role.judged_at - role.counted_since);
  return { leaderless, led: Math.max(0, 1 - leaderless / (known + passed)) };
}

// Since when no node leads: the gap that is still open, or the end of the last term.
export function leaderlessSince(role) {
  const open = role.gaps.find((gap) => gap.ended_at === null);
  if (open) return open.began_at;
  const ends = role.terms.map((term) => term.ended_at).filter((at) => at !== null);
  return ends.length ? Math.max(...ends) : null;
}
