"""Every setting of an election, declared once: name, type, default, check, and what it means.

One line here is a setting everywhere. From it come the options of the command line, the keys of the configuration file,
their environment variables, the parameters of the blocking API, and the reference page (``make docs``). The rare
settings are fields of :class:`LockOptions`, which :class:`~pgleaderlock.LeaderLock` takes as ``options``; the common
ones are its keywords, written out in its signature for readers and type checkers, and a test compares them with this.

In a text, ``{name}`` stands for another setting: each place writes the name that the setting has there.
"""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from typing import Any, Literal, get_args, get_origin, get_type_hints

from pgleaderlock._base.checks import address_fault, check_flag, check_seconds, quoted
from pgleaderlock._base.clock import Clock, suspend_aware_clock
from pgleaderlock._base.durations import show_duration
from pgleaderlock._base.pod_labels import label_fault
from pgleaderlock.retry import RetryStrategy
from pgleaderlock.stores.times import RENEWALS_PER_LEASE, USUAL_INTERVAL_S, choose_times

__all__ = [
    "BY_NAME",
    "DEFAULT_SCHEMA",
    "POD_LABEL",
    "SETTINGS",
    "LockOptions",
    "LockSettings",
    "Setting",
    "check_options",
    "check_owner",
    "check_schema",
]

DEFAULT_SCHEMA = "pgleaderlock"
"""The schema of our tables, unless another is configured."""
_LONGEST_LEASE_S = 20 * 24 * 3600.0  # PostgreSQL counts milliseconds in 31 bits
_SHORTEST_SLICE_S = 0.1
_NAMED = re.compile(r"\{(\w+)\}")

Rule = Callable[[Any], str | None]
"""Returns what is wrong with a value of the right type, in words that follow the setting's name; None if nothing is."""


def _at_most(longest_s: float) -> Rule:
    return lambda seconds: f"must be at most {show_duration(longest_s)}" if seconds > longest_s else None


def _at_least(shortest_s: float, why: str) -> Rule:
    return lambda seconds: f"must be at least {show_duration(shortest_s)}: {why}" if seconds < shortest_s else None


def _matching(pattern: str, rule: str) -> Rule:
    """Return the rule of a name that needs no escaping inside quotes."""
    form = re.compile(pattern, re.ASCII)
    return lambda name: None if form.fullmatch(str(name)) else rule


@dataclass(frozen=True, slots=True)
class Setting:
    """One setting, as every place that offers it needs to know it."""

    name: str
    type: Any
    """Without the None of a setting whose default follows from others."""
    default: Any
    meaning: str
    otherwise: str = ""
    """The description of the default, where it is not a fixed value."""
    without: str = ""
    """The meaning of its absence, for a flag that is on by default."""
    rule: Rule | None = None
    zero_ok: bool = False
    key: str | None = None
    """Its key in the configuration file; None for one that is set in Python, or on the command line, only."""
    scope: Literal["every store", "tables", "sessions"] = "every store"
    """Where it has an effect: also in other stores than PostgreSQL, in its tables, or in its sessions only."""
    in_groups: bool = True
    """Whether it has an effect where many roles share their sessions."""
    is_rare: bool = False

    @property
    def choices(self) -> tuple[str, ...]:
        """The allowed values, if they are a few words."""
        return get_args(self.type) if get_origin(self.type) is Literal else ()

    @property
    def is_seconds(self) -> bool:
        """Whether it is a duration."""
        return self.type is float

    @property
    def flag(self) -> str:
        """Its option on the command line: ``--lease``, ``--no-witness``."""
        word = self.name.removesuffix("_s").replace("_", "-")
        return f"--no-{word}" if self.default is True else f"--{word}"

    @property
    def flag_help(self) -> str:
        """The help of that option."""
        default = f" [default: {self.otherwise}]" if self.otherwise else ""
        return self.told((self.without or self.meaning) + default, lambda each: each.flag).replace("`", "")

    def check(self, value: Any) -> None:
        """Raise ValueError or TypeError unless the value is allowed."""
        if value is None and self.default is None:
            return
        if self.is_seconds:
            check_seconds(self.name, value, zero_ok=self.zero_ok)
        elif self.type is bool:
            check_flag(self.name, value)
        elif self.choices and value not in self.choices:
            raise ValueError(f"{self.name} must be {' or '.join(map(repr, self.choices))}, got {quoted(value)}")
        if self.rule is not None and (wrong := self.rule(value)) is not None:
            raise ValueError(f"{self.name} {wrong}, got {quoted(value)}")

    def told(self, text: str, name_of: "Callable[[Setting], str]") -> str:
        """Return a text of this setting with the names that the settings in it have in one place."""
        return _NAMED.sub(lambda match: name_of(BY_NAME[match[1]]), text)


def _setting(default: Any, meaning: str, **more: Any) -> Any:
    """Declare a setting; ``more`` are fields of :class:`Setting`. Its key is its name without the unit."""
    return field(default=default, metadata={"meaning": meaning, **more})


@dataclass(frozen=True, slots=True, kw_only=True)
class LockOptions:
    """The settings of a lock that few users need: the ``options`` of :class:`~pgleaderlock.LeaderLock`."""

    wake: Literal["line", "poll"] = _setting(
        "line",
        "How followers wait: for their place in the succession, or by polling.",
        scope="sessions",
        in_groups=False,
    )
    slice_s: float | None = _setting(
        None,
        "The longest wait slice: one bounded wait in the server's queue for the lock.",
        otherwise="slightly less than the server's `deadlock_timeout`",
        rule=_at_least(_SHORTEST_SLICE_S, "a shorter wait slice would be polling without a pause"),
        key="lock_timeout",
        scope="sessions",
    )
    schema_owner: str | None = _setting(
        None,
        "The role whose tables are also used, besides those of the connecting user and of superusers.",
        otherwise="none",
        scope="tables",
        rule=_matching(r"[^'\\\x00-\x1f]{1,63}", "must be the name of a role, without quotes and backslashes"),
    )
    fence_wait_s: float | None = _setting(
        None,
        "How long a new term waits for transactions that the last leader fenced.",
        otherwise="{lease_s}",
        scope="sessions",
        in_groups=False,
    )
    statement_timeout_s: float | None = _setting(
        None,
        "After how long the server cancels a statement of the election.",
        otherwise="a second more than {lease_s}",
        key=None,
        scope="sessions",
    )
    drain_s: float = _setting(10.0, "How long `before_release` callbacks and leader tasks may take before a hand-over.")
    hard_fence: bool = _setting(
        False, "End the process when leadership is over and its callbacks cannot be notified.", in_groups=False
    )
    clock: Clock = _setting(
        suspend_aware_clock, "The clock of the election, for tests.", otherwise="`suspend_aware_clock`", key=None
    )

    def __post_init__(self) -> None:
        for name, value in self.values().items():
            BY_NAME[name].check(value)

    def values(self) -> dict[str, Any]:
        """Return each setting by its name."""
        return {each.name: getattr(self, each.name) for each in fields(self)}


@dataclass(frozen=True, slots=True, kw_only=True)
class LockSettings(LockOptions):
    """All settings of a lock: the common ones, which are keywords of ``LeaderLock``, and those of ``LockOptions``."""

    retry_strategy: RetryStrategy | None = _setting(
        None, "The delays between attempts, and between reconnections.", otherwise="`ExponentialBackoff()`", key=None
    )
    lease_s: float | None = _setting(
        None,
        "How long a silent leader keeps the lock. The same for all candidates.",
        otherwise="3 x {health_interval_s}: `15s`",
        rule=_at_most(_LONGEST_LEASE_S),
        key="lease_duration",
    )
    health_interval_s: float = _setting(
        USUAL_INTERVAL_S,
        "How often a leader renews. Less than two thirds of {lease_s}.",
        otherwise="a third of {lease_s}: `5s`",
        rule=_at_most(_LONGEST_LEASE_S / RENEWALS_PER_LEASE),
        key="refresh_interval",
    )
    reconnect_grace_s: float | None = _setting(
        None,
        "After a lost connection, how long to try to regain leadership before it counts as lost.",
        otherwise="off",
        in_groups=False,
    )
    auto_reacquire: bool = _setting(
        True,
        "Become a follower after a loss or a step-down, instead of stopping.",
        without="Exit after a loss instead of becoming a follower.",
        key=None,
    )
    settle_s: float | None = _setting(
        None,
        "Quiet period after a server start, in which no candidate leads. `0` only for a server that had no leader "
        "before its start.",
        otherwise="{lease_s}",
        zero_ok=True,
        scope="sessions",
    )
    witness: bool = _setting(
        True,
        "Hold a second lock on a second session: it keeps a successor out until the old leader has stopped. The same "
        "for all candidates.",
        without="Use one session only. Weaker guarantee.",
        scope="sessions",
    )
    address: str | None = _setting(
        None,
        "Where clients reach this process while it leads, such as `http://10.0.0.7:8080`. Every user of the store can "
        "read it.",
        otherwise="none",
        rule=address_fault,
    )
    allow_pooler: bool = _setting(
        False,
        "Accept a connection pooler in session mode. One in transaction or statement mode is refused anyway.",
        scope="sessions",
    )
    takeover: Literal["fast", "strict"] = _setting(
        "fast",
        "Strict waits one lease after every leader that did not release cleanly. Needs {term_table}. The same for all "
        "candidates.",
        scope="sessions",
    )
    term_table: bool = _setting(
        False, "Record each term in a table, for strict take-over and fencing.", scope="sessions"
    )
    schema: str = _setting(
        DEFAULT_SCHEMA,
        "The schema of the term table, or of the rows of `postgresql+lease://`.",
        scope="tables",
        rule=_matching(r"(?!pg_)[A-Za-z_][A-Za-z0-9_]{0,62}", "must be a plain name of letters, digits and _, not pg_"),
    )

    def __post_init__(self) -> None:
        LockOptions.__post_init__(self)
        choose_times(self.lease_s, self.health_interval_s)
        if self.takeover == "strict" and not self.term_table:
            raise ValueError("takeover='strict' decides by the term table: pass term_table=True as well")
        if self.address is not None and not self.witness:
            raise ValueError("address is in the name of the witness session: it needs witness=True")

    @property
    def options(self) -> LockOptions:
        """The rare ones alone."""
        return LockOptions(**{each.name: getattr(self, each.name) for each in SETTINGS if each.is_rare})

    def of_election(self) -> dict[str, Any]:
        """Return the keywords of ``Election`` for these settings, in any store."""
        values = {each.name: getattr(self, each.name) for each in SETTINGS if each.scope == "every store"}
        del values["address"]  # the backend writes it
        times = choose_times(values.pop("lease_s"), self.health_interval_s)
        return {**values, "health_interval_s": times.health_interval_s}

    def keywords(self) -> dict[str, Any]:
        """Return the keywords of ``LeaderLock`` for these settings."""
        common = {each.name: getattr(self, each.name) for each in SETTINGS if not each.is_rare}
        return {**common, "options": self.options}


def _declared() -> Mapping[str, Setting]:
    """Return the settings as the two records declare them, the common ones first."""
    hints, rare = get_type_hints(LockSettings), {each.name for each in fields(LockOptions)}
    found = [_of_field(each, hints[each.name], is_rare=each.name in rare) for each in fields(LockSettings)]
    return {each.name: each for each in sorted(found, key=lambda each: each.is_rare)}


def _of_field(declared: Any, hint: Any, *, is_rare: bool) -> Setting:
    more = {"key": declared.name.removesuffix("_s"), **declared.metadata}
    alone = next((each for each in get_args(hint) if each is not type(None)), hint)
    is_optional = type(None) in get_args(hint)
    return Setting(declared.name, alone if is_optional else hint, declared.default, is_rare=is_rare, **more)


BY_NAME: Mapping[str, Setting] = _declared()
"""The settings by their names."""
SETTINGS: tuple[Setting, ...] = tuple(BY_NAME.values())
"""All settings, the common ones first."""

POD_LABEL = Setting(
    "pod_label",
    str,
    None,
    "The label that the pod of this process carries in Kubernetes while it leads: `pgleaderlock/leader=billing`.",
    otherwise="none",
    rule=label_fault,
    key="pod_label",
)
"""On the command line and in the configuration. In Python it is :class:`~pgleaderlock.ops.pod_label.PodLabel`."""


def check_options(options: LockOptions | None) -> LockOptions:
    """Return the rare settings, by default all as they usually are. TypeError for anything else, such as a dict."""
    if options is not None and type(options) is not LockOptions:
        raise TypeError(f"options must be a LockOptions, not {type(options).__name__}")
    return options or LockOptions()


def check_schema(name: str) -> str:
    """Return the name if it is a plain one, so that it needs no escaping inside quotes; else raise ValueError."""
    BY_NAME["schema"].check(name)
    return name


def check_owner(name: str | None) -> str | None:
    """Return the name of a role if it needs no escaping inside quotes; else raise ValueError."""
    BY_NAME["schema_owner"].check(name)
    return name
