"""Write the signatures of the public API into the documentation, from the code.

python tools/api_docs.py            write them
python tools/api_docs.py --check    exit 1 when what is written is not what the code says
"""

import argparse
import ast
import enum
import importlib
import inspect
import subprocess
import sys
import textwrap
from collections.abc import Iterator, Sequence
from dataclasses import is_dataclass
from pathlib import Path
from types import FunctionType
from typing import Any

__all__ = ["MODULES", "main", "page"]

PAGE = Path(__file__).parents[1] / "docs" / "reference" / "signatures.md"

MODULES = (
    "pgleaderlock", "pgleaderlock.sync", "pgleaderlock.compat.consensus", "pgleaderlock.stores.nfs",
    "pgleaderlock.stores", "pgleaderlock.stores.base", "pgleaderlock.stores.record", "pgleaderlock.ops.registry",
    "pgleaderlock.ops.registry.reading", "pgleaderlock.ops.registry.audit", "pgleaderlock.work.schedule.reading",
    "pgleaderlock.postgres.schema", "pgleaderlock.postgres.login",
    "pgleaderlock.ops.metrics", "pgleaderlock.ops.pod_label", "pgleaderlock.ops.config",
    "pgleaderlock.ops.node", "pgleaderlock.integrations.starlette", "pgleaderlock.integrations.apscheduler",
    "pgleaderlock.integrations.celery", "pgleaderlock.integrations.systemd", "pgleaderlock.testing",
    "pgleaderlock.testing.embedded",
)  # fmt: skip

_HEAD = """\
# Signatures

Written by `make docs` from the code: what can be imported from where, and how it is called. [Python API](api.md) says
what it means.
"""


def page() -> str:
    """Return the whole page."""
    parts = [_HEAD]
    for name in MODULES:
        module = importlib.import_module(name)
        parts.append(f"\n## `{name}`\n\n```python\n{_formatted(_module(module))}```\n")
    return "".join(parts)


def _formatted(stub: str) -> str:
    command = [sys.executable, "-m", "ruff", "format", "--line-length", "110", "--stdin-filename", "page.pyi", "-"]
    return subprocess.run(command, input=stub, capture_output=True, text=True, check=True).stdout


def _module(module: Any) -> str:
    return "\n".join(line for name in module.__all__ for line in _thing(name, getattr(module, name)))


def _thing(name: str, thing: Any) -> Iterator[str]:
    if isinstance(thing, FunctionType):
        yield _function(thing, name)
    elif inspect.isclass(thing):
        yield f"class {name}{_bases(thing)}:"
        yield textwrap.indent("\n".join(_members(thing)) or "...", "    ")
    else:
        yield f"{name} = ..."


def _bases(thing: type) -> str:
    names = [base.__name__ for base in thing.__bases__ if base is not object]
    return f"({', '.join(names)})" if names else ""


def _members(thing: type) -> Iterator[str]:
    if issubclass(thing, enum.Enum):
        yield from (f"{member.name} = {member.value!r}" for member in thing)
        return
    if is_dataclass(thing):
        yield from _fields(thing)
    seen: set[str] = set()
    for owner in thing.__mro__:
        if not owner.__module__.startswith("pgleaderlock"):
            continue
        for name, value in vars(owner).items():
            is_shown = name == "__init__" and not is_dataclass(owner)
            if (is_shown or not name.startswith("_")) and name not in seen:
                seen.add(name)
                yield from _member(name, value)


def _fields(thing: Any) -> Iterator[str]:
    """Yield the fields as the source has them: their types and defaults as somebody wrote them."""
    for owner in reversed(thing.__mro__):
        if not is_dataclass(owner) or not owner.__module__.startswith("pgleaderlock"):
            continue
        for node in _parsed(owner).body:
            if isinstance(node, ast.AnnAssign) and not ast.unparse(node.target).startswith("_"):
                yield ast.unparse(node)


def _member(name: str, value: Any) -> Iterator[str]:
    if isinstance(value, property):
        yield f"@property\n{_function(value.fget, name)}"
    elif isinstance(value, classmethod | staticmethod):
        yield f"@{type(value).__name__}\n{_function(value.__func__, name)}"
    elif isinstance(value, FunctionType):
        yield _function(value, name)


def _function(function: Any, name: str) -> str:
    """Return the head of a function as somebody wrote it: with the names of its types, and without its body."""
    try:
        node = _parsed(inspect.unwrap(function))
    except (OSError, SyntaxError):  # made by a library, at run time
        return f"def {name}{inspect.signature(function)}: ..."
    if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
        return f"def {name}{inspect.signature(function)}: ..."
    node.name, node.body, node.decorator_list = name, [ast.Expr(ast.Constant(...))], []
    return ast.unparse(node)


def _parsed(thing: Any) -> Any:
    return ast.parse(textwrap.dedent(inspect.getsource(thing))).body[0]


def main(arguments: Sequence[str] | None = None) -> int:
    """Write the page, or compare it."""
    parser = argparse.ArgumentParser(description="Write the signatures of the public API into the documentation.")
    parser.add_argument("--check", action="store_true")
    parser.add_argument("--page", type=Path, default=PAGE)
    options = parser.parse_args(arguments)
    right = page()
    if not options.check:
        options.page.write_text(right, encoding="utf-8")
        return 0
    if options.page.read_text(encoding="utf-8") == right:
        return 0
    sys.stderr.write(f"{options.page.name} is not what the code says: run `make docs`\n")
    return 1


if __name__ == "__main__":
    sys.exit(main())
