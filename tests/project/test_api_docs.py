"""The documented signatures are those of the code; and the check that says so is able to fail."""

import ast
import importlib
import re
import shutil
import textwrap
from pathlib import Path
from types import ModuleType

import pytest

from tests.support.fsm_docs import ROOT, load_tool

api_docs = load_tool("api_docs")
PAGE = ROOT / "docs" / "reference" / "signatures.md"
PAGES = [ROOT / "README.md", *(page for page in sorted((ROOT / "docs").rglob("*.md")) if page != PAGE)]
PROGRAM = re.compile(r"^( *)```python\n(.*?)^\1```", re.MULTILINE | re.DOTALL)


@pytest.mark.slow
def test_the_documented_signatures_are_those_of_the_code():
    assert api_docs.main(["--check"]) == 0, "docs/reference/signatures.md is out of date: run `make docs`"


@pytest.mark.slow
def test_the_check_fails_on_a_page_that_says_something_else(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    copy = Path(shutil.copy(PAGE, tmp_path / "page.md"))
    right = copy.read_text(encoding="utf-8")
    assert "hard_fence: bool = False" in right
    copy.write_text(right.replace("hard_fence: bool = False", "hard_fence: bool = True"), encoding="utf-8")
    assert api_docs.main(["--check", "--page", str(copy)]) == 1
    assert "make docs" in capsys.readouterr().err
    assert api_docs.main(["--page", str(copy)]) == 0
    assert copy.read_text(encoding="utf-8") == right


@pytest.mark.parametrize("name", api_docs.MODULES)
@pytest.mark.slow
def test_every_public_name_is_there(name: str):
    assert shown_names()[name] == set(importlib.import_module(name).__all__)


def test_every_name_that_docs_and_examples_import_is_on_the_page():
    shown = shown_names()
    missing = []
    for where, module, name in documented_imports():
        if name not in shown.get(module, ()) and f"{module}.{name}" not in shown:
            missing.append(f"{where}: from {module} import {name}")
    assert missing == [], "add the modules to MODULES of tools/api_docs.py, or import public names"


def test_every_public_module_that_a_docs_page_names_is_on_the_page():
    named = {name for page in PAGES for name in re.findall(r"`(pgleaderlock(?:\.[a-z_]+)+)", page.read_text("utf-8"))}
    public = {name for name in named if hasattr(find_module(name), "__all__")}
    assert public - {*api_docs.MODULES} == set()


@pytest.mark.parametrize(
    ("thing", "line"),
    [
        ("a class", '    """One candidate for one lock, in any store."""'),
        ("a property", '        """Whether this process may act as the leader now."""'),
        ("a field", '    """How long the store took to answer, on `renewed` events."""'),
        ("a setting", '    """End the process when leadership is over and its callbacks cannot be notified."""'),
        ("an attribute that the constructor sets", "    cause: LossCause"),
        ("a name that is described in another module", "from pgleaderlock import EventKind"),
    ],
)
def test_the_page_shows(thing: str, line: str):
    assert line in PAGE.read_text(encoding="utf-8").splitlines(), thing


def shown_names() -> dict[str, set[str]]:
    """Return the names that the page shows, by module."""
    sections = re.findall(r"^## `([^`]+)`\n\n```python\n(.*?)^```", PAGE.read_text("utf-8"), re.MULTILINE | re.DOTALL)
    return {module: {name for node in ast.parse(stub).body for name in names_of(node)} for module, stub in sections}


def names_of(node: ast.stmt) -> list[str]:
    match node:
        case ast.ImportFrom():
            return [alias.name for alias in node.names]
        case ast.ClassDef() | ast.FunctionDef() | ast.AsyncFunctionDef():
            return [node.name]
        case ast.Assign(targets=[ast.Name(name)]) | ast.AnnAssign(target=ast.Name(name)):
            return [name]
        case _:
            return []


def documented_imports() -> list[tuple[str, str, str]]:
    """Return where users are shown an import from pgleaderlock, its module, and the name."""
    programs = [(page, textwrap.dedent(text)) for page in PAGES for _, text in PROGRAM.findall(page.read_text("utf-8"))]
    programs += [(path, path.read_text("utf-8")) for path in sorted((ROOT / "examples").rglob("*.py"))]
    return [
        (path.relative_to(ROOT).as_posix(), node.module, alias.name)
        for path, text in programs
        for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.ImportFrom) and node.module and node.module.split(".")[0] == "pgleaderlock"
        for alias in node.names
    ]


def find_module(name: str) -> ModuleType | None:
    """Return the module of this name; None if it is something in a module, or a metric or span of that name."""
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError:
        return None


def test_what_the_api_page_says_of_modules_can_be_imported():
    text = (ROOT / "docs" / "reference" / "api.md").read_text(encoding="utf-8")
    for module in set(re.findall(r"`(pgleaderlock(?:\.[a-z_]+)+)`", text)):
        try:
            importlib.import_module(module)
        except ModuleNotFoundError:  # a name in a module, then
            parent, _, name = module.rpartition(".")
            assert hasattr(importlib.import_module(parent), name), module
