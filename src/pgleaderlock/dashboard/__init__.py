"""Leadership made visible: one page, live, without anything to build or to fetch from elsewhere.

    source = RegistrySource(dsn, "pgleaderlock", where="db=app", window_s=3600)
    async with Dashboard(source, port=8765) as dashboard:
        print(dashboard.url)

``pgleaderlock dashboard`` does that for you. :class:`Dashboard` needs the extra ``dashboard`` (Starlette and uvicorn);
what is shown does not, and ``pgleaderlock watch`` shows it without.
"""

from typing import TYPE_CHECKING

from pgleaderlock.dashboard._alerts import Watched
from pgleaderlock.dashboard._sources import RegistrySource, Source, StoreSource
from pgleaderlock.errors import MissingExtra

if TYPE_CHECKING:
    from pgleaderlock.dashboard.server import Dashboard

__all__ = ["Dashboard", "RegistrySource", "Source", "StoreSource", "Watched"]


def __getattr__(name: str) -> object:
    if name != "Dashboard":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    try:
        from pgleaderlock.dashboard.server import Dashboard  # noqa: PLC0415 - of an extra
    except ImportError as error:
        raise MissingExtra("the dashboard needs pip install 'pgleaderlock[dashboard]'") from error
    return Dashboard
