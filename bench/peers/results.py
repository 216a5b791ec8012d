"""The figures of one run in a file: the page is checked against them, and written anew without measuring."""

import json
import math
import os
import platform
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, Self

from peers.measuring import Figures

__all__ = ["PATH", "Run", "load", "save"]

PATH = Path(__file__).with_name("results.json")
_PACKAGES = (
    "pgleaderlock", "psycopg", "tooz", "kazoo", "etcd3gw", "redis", "python-redis-lock", "filelock", "flufl.lock",
)  # fmt: skip


@dataclass(frozen=True)
class Run:
    """When, on what, with which versions, and what came of it."""

    date: str
    machine: str
    load: float
    """The machine's load average as it began: above its number of cores, others worked there too."""
    versions: Mapping[str, str]
    figures: Mapping[str, Figures]

    @classmethod
    def of_today(cls, figures: Mapping[str, Figures], servers: Mapping[str, str], load: float) -> Self:
        kernel = ".".join(platform.release().split(".")[:2])
        machine = f"{os.cpu_count()} cores, {platform.system()} {kernel}, Python {platform.python_version()}"
        packages = {name: found for name in _PACKAGES if (found := _version(name))}
        return cls(datetime.now(UTC).date().isoformat(), machine, load, {**servers, **packages}, figures)


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def save(run: Run, path: Path = PATH) -> None:
    content = {
        "date": run.date,
        "machine": run.machine,
        "load": round(run.load, 1),
        "versions": dict(run.versions),
        "figures": {row: _plain(figures) for row, figures in run.figures.items()},
    }
    path.write_text(json.dumps(content, indent=1, allow_nan=False) + "\n", encoding="utf-8")


def load(path: Path = PATH) -> Run:
    content = json.loads(path.read_text(encoding="utf-8"))
    figures = {row: Figures(**_with_infinity(each)) for row, each in content["figures"].items()}
    return Run(content["date"], content["machine"], content["load"], content["versions"], figures)


def _plain(figures: Figures) -> dict[str, Any]:
    """Round to what was measured, and write "never" for what JSON has no number for."""
    return {name: _written(value) for name, value in figures.as_dict().items()}


def _written(value: Any) -> Any:
    if isinstance(value, list):
        return [_written(each) for each in value]
    if isinstance(value, float):
        return round(value, 3) if math.isfinite(value) else "never"
    return value


def _with_infinity(figures: dict[str, Any]) -> dict[str, Any]:
    return {name: _read(value) for name, value in figures.items()}


def _read(value: Any) -> Any:
    if isinstance(value, list):
        return [_read(each) for each in value]
    return math.inf if value == "never" else value
