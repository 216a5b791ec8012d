// Numbers and codes as people say them.

const UNITS = [
  [86400, "d", 3600, "h"],
  [3600, "h", 60, "min"],
  [60, "min", 1, "s"],
];

// How long something lasts that is still going on: whole seconds, so that it does not flicker.
export function span(seconds) {
  const whole = Math.max(0, Math.floor(seconds));
  for (const [size, unit, smaller, smallerUnit] of UNITS) {
    if (whole < size) continue;
    const rest = Math.floor((whole % size) / smaller);
    return rest ? `${Math.floor(whole / size)} ${unit} ${rest} ${smallerUnit}` : `${Math.floor(whole / size)} ${unit}`;
  }
  return `${whole} s`;
}

// How long something took: three digits that matter.
export function took(seconds) {
  if (seconds === null || seconds === undefined || !Number.isFinite(seconds)) return "–";
  if (seconds <= 0) return "0 s";
  if (seconds < 1) return milliseconds(seconds * 1000);
  if (seconds < 60) return `${digits(seconds)} s`;
  return span(seconds);
}

export function milliseconds(ms) {
  if (!Number.isFinite(ms)) return "–";
  if (ms >= 60_000) return span(ms / 1000);
  if (ms >= 1000) return `${(ms / 1000).toFixed(2)} s`; // as the demo's own sentences have it
  return ms < 0.1 ? "< 0.1 ms" : `${ms.toFixed(1).replace(/\.0$/, "")} ms`;
}

function digits(value) {
  if (value >= 100) return Math.round(value).toLocaleString("en");
  return value.toFixed(value < 1 ? 2 : 1).replace(/\.0$/, "");
}

export function percent(part) {
  if (part >= 1) return "100 %";
  const shown = Math.floor(part * 100_000) / 1000; // rounded down: 99.9996 is not 100
  return `${shown.toFixed(3).replace(/\.?0+$/, "")} %`;
}

const CLOCK = new Intl.DateTimeFormat("en-GB", { hour: "2-digit", minute: "2-digit", second: "2-digit" });
const SHORT_CLOCK = new Intl.DateTimeFormat("en-GB", { hour: "2-digit", minute: "2-digit" });
const DAY = new Intl.DateTimeFormat("en-GB", { day: "numeric", month: "short" });

export const clock = (at) => CLOCK.format(at * 1000);
export const shortClock = (at) => SHORT_CLOCK.format(at * 1000);
export const dayAndClock = (at, now) => (now - at > 72_000 ? `${DAY.format(at * 1000)} ${clock(at)}` : clock(at));

const CAUSES = {
  session_terminated: "the server ended its session",
  server_restart: "the server restarted",
  silenced: "it fell silent for a whole lease",
  connection_lost: "its connection was lost",
  renew_timeout: "the server did not answer in time",
  refused: "the server answered with an error",
  stalled: "its process stood still",
  held_by_another: "another took the lock",
  grace_expired: "the lock did not come back in time",
  fenced: "a newer leader was seen",
  stepped_down: "it was asked to step down",
  aborted: "it was cut short",
  health_failed: "a health check failed",
  acquire_succeeded: "", // as it should be: nothing to explain
  release_succeeded: "",
  seen_gone: "it was not seen to hold it any more",
  unknown: "for a reason unknown",
};
const ENDS = {
  released: "released",
  lost: "lost",
  reconnecting: "connection lost",
  stopped: "stopped",
  vanished: "not heard of any more",
  recovered: "came back",
};
const EVENTS = {
  acquired: "took the lead",
  recovered: "has the lead back",
  released: "released the lead",
  lost: "lost the lead",
  reconnecting: "lost its connection and tries to keep the lead",
  stopped: "stopped",
  vanished: "was last seen leading",
  error: "reports an error",
  step_down_asked: "was asked to step down",
  overrun: "still runs work although it may not lead",
  overlap: "led while another did",
};
const STATES = {
  leader: "leads",
  follower: "standby",
  acquiring: "takes over",
  reconnecting: "reconnects",
  releasing: "hands over",
  stopped: "stopped",
};
const ALERTS = {
  no_leader: "No leader",
  overlap: "Two leaders at once",
  frequent_failovers: "Frequent failovers",
  silent_node: "Silent node",
  store_unreachable: "Store unreachable",
};

const plain = (code) => String(code).replaceAll("_", " ");
const sayIn = (table, code) => (code === null || code === undefined ? "" : Object.hasOwn(table, code) ? table[code] : plain(code));

export const eventWord = (event) => sayIn(EVENTS, event);
export const causeWord = (cause) => sayIn(CAUSES, cause);
export const stateWord = (state) => sayIn(STATES, state);
export const alertWord = (name) => {
  const said = sayIn(ALERTS, name);
  return said.charAt(0).toUpperCase() + said.slice(1);
};

export function endWord(end, cause) {
  if (!end) return cause ? causeWord(cause) : "";
  if (!cause) return sayIn(ENDS, end);
  return end === "lost" ? causeWord(cause) : `${sayIn(ENDS, end)}: ${causeWord(cause)}`;
}

// "lost:connection_lost" is how the history counts it.
export function failoverWord(how) {
  const [end, cause] = String(how).split(":", 2);
  return endWord(end, cause);
}

export const count = (n, one, many = `${one}s`) => `${n.toLocaleString("en")} ${n === 1 ? one : many}`;
