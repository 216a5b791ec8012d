"""What can be imported, what it is called, and that all of it is documented and typed."""

import ast
import importlib
import importlib.metadata
import importlib.resources
import inspect
import pkgutil
import subprocess
import sys
import tomllib
from itertools import pairwise
from pathlib import Path
from types import ModuleType

import pytest

import pgleaderlock

ROOT = Path(__file__).parents[2]


def public_modules() -> list[str]:
    """Every module without an underscore in its path. cli needs an extra and is a program, not an API."""
    found = [pgleaderlock.__name__]
    for module in pkgutil.walk_packages(pgleaderlock.__path__, "pgleaderlock."):
        parts = module.name.split(".")
        if "cli" not in parts and not any(part.startswith("_") for part in parts):
            found.append(module.name)
    return found


def tree_of(module: ModuleType) -> ast.Module:
    return ast.parse(Path(str(module.__file__)).read_text(encoding="utf-8"))


def documented_assignments(module: ModuleType) -> set[str]:
    """Names with a string right below them: that is where the docstring of a constant or an alias goes."""
    body = tree_of(module).body
    found = set[str]()
    for statement, below in pairwise(body):
        if isinstance(below, ast.Expr) and isinstance(below.value, ast.Constant) and isinstance(below.value.value, str):
            match statement:
                case ast.Assign(targets=[ast.Name(name)]) | ast.AnnAssign(target=ast.Name(name)):
                    found.add(name)
                case _:
                    pass
    return found


def home_of(module: ModuleType, name: str) -> ModuleType:
    """Find the module in which an exported name is defined."""
    for node in ast.walk(tree_of(module)):
        if isinstance(node, ast.ImportFrom) and node.module and any(alias.name in (name, "*") for alias in node.names):
            return home_of(importlib.import_module(node.module), name)
    return module


MODULES = public_modules()


def test_the_modules_are_found() -> None:
    assert {"pgleaderlock", "pgleaderlock.engine.fsm", "pgleaderlock.postgres.backend"} <= set(MODULES)


@pytest.mark.parametrize("name", MODULES)
def test_a_public_module_opens_with_its_theory(name: str) -> None:
    assert (importlib.import_module(name).__doc__ or "").strip()


@pytest.mark.parametrize("name", MODULES)
def test_everything_a_module_exports_can_be_imported(name: str) -> None:
    module = importlib.import_module(name)
    for export in getattr(module, "__all__", ()):
        assert hasattr(module, export), export


@pytest.mark.parametrize("name", MODULES)
def test_exports_are_in_order_and_named_once(name: str) -> None:
    """Constants, then classes, then functions, each by the alphabet: the order that ruff keeps."""
    exports = list(getattr(importlib.import_module(name), "__all__", ()))
    assert len(set(exports)) == len(exports)

    def rank(export: str) -> tuple[int, str]:
        return (0 if export.isupper() else 1 if export[0].isupper() else 2, export)

    assert exports == sorted(exports, key=rank)


@pytest.mark.parametrize("name", MODULES)
def test_a_module_exports_every_public_class_and_function_that_it_defines(name: str) -> None:
    module = importlib.import_module(name)
    defined = {
        node.name
        for node in tree_of(module).body
        if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef) and not node.name.startswith("_")
    }
    assert defined <= set(getattr(module, "__all__", ()))


@pytest.mark.parametrize("name", MODULES)
def test_everything_exported_has_a_docstring(name: str) -> None:
    module = importlib.import_module(name)
    bare = []
    for export in getattr(module, "__all__", ()):
        value = inspect.unwrap(getattr(module, export))  # a cached function is one behind its cache
        if inspect.isclass(value):
            bare += [] if (value.__dict__.get("__doc__") or "").strip() else [export]
            bare += [f"{export}.{member}" for member in undocumented_members(value)]
        elif inspect.isfunction(value) and value.__name__ == export:
            bare += [] if (value.__doc__ or "").strip() else [export]
        elif export not in documented_assignments(home_of(module, export)):
            bare.append(export)
    assert bare == []


def undocumented_members(cls: type) -> list[str]:
    found = []
    for name, member in vars(cls).items():
        is_code = inspect.isfunction(member) or isinstance(member, property | classmethod | staticmethod)
        if is_code and not name.startswith("_") and not (inspect.getdoc(member) or "").strip():
            found.append(name)
    return found


def test_the_package_offers_what_the_specification_names() -> None:
    specified = {
        "Callback",
        "ConnectionError",
        "DecorrelatedJitter",
        "ErrorCallback",
        "ExponentialBackoff",
        "FixedInterval",
        "LeaderLock",
        "LockError",
        "LockState",
        "PgLeaderLockError",
        "RetryContext",
        "RetryStrategy",
        "ShutdownError",
        "StateChangeCallback",
    }
    assert specified <= set(pgleaderlock.__all__)


def test_the_constructor_has_the_specified_parameters_first_with_the_specified_defaults() -> None:
    parameters = inspect.signature(pgleaderlock.LeaderLock).parameters
    assert list(parameters)[:9] == [
        "dsn",
        "key1",
        "key2",
        "retry_strategy",
        "health_interval_s",
        "reconnect_grace_s",
        "auto_reacquire",
        "shutdown_event",
        "connect_fn",
    ]
    defaults = {name: parameters[name].default for name in list(parameters)[3:9]}
    assert defaults == {
        "retry_strategy": None,
        "health_interval_s": 5.0,
        "reconnect_grace_s": None,
        "auto_reacquire": True,
        "shutdown_event": None,
        "connect_fn": None,
    }
    keyword_only = inspect.Parameter.KEYWORD_ONLY
    assert all(parameters[name].kind is keyword_only for name in list(parameters)[3:])


def test_the_lifecycle_has_the_specified_methods() -> None:
    for name in ("start", "shutdown", "step_down", "wait_for_leadership", "__aenter__", "__aexit__"):
        assert inspect.iscoroutinefunction(getattr(pgleaderlock.LeaderLock, name)), name
    for name in ("state", "is_leader"):
        assert isinstance(getattr(pgleaderlock.LeaderLock, name), property), name


def test_the_marker_that_makes_our_types_count_is_shipped() -> None:
    """PEP 561: without this file a type checker takes everything of ours for Any."""
    assert importlib.resources.files("pgleaderlock").joinpath("py.typed").is_file()
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    wheel = project["tool"]["hatch"]["build"]["targets"]["wheel"]
    assert wheel["packages"] == ["src/pgleaderlock"]
    assert "exclude" not in wheel


def test_the_version_is_written_in_one_place() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert "version" not in project
    assert importlib.metadata.version("pgleaderlock") == pgleaderlock.__version__


# --- The front: few names, each imported when it is asked for --------------------------------------------------------

SPECIFIED = {
    "Callback", "ConnectionError", "DecorrelatedJitter", "ErrorCallback", "ExponentialBackoff", "FixedInterval",
    "LeaderElectionService", "LeaderLock", "LockError", "LockState", "PgLeaderLockError", "RetryContext",
    "RetryStrategy", "ShutdownError", "StateChangeCallback",
}  # fmt: skip


def test_the_front_has_the_specified_names_and_at_most_ten_more() -> None:
    assert set(pgleaderlock.__all__) >= SPECIFIED
    assert len(set(pgleaderlock.__all__) - SPECIFIED) <= 10


def test_type_checkers_are_shown_the_names_that_are_imported_when_asked_for() -> None:
    shown = {
        alias.asname: node.module
        for block in tree_of(pgleaderlock).body
        if isinstance(block, ast.If)
        for node in block.body
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    }
    assert shown == pgleaderlock._HOMES


def modules_after(program: str) -> set[str]:
    """Return the modules that a program of its own has loaded at its end."""
    shown = f"{program}\nimport sys; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", shown], check=True, capture_output=True, text=True, cwd=ROOT)
    return set(done.stdout.split())


def test_an_import_of_the_package_loads_no_driver_no_facade_and_no_schedule() -> None:
    loaded = modules_after("import pgleaderlock")
    assert {name for name in loaded if name.startswith("pgleaderlock.")} <= {
        "pgleaderlock._base",
        "pgleaderlock._base.version",
    }
    assert "asyncio" not in loaded
    assert "psycopg" not in loaded


@pytest.mark.parametrize("url", ["memory://front", "file:///tmp/pgleaderlock-front.lock"])
def test_an_election_on_another_store_loads_no_database_driver(url: str, tmp_path: Path) -> None:
    url = url.replace("/tmp", str(tmp_path))
    loaded = modules_after(
        "import asyncio\n"
        "from pgleaderlock import Election, open_backend\n"
        "async def main():\n"
        f"    async with Election(open_backend({url!r})) as election:\n"
        "        assert await election.wait_for_leadership(30)\n"
        "asyncio.run(main())"
    )
    assert not {name for name in loaded if name.startswith(("psycopg", "pgleaderlock.sync", "pgleaderlock.work"))}


def test_a_lock_without_jobs_loads_nothing_that_runs_jobs() -> None:
    loaded = modules_after(
        "import asyncio\n"
        "from pgleaderlock import LeaderLock\n"
        "async def main():\n"
        "    async with LeaderLock('postgresql://127.0.0.1:1/none', role='front') as lock:\n"
        "        lock.while_leader(lambda: None)\n"
        "        assert not await lock.wait_for_leadership(0.1)\n"
        "asyncio.run(main())"
    )
    assert not {name for name in loaded if name.startswith(("pgleaderlock.work.schedule.", "pgleaderlock.sync"))}
    assert "pgleaderlock.work.schedule" not in loaded


def test_the_package_has_few_rooms() -> None:
    top = [path for path in Path(str(pgleaderlock.__file__)).parent.iterdir() if path.name != "__pycache__"]
    assert len([path for path in top if path.is_dir() or path.suffix == ".py"]) <= 20
