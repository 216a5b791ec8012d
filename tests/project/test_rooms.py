"""Where things are: tests import no other tests, and ARCHITECTURE's map lists the rooms in the order of the linter."""

import ast
import re
import tomllib
from itertools import pairwise
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
TESTS = [*(ROOT / "tests").rglob("*.py"), *(ROOT / "packages").glob("*/tests*/**/*.py")]


def imported_by(source: str) -> set[str]:
    """Return the modules that a program names in its imports, and the names that it imports from them."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            found |= {node.module or "", *(f"{node.module or ''}.{alias.name}" for alias in node.names)}
    return found


def modules_of_tests(modules: set[str]) -> set[str]:
    return {name for name in modules if re.fullmatch(r"tests(_\w+)?(\.\w+)*\.test_\w+(\.\w+)?", name)}


def test_no_test_module_imports_another():
    """What tests share is in tests/support: a test module can be changed without a look at any other."""
    assert len(TESTS) > 100
    imports = {str(path.relative_to(ROOT)): modules_of_tests(imported_by(path.read_text("utf-8"))) for path in TESTS}
    assert {path: names for path, names in imports.items() if names} == {}


@pytest.mark.parametrize(
    "line",
    ["from tests.ops.test_asks import Roles", "import tests.ops.test_asks", "from tests.ops import test_asks"],
)
def test_an_import_of_a_test_module_is_seen(line: str):
    assert modules_of_tests(imported_by(line))


def test_an_import_of_what_tests_share_is_allowed():
    assert not modules_of_tests(imported_by("from tests.support.doubles import until\nimport tests.conftest"))


def rooms_of_the_linter() -> list[set[str]]:
    """Return the rooms of each layer, the lowest first. A room in two layers counts where it is highest."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    layers = project["tool"]["importlinter"]["contracts"][0]["layers"]
    rooms: list[set[str]] = []
    seen: set[str] = set()
    for layer in layers:
        here = {name.strip().split(".")[1] for name in layer.split("|")} - seen
        seen |= here
        rooms.insert(0, here)
    return [each for each in rooms if each]


def rooms_of_the_map() -> list[set[str]]:
    """Return the rooms of each line of ARCHITECTURE's map."""
    text = (ROOT / "ARCHITECTURE.md").read_text(encoding="utf-8")
    lines = text[text.index("| room |") :].partition("\n\n")[0].splitlines()[2:]
    return [set(re.findall(r"`(\w+)(?:/|\.py)`", line.split("|")[1])) for line in lines]


def test_the_map_lists_the_rooms_in_the_order_that_the_linter_checks():
    line_of = {room: number for number, rooms in enumerate(rooms_of_the_map()) for room in rooms}
    layers = rooms_of_the_linter()
    assert set(line_of) == set().union(*layers)
    for lower, higher in pairwise(layers):
        assert max(line_of[room] for room in lower) <= min(line_of[room] for room in higher), f"{lower}, then {higher}"
