"""The three files: their text, and writing them.

A file that this command wrote is replaced; any other file is kept, unless ``force``. All paths are checked before the
first file is written, and each file is replaced in one step: Prometheus never reads half of one.
"""

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pgleaderlock.ops.alerts import _yaml

__all__ = ["MARK", "json_text", "write", "yaml_text"]

MARK = "Written by pgleaderlock alerts export"
"""The beginning of each file that we write; in JSON, which has no comments, the beginning of its description."""


def yaml_text(document: dict[str, Any]) -> str:
    """Return the text of a YAML file of ours."""
    return f"# {MARK}: change the TOML and export again, this file will be replaced.\n{_yaml.dump(document)}"


def json_text(document: dict[str, Any]) -> str:
    """Return the text of a JSON file of ours."""
    return json.dumps({"description": f"{MARK}.", **document}, indent=2, ensure_ascii=False) + "\n"


def write(folder: Path, texts: Mapping[str, str], *, force: bool = False) -> list[Path]:
    """Write these files, by name. ``FileExistsError`` if one was not written by this command; then none is written."""
    folder.mkdir(parents=True, exist_ok=True)
    paths = [folder / name for name in texts]
    for path in paths:
        if not force and path.exists() and not _is_ours(path):
            raise FileExistsError(f"{path} was not written by this command: move it away, or replace it with --force")
    for path, text in zip(paths, texts.values(), strict=True):
        unfinished = path.with_name(f".{path.name}.{os.getpid()}")
        try:
            unfinished.write_text(text, encoding="utf-8")
            unfinished.replace(path)
        finally:
            unfinished.unlink(missing_ok=True)
    return paths


def _is_ours(path: Path) -> bool:
    try:
        text = path.read_text(encoding="utf-8")
        if path.suffix != ".json":
            return text.startswith(f"# {MARK}")
        return str(json.loads(text)["description"]).startswith(MARK)
    except (ValueError, LookupError, TypeError):  # not text, not JSON or not a dashboard: not a file of ours
        return False
