"""What ``make run`` and ``make setup`` install, with a uv that only writes down what it is asked for."""

import json
import os
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest

from tests.support.event_loops import child_environment

ROOT = Path(__file__).parents[2]
UV = f"""#!{sys.executable}
import json, os, pathlib, sys
if sys.argv[1:] == ["--help"]:
    print("--system-certs" if os.environ["KNOWS"] == "system-certs" else "--native-tls")
    sys.exit()
names = ("UV_SYSTEM_CERTS", "UV_NATIVE_TLS")
call = {{"words": sys.argv[1:], "environment": {{name: os.environ[name] for name in names if name in os.environ}}}}
print("uv was called", flush=True)
with open("calls", "a") as calls:
    calls.write(json.dumps(call) + "\\n")
demo = pathlib.Path(".venv/bin/pgleaderlock")
demo.parent.mkdir(parents=True, exist_ok=True)
demo.write_text("#!/bin/sh\\necho the demo runs: $*\\n")
demo.chmod(0o755)
"""


@pytest.fixture
def clone(tmp_path: Path) -> Path:
    for name in ("Makefile", "pyproject.toml", "uv.lock"):
        shutil.copy(ROOT / name, tmp_path / name)
    uv = tmp_path / "bin" / "uv"
    uv.parent.mkdir()
    uv.write_text(UV)
    uv.chmod(0o755)
    return tmp_path


def make(clone: Path, *words: str, knows: str = "system-certs") -> str:
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("UV_", "MAKE"))}
    environment = {**kept, "PATH": f"{clone / 'bin'}:{os.environ['PATH']}", "KNOWS": knows}
    done = subprocess.run(
        ["make", *words], cwd=clone, env=environment, capture_output=True, text=True, timeout=50, check=True
    )
    return done.stdout


def calls(clone: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (clone / "calls").read_text().splitlines()]


def test_make_run_installs_the_demo_alone_and_says_before_how_large_it_is(clone: Path):
    output = make(clone, "run", "ARGS=--no-browser")
    [call] = calls(clone)
    words = call["words"]
    assert words[0] == "sync"
    assert words[words.index("--extra") + 1] == "demo"
    assert "--no-default-groups" in words, "no development tools"
    assert "--all-extras" not in words
    assert "--quiet" not in words, "progress is seen"
    assert output.index("110 MB") < output.index("uv was called") < output.index("the demo runs: demo --no-browser")


@pytest.mark.parametrize("first", ["run", "setup"])
def test_run_and_setup_do_not_undo_each_other(clone: Path, first: str):
    make(clone, first)
    make(clone, "setup")
    make(clone, "run")
    made = [call["words"] for call in calls(clone)]
    everything = [words for words in made if "--all-extras" in words]
    demo_alone = [words for words in made if "demo" in words]
    assert len(everything) == 1, "what is there is not installed again"
    assert len(demo_alone) == (1 if first == "run" else 0), "all extras include the demo's"
    assert all("--inexact" in words for words in demo_alone), "what else is there stays"


@pytest.mark.parametrize(
    ("knows", "names"),
    [("system-certs", {"UV_SYSTEM_CERTS"}), ("native-tls", {"UV_SYSTEM_CERTS", "UV_NATIVE_TLS"})],
)
def test_the_systems_certificates_are_trusted_as_behind_a_proxy_that_inspects_tls(
    clone: Path, knows: str, names: set[str]
):
    make(clone, "run", knows=knows)
    [call] = calls(clone)
    assert call["environment"] == dict.fromkeys(names, "true")


# --- The extra ---

_IMPORTED = """
import importlib.metadata, json, sys
import pgleaderlock.cli.commands, pgleaderlock.cli.demo_show
import pgleaderlock.testing.demo._node, pgleaderlock.testing.demo._place
import psycopg, uvicorn.protocols.http.h11_impl
owners = importlib.metadata.packages_distributions()
tops = {name.partition(".")[0] for name in sys.modules}
print(json.dumps(sorted({owner.lower().replace("_", "-") for top in tops for owner in owners.get(top, ())})))
"""


def installed_by(extra: str) -> set[str]:
    """Return the names of all packages that the lock file installs with this extra."""
    packages: dict[str, dict[str, Any]] = {
        each["name"]: each for each in tomllib.loads((ROOT / "uv.lock").read_text())["package"]
    }
    found: set[str] = set()
    waiting = [*packages["pgleaderlock"]["dependencies"], *packages["pgleaderlock"]["optional-dependencies"][extra]]
    while waiting:
        each = waiting.pop()
        more = packages[each["name"]].get("optional-dependencies", {})
        waiting += [needed for name in each.get("extra", ()) for needed in more.get(name, ())]
        if each["name"] not in found:
            found.add(each["name"])
            waiting += packages[each["name"]].get("dependencies", ())
    return found


@pytest.mark.slow
def test_the_extra_demo_has_all_that_the_demo_imports_and_no_development_tool():
    done = subprocess.run(
        [sys.executable, "-c", _IMPORTED],
        env=child_environment("asyncio", os.environ),  # uvloop is what tests may add, and the demo does not need
        capture_output=True,
        text=True,
        timeout=50,
        check=True,
    )
    available = installed_by("demo")
    # coverage may measure this run, and uvicorn imports watchfiles where it is: tests need uvicorn[standard].
    assert set(json.loads(done.stdout)) - available <= {"pgleaderlock", "coverage", "watchfiles"}
    assert not available & {"pytest", "playwright", "mypy", "ruff", "django", "celery", "hypothesis"}
