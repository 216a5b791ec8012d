"""A process in which packages are not installed, for as long as a block lasts."""

import contextlib
import sys
from collections.abc import Iterator
from types import ModuleType

__all__ = ["without_packages"]


@contextlib.contextmanager
def without_packages(*packages: str, imported_anew: tuple[str, ...] = ()) -> Iterator[None]:
    """Hide these packages; what is ``imported_anew`` is imported without them, and afterwards is what it was.

    Also what the block imports is removed again: beside the modules from before, it would have classes of its own, and
    no ``except`` of those modules would catch them.
    """
    prefixes = (*packages, *imported_anew)
    before = _taken_out(prefixes)
    sys.modules.update(dict.fromkeys(packages))  # type: ignore[arg-type]  # None: an import of it fails
    try:
        yield
    finally:
        _taken_out(prefixes)
        sys.modules.update(before)
        for name, module in before.items():  # a package comes after the modules that it imports
            _set_on_parent(name, module)


def _taken_out(prefixes: tuple[str, ...]) -> dict[str, ModuleType]:
    """Remove the modules with these names from what is imported, and from their parents; return them."""
    names = [name for name in sys.modules if any(name == each or name.startswith(f"{each}.") for each in prefixes)]
    for name in names:
        _set_on_parent(name, None)
    return {name: sys.modules.pop(name) for name in names}


def _set_on_parent(name: str, module: ModuleType | None) -> None:
    """ "from parent import child" takes the attribute, without a look at sys.modules."""
    parent, _, child = name.rpartition(".")
    if sys.modules.get(parent) is None:
        return
    if module is None:
        sys.modules[parent].__dict__.pop(child, None)
    else:
        setattr(sys.modules[parent], child, module)
