"""``/metrics`` of a dashboard: the metrics of its process, and of the roles on the page."""

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from pgleaderlock.errors import MissingExtra

if TYPE_CHECKING:
    from pgleaderlock.ops.dashboard._board import Board


class _Seen:
    """A collector of the figures on the page."""

    def __init__(self, board: "Board") -> None:
        self._board = board

    def collect(self) -> Iterator[Any]:
        from prometheus_client.core import GaugeMetricFamily  # noqa: PLC0415 - of an extra

        fresh = GaugeMetricFamily(
            "pgleaderlock_dashboard_fresh", "1 if the page shows current data of its store, 0 if it is stale."
        )
        fresh.add_metric((), 1.0 if self._board.is_fresh else 0.0)
        streams = GaugeMetricFamily("pgleaderlock_dashboard_streams", "Number of open event streams.")
        streams.add_metric((), len(self._board.streams))
        led = GaugeMetricFamily("pgleaderlock_dashboard_led", "1 if the role has a leader, 0 if not.", labels=("role",))
        for role in self._board.roles:
            led.add_metric((role["role"],), 0.0 if role["leader"] is None else 1.0)
        yield from (fresh, streams, led)


def exposition(board: "Board", registry: Any = None) -> tuple[bytes, str]:
    """Return the text for Prometheus, and its content type. ``registry`` is the process's own, if it has one."""
    try:
        from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, generate_latest  # noqa: PLC0415
    except ImportError as error:
        raise MissingExtra("/metrics needs pip install 'pgleaderlock[metrics]'") from error
    own = CollectorRegistry()
    own.register(_Seen(board))
    text = generate_latest(own)
    return (text if registry is None else generate_latest(registry) + text), CONTENT_TYPE_LATEST
