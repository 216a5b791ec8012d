"""What ``--json`` looks like: the samples in the documentation, and the comparison of real output with them."""

import json
import re
from pathlib import Path
from typing import Any

__all__ = ["assert_shape", "documented", "samples"]

_DOCS = Path(__file__).parents[2] / "docs" / "reference" / "command-line.md"
_FREE_FORM = {"about", "failovers", "items[]"}
"""Objects whose keys are the business of nodes, or of Kubernetes."""
_SAMPLE = r"<!-- {}: ([^>]*) -->\n```json\n(.*?)\n```"


def samples(kind: str = "shape") -> dict[str, dict[str, Any]]:
    """Return every sample, by its name: that of the command, and more words where it has several.

    A ``shape`` is what ``--json`` prints, an ``answer`` what a command answers over HTTP.
    """
    found = re.findall(_SAMPLE.format(kind), _DOCS.read_text(encoding="utf-8"), re.DOTALL)
    return {name: json.loads(text) for name, text in found}


def documented(name: str, kind: str = "shape") -> dict[str, Any]:
    found = samples(kind)
    assert name in found, f"{_DOCS} does not show what {name} --json looks like"
    return found[name]


def assert_shape(actual: Any, shown: Any, where: str = "") -> None:
    """Every key, in this order, and every type; what is null on either side shows nothing."""
    if actual is None or shown is None:
        return
    number = (int, float)
    is_alike = type(actual) is type(shown) or (type(actual) in number and type(shown) in number)
    assert is_alike, f"{where}: {actual!r} is not like {shown!r}"
    if isinstance(shown, dict) and where.rpartition(".")[2] not in _FREE_FORM:
        assert list(actual) == list(shown), where
        for key, value in shown.items():
            assert_shape(actual[key], value, f"{where}.{key}")
    if isinstance(shown, list) and shown:
        for each in actual:
            assert_shape(each, shown[0], f"{where}[]")
    if isinstance(shown, str) and re.fullmatch(r"2026-11-15T.*Z", shown):
        assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z", actual), where
