"""Gives a Python program uvloop once it imports asyncio, and nothing before: some tests look at what is imported."""

import sys
from collections.abc import Sequence
from importlib.machinery import ModuleSpec, PathFinder
from types import ModuleType


class _Finder:
    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        spec = PathFinder.find_spec(name, path) if name == "asyncio" else None
        if spec is None or spec.loader is None:
            return None
        sys.meta_path.remove(self)
        execute = spec.loader.exec_module

        def execute_and_set(module: ModuleType) -> None:
            execute(module)
            import uvloop

            module.set_event_loop_policy(uvloop.EventLoopPolicy())

        spec.loader.exec_module = execute_and_set  # type: ignore[method-assign]
        return spec


sys.meta_path.insert(0, _Finder())
