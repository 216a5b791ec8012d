"""The options of a torture, and the load on the server that they permit."""

from dataclasses import dataclass
from typing import Literal

CONNECTIONS_PER_NODE = 4
"""A leader has two; as many again may be half open, until the server finds out."""
MESSAGES_PER_NODE = 40
"""How many statements a node may send per second."""
_OWN_CONNECTIONS = 2
_OWN_STATEMENTS = 10


@dataclass(frozen=True, slots=True)
class Options:
    """The options of one torture."""

    seconds: float
    nodes: int
    lease_s: float
    takeover: Literal["fast", "strict"]
    faults: tuple[str, ...]
    seed: int
    every_s: float
    """About how long after a fault the next one comes."""

    @property
    def most_connections(self) -> int:
        """The most connections to the server, our own included."""
        return self.nodes * CONNECTIONS_PER_NODE + _OWN_CONNECTIONS

    @property
    def most_statements_per_s(self) -> int:
        """The most statements that the server gets per second, on average over two seconds."""
        return self.nodes * MESSAGES_PER_NODE + _OWN_STATEMENTS
