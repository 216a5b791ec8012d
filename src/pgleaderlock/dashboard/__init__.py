"""Leadership made visible: one page, live, without anything to build or to fetch from elsewhere.

    source = RegistrySource(dsn, "pgleaderlock", where="db=app", window_s=3600)
    async with Dashboard(source, port=8765) as dashboard:
        print(dashboard.url)

``pgleaderlock dashboard`` does that for you. Needs the extra ``dashboard`` (Starlette and uvicorn).
"""

from pgleaderlock.errors import MissingExtra

try:
    from pgleaderlock.dashboard._sources import RegistrySource, Source, StoreSource
    from pgleaderlock.dashboard.server import Dashboard
except ImportError as error:  # pragma: no cover - the tests have it
    raise MissingExtra("the dashboard needs pip install 'pgleaderlock[dashboard]'") from error

__all__ = ["Dashboard", "RegistrySource", "Source", "StoreSource"]
