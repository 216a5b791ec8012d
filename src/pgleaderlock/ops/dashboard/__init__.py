"""The dashboard: one live page, with nothing to build or to fetch from elsewhere.

    source = RegistrySource(dsn, "pgleaderlock", where="db=app", window_s=3600)
    async with Dashboard(source, port=8765) as dashboard:
        print(dashboard.url)

``pgleaderlock dashboard`` does that for you. :class:`Dashboard` needs the extra ``dashboard`` (Starlette and uvicorn);
the data that it shows does not, and ``pgleaderlock watch`` shows it without the extra.
"""

from typing import TYPE_CHECKING

from pgleaderlock.errors import MissingExtra
from pgleaderlock.ops.dashboard._alerts import Watched
from pgleaderlock.ops.dashboard._sources import RegistrySource, Source, StoreSource

if TYPE_CHECKING:
    from pgleaderlock.ops.dashboard.server import Dashboard

__all__ = ["Dashboard", "RegistrySource", "Source", "StoreSource", "Watched"]


def __getattr__(name: str) -> object:
    if name != "Dashboard":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    try:
        from pgleaderlock.ops.dashboard.server import Dashboard  # noqa: PLC0415 - of an extra
    except ImportError as error:
        raise MissingExtra("the dashboard needs pip install 'pgleaderlock[dashboard]'") from error
    return Dashboard
