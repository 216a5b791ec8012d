"""Which of these times overlap: the one search for a split brain, for histories, logs and reports. Pure."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar


class _Begun(Protocol):
    @property
    def began_at(self) -> float: ...


T = TypeVar("T", bound=_Begun)


@dataclass(frozen=True, slots=True)
class Overlap(Generic[T]):
    """Two leaderships that were valid at the same time, the one that began earlier first."""

    first: T
    second: T
    lasted_s: float
    """For how long at least."""

    @property
    def began_at(self) -> float:
        """When the second began."""
        return self.second.began_at


def find_overlaps(
    items: Iterable[T], lasted_until: Callable[[T], float], may_last_until: Callable[[T], float] | None = None
) -> list[Overlap[T]]:
    """Return each two of which the second began while the first certainly lasted (``lasted_until``).

    The overlap ends when the second did: ``may_last_until``, where that is later than what is certain.
    """
    ordered = sorted(items, key=lambda item: item.began_at)
    found = []
    for place, first in enumerate(ordered):
        first_until = lasted_until(first)
        for second in ordered[place + 1 :]:
            if second.began_at >= first_until:
                break
            until = min(first_until, (may_last_until or lasted_until)(second))
            found.append(Overlap(first, second, until - second.began_at))
    return found
