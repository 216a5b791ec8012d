"""Leader election for Python on the PostgreSQL you already have.

Start at :class:`LeaderLock`. ``docs/`` has a tutorial, how-tos, the reference and the reasons.

What is offered here is imported when it is asked for. The command line imports this package before it can take a
password out of the process list, and that must not wait for a database driver.
"""

from importlib import import_module
from typing import TYPE_CHECKING

from pgleaderlock._version import __version__ as __version__

if TYPE_CHECKING:
    from pgleaderlock._api import *  # noqa: F403 - it says itself what it offers
    from pgleaderlock._api import __all__ as __all__


def __getattr__(name: str) -> object:
    if name.startswith("_") and name != "__all__":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    api = import_module("pgleaderlock._api")
    if name == "__all__" or name in api.__all__:
        return getattr(api, name)
    if name in globals():  # a submodule, which came with it
        return globals()[name]
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *import_module("pgleaderlock._api").__all__})
