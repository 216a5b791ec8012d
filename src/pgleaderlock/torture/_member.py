"""One node under torture, as the conductor sees it: its processes one after the other, and the logs that they left."""

import json
import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pgleaderlock.clock import suspend_aware_clock as clock
from pgleaderlock.demo._actor import Actor
from pgleaderlock.torture._belief import GAP_S, make_belief_file, read_beliefs
from pgleaderlock.torture._faulty_relay import FaultyRelay
from pgleaderlock.torture._node import DSN_VARIABLE
from pgleaderlock.torture._wall_clock import WallClock

__all__ = ["Member"]

_FRESH_S = GAP_S * 5


class Member(Actor):
    """A node. Whoever is in its place writes to files that nobody has written to before."""

    def __init__(
        self,
        name: str,
        relay: FaultyRelay,
        logs: Path,
        settings: dict[str, Any],
        *,
        environment: Mapping[str, str],
        dsn: str,
        wall_clock: WallClock | None = None,
    ) -> None:
        super().__init__(name, relay, logs / f"{name}.stderr", settings, self._listen)
        del self._settings["node"], self._settings["dsn"]
        self.weather = relay
        self.wall_clock = wall_clock
        self._logs = logs
        self._given_environment = {**environment, DSN_VARIABLE: dsn, **(wall_clock.environment() if wall_clock else {})}
        self.incarnation = 0
        """The how-manyeth process in its place."""
        self.was_killed = False
        self.has_met_server = False
        """Whether this process has led, or asked and was refused: it knows of the server's last start."""

    def kill(self) -> None:
        """End it with -9."""
        self.was_killed = True
        super().kill()

    def leads(self) -> bool:
        """Whether it believed a moment ago, by its log."""
        newest = max((seen for _, seen, _ in read_beliefs(self._belief_path)), default=0.0)
        return clock() - newest < _FRESH_S

    @property
    def _belief_path(self) -> Path:
        return self._logs / f"{self.name}.{self.incarnation}.beliefs"

    def _command(self) -> list[str]:
        self.incarnation += 1
        make_belief_file(self._belief_path)
        files = {"beliefs": str(self._belief_path), "events": str(self._belief_path.with_suffix(".events"))}
        self.was_killed = self.has_met_server = False
        return [sys.executable, "-P", "-m", "pgleaderlock.torture._node", json.dumps({**self._settings, **files})]

    def is_in_touch(self) -> bool:
        """Whether it is awake, knows the server, and has a good network."""
        is_awake = self.pid is not None and not (self.is_frozen or self.was_killed)
        return is_awake and self.has_met_server and self.weather.is_fair and self.weather.is_quick

    def _environment(self) -> dict[str, str]:
        return {**os.environ, **self._given_environment}

    def _listen(self, _actor: Actor, _pid: int, line: dict[str, Any]) -> None:
        if line.get("says") == "ready":
            self.is_ready = self.has_met_server = True
