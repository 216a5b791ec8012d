"""One node under torture, as the conductor sees it: its processes, one after the other, and their logs."""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pgleaderlock._base.clock import suspend_aware_clock as clock
from pgleaderlock.testing._claim import GAP_S, make_claim_file, read_claims
from pgleaderlock.testing.demo._actor import Actor
from pgleaderlock.testing.demo._node import DSN_VARIABLE
from pgleaderlock.testing.torture._faulty_relay import FaultyRelay
from pgleaderlock.testing.torture._wall_clock import WallClock

_FRESH_S = GAP_S * 5


class TorturedNode(Actor):
    """A node. Each of its processes writes to new files of its own."""

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
        self.network = relay
        self.wall_clock = wall_clock
        self._logs = logs
        self._given_environment = {**environment, DSN_VARIABLE: dsn, **(wall_clock.environment() if wall_clock else {})}
        self.incarnation = 0
        """The number of its current process, from 1."""
        self.was_killed = False
        self.has_met_server = False
        """Whether this process has led, or has been queued: it knows of the server's last start."""

    def kill(self) -> None:
        self.was_killed = True
        super().kill()

    def leads(self) -> bool:
        """Whether the node claimed to lead a moment ago, by its log."""
        newest = max((seen for _, seen, _ in read_claims(self._claim_path)), default=0.0)
        return clock() - newest < _FRESH_S

    @property
    def _claim_path(self) -> Path:
        return self._logs / f"{self.name}.{self.incarnation}.beliefs"  # the suffix is part of the format of the logs

    def _command(self) -> list[str]:
        self.incarnation += 1
        make_claim_file(self._claim_path)
        self.was_killed = self.has_met_server = False
        self._settings["logs"] = str(self._claim_path.with_suffix(""))
        return super()._command()

    def is_in_touch(self) -> bool:
        """Whether the node runs, has met the server, and has a network without faults."""
        is_awake = self.pid is not None and not (self.is_frozen or self.was_killed)
        return is_awake and self.has_met_server and self.network.is_fair and self.network.is_quick

    def _environment(self) -> dict[str, str]:
        return {**os.environ, **self._given_environment}

    def _listen(self, _actor: Actor, _pid: int, line: dict[str, Any]) -> None:
        if line.get("says") == "ready":
            self.is_ready = self.has_met_server = True
