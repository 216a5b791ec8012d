"""Write the public API into the documentation, from the code: signatures, and the first sentence of each docstring.

python tools/api_docs.py            write them
python tools/api_docs.py --check    exit 1 when what is written is not what the code says
"""

import argparse
import ast
import functools
import importlib
import inspect
import re
import subprocess
import sys
import textwrap
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import is_dataclass
from itertools import pairwise
from pathlib import Path
from types import FunctionType, ModuleType
from typing import Any

__all__ = ["MODULES", "main", "page"]

PAGE = Path(__file__).parents[1] / "docs" / "reference" / "signatures.md"

# A name of several modules is described in the first of them.
MODULES = (
    "pgleaderlock", "pgleaderlock.options", "pgleaderlock.models", "pgleaderlock.errors", "pgleaderlock.engine.fsm",
    "pgleaderlock.sync", "pgleaderlock.compat.consensus", "pgleaderlock.postgres.leader_group",
    "pgleaderlock.postgres.login", "pgleaderlock.postgres.schema", "pgleaderlock.stores", "pgleaderlock.stores.base",
    "pgleaderlock.stores.record", "pgleaderlock.stores.watching", "pgleaderlock.stores.kubernetes",
    "pgleaderlock.stores.nfs", "pgleaderlock.work.schedule.registration", "pgleaderlock.work.schedule.once",
    "pgleaderlock.work.schedule.reading", "pgleaderlock.ops.registry", "pgleaderlock.ops.registry.reading",
    "pgleaderlock.ops.registry.asking", "pgleaderlock.ops.registry.audit", "pgleaderlock.ops.metrics",
    "pgleaderlock.ops.otel", "pgleaderlock.ops.alerts", "pgleaderlock.ops.pod_label", "pgleaderlock.ops.sidecar",
    "pgleaderlock.ops.config", "pgleaderlock.ops.node", "pgleaderlock.integrations.starlette",
    "pgleaderlock.integrations.apscheduler", "pgleaderlock.integrations.celery", "pgleaderlock.integrations.systemd",
    "pgleaderlock.integrations.pytest_plugin", "pgleaderlock.testing", "pgleaderlock.testing.simulation",
    "pgleaderlock.testing.simulation.network", "pgleaderlock.testing.fake_kubernetes",
    "pgleaderlock.testing.embedded", "pgleaderlock.testing.torture",
)  # fmt: skip

_HEAD = """\
# Signatures

Written by `make docs` from the code: what can be imported from where, how it is called, and the first sentence of its
docstring. [Python API](api.md) says what the parameters mean. A name that several modules export is described in one of
them; the others import it from there.
"""

_LINE_LENGTH = 110
_DOCSTRING_WIDTH = 96  # of up to 8 spaces and 6 quotes more, a line is not longer than others
_MODULE_ROLE = re.compile(r":mod:`~?([^`]+)`")
_ROLE = re.compile(r":\w+:`~?(?:pgleaderlock\.(?:[a-z_]+\.)*)?([^`]+)`")
_SENTENCE = re.compile(r".*?[.!?](?=\s|$)")


def page() -> str:
    """Return the whole page."""
    return _HEAD + "".join(f"\n## `{name}`\n\n```python\n{_formatted(_module(name))}```\n" for name in MODULES)


def _formatted(stub: str) -> str:
    as_stub = ["--line-length", str(_LINE_LENGTH), "--stdin-filename", "page.pyi"]
    command = [sys.executable, "-m", "ruff", "format", *as_stub, "-"]
    return subprocess.run(command, input=stub, capture_output=True, text=True, check=True).stdout


def _module(module_name: str) -> str:
    module = importlib.import_module(module_name)
    elsewhere, here = list[str](), list[str]()
    for name in module.__all__:
        home, _ = _homes()[name, id(getattr(module, name))]
        if home == module_name:
            here += _thing(module, name)
        else:
            elsewhere.append(f"from {home} import {name}")
    return "\n".join(elsewhere + here)


@functools.cache
def _homes() -> Mapping[tuple[str, int], tuple[str, Any]]:
    """Return each thing of the page with the module that describes it, by its name and id."""
    homes: dict[tuple[str, int], tuple[str, Any]] = {}
    for module_name in MODULES:
        module = importlib.import_module(module_name)
        for name in module.__all__:
            thing = getattr(module, name)
            homes.setdefault((name, id(thing)), (module_name, thing))
    return homes


def _thing(module: ModuleType, name: str) -> Iterator[str]:
    thing = getattr(module, name)
    function = inspect.unwrap(thing) if callable(thing) else thing
    if inspect.isclass(thing):
        yield _class_head(thing, name)
        yield textwrap.indent("\n".join(_class_body(thing)), "    ")
    elif isinstance(function, FunctionType):
        yield _function(function, name)
    else:
        yield from _constant(module, name)


def _class_head(thing: type, name: str) -> str:
    node = _parsed(thing)
    decorators = [f"@{text}\n" for text in map(ast.unparse, node.decorator_list) if text.startswith("dataclass")]
    bases = ", ".join(ast.unparse(each) for each in (*node.bases, *node.keywords))
    return f"{''.join(decorators)}class {name}({bases}):".replace("()", "")


def _constant(module: ModuleType, name: str) -> Iterator[str]:
    """Yield a constant or the alias of a type, as its module defines it."""
    tree = ast.parse(inspect.getsource(module))
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.module and name in {alias.name for alias in node.names}:
            yield from _constant(importlib.import_module(node.module), name)
            return
    yield from (line for found, line in _assignments(tree.body) if found == name)


def _class_body(thing: type) -> Iterator[str]:
    yield _quoted(_summary(thing.__doc__)) or "..."
    elsewhere, seen = defaultdict[str, list[str]](list), {"__init__"}
    for owner in _owners(thing):
        members = dict(_members(owner))
        describer = _describers()[owner]
        if describer == _describers()[thing]:
            yield from (members[name] for name in members if name == "__init__" or name not in seen)
        else:
            elsewhere[describer] += (name for name in members if name not in seen)
        seen |= members.keys()
    for describer, names in elsewhere.items():
        if names:
            comment = f"As in {describer}: {', '.join(names)}"
            yield textwrap.fill(comment, _DOCSTRING_WIDTH, initial_indent="# ", subsequent_indent="# ")


def _owners(thing: type) -> list[type]:
    """Return the classes of ours that define the members of a class: itself, then what it inherits from."""
    return [owner for owner in thing.__mro__ if owner.__module__.startswith("pgleaderlock")]


@functools.cache
def _describers() -> Mapping[type, str]:
    """Return the class that describes the members of each class: itself if it is public, else its nearest heir."""
    public = {thing: f"{home}.{name}" for (name, _), (home, thing) in _homes().items() if inspect.isclass(thing)}
    describers = dict(public)
    for heir, full_name in sorted(public.items(), key=lambda item: len(item[0].__mro__)):
        for owner in _owners(heir):
            describers.setdefault(owner, full_name)
    return describers


def _members(owner: type) -> Iterator[tuple[str, str]]:
    """Yield the names and the stubs of what a class itself defines: its fields, attributes and methods."""
    body = _parsed(owner).body
    yield from _assignments(body)
    for node in body:
        if isinstance(node, ast.FunctionDef) and node.name == "__init__":
            yield from _assignments(_attributes(node))
    for name, value in vars(owner).items():
        is_init = name == "__init__" and not is_dataclass(owner) and not getattr(owner, "_is_protocol", False)
        text = _method(name, value) if is_init or name == "__call__" or name[0] != "_" else None
        if text:
            yield name, text


def _attributes(init: ast.FunctionDef) -> Iterator[ast.stmt]:
    """Yield what `__init__` assigns to attributes as if the class declared it, with the type of its parameter."""
    types = {each.arg: each.annotation for each in (*init.args.args, *init.args.kwonlyargs)}
    for node in init.body:
        match node:
            case ast.AnnAssign(ast.Attribute(ast.Name("self"), name), annotation):
                yield ast.AnnAssign(ast.Name(name), annotation, None, 1)
            case ast.Assign([ast.Attribute(ast.Name("self"), name)], value):
                yield ast.AnnAssign(ast.Name(name), types.get(ast.unparse(value)) or ast.Constant(...), None, 1)
            case ast.Expr():
                yield node  # maybe the docstring of an attribute
            case _:
                pass


def _assignments(body: Iterable[ast.stmt]) -> Iterator[tuple[str, str]]:
    """Yield the public names that are assigned or annotated, as the source has them, with the docstring below."""
    for node, below in pairwise((*body, ast.Pass())):
        match node:
            case ast.AnnAssign(target=ast.Name(name)) | ast.Assign(targets=[ast.Name(name)]) if name[0] != "_":
                docstring = _simplified(node) or _docstring_of(below)
                yield name, f"{ast.unparse(node)}\n{_quoted(_summary(docstring))}".rstrip()
            case _:
                pass


def _docstring_of(node: ast.stmt) -> str:
    match node:
        case ast.Expr(ast.Constant(str(docstring))):
            return docstring
        case _:
            return ""


def _simplified(node: ast.Assign | ast.AnnAssign) -> str:
    """Replace a value that says nothing or is long. Return the meaning that the declaration of a setting has in it."""
    match node.value:
        case ast.Call(ast.Name("_setting"), [default, ast.Constant(str(meaning)), *_]):
            node.value = default
            return re.sub(r"\{(\w+)\}", r"`\1`", meaning)
        case ast.expr() if len(ast.unparse(node)) > _LINE_LENGTH:
            node.value = ast.Constant(...)
        case _:
            pass
    return ""


def _method(name: str, value: Any) -> str | None:
    """Return the stub of a method or property; None if the value is something else."""
    if isinstance(value, property):
        return f"@property\n{_function(value.fget, name)}"
    if isinstance(value, functools.cached_property):
        return f"@property\n{_function(value.func, name)}"
    if isinstance(value, classmethod | staticmethod):
        return f"@{type(value).__name__}\n{_function(value.__func__, name)}"
    return _function(value, name) if isinstance(value, FunctionType) else None


def _function(function: Any, name: str) -> str:
    """Return the head of a function as its source has it, with the names of its types, and its first sentence."""
    summary = _summary(function.__doc__ if name == "__init__" else inspect.getdoc(function))
    try:
        node = _parsed(inspect.unwrap(function))
    except (OSError, SyntaxError):  # made by a library, at run time
        node = None
    if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
        return f"def {name}{inspect.signature(function)}: {_quoted(summary) or '...'}"
    node.name, node.decorator_list = name, []
    node.body = [ast.parse(_quoted(summary) or "...").body[0]]
    return ast.unparse(node)


def _summary(docstring: str | None) -> str:
    """Return the first sentence, without markup of Sphinx."""
    paragraph = " ".join(inspect.cleandoc(docstring or "").split("\n\n")[0].split())
    plain = _ROLE.sub(r"`\1`", _MODULE_ROLE.sub(r"`\1`", paragraph)).replace("``", "`")
    sentence = _SENTENCE.match(plain)
    return sentence.group() if sentence else plain


def _quoted(summary: str) -> str:
    return f'"""{textwrap.fill(summary, _DOCSTRING_WIDTH)}"""' if summary else ""


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
