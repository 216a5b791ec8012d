"""Writes YAML, with PyYAML, so that a colon in a value does not become a key."""

from importlib import import_module
from typing import Any

from pgleaderlock.errors import MissingExtra


def dump(document: dict[str, Any]) -> str:
    """Return the document as text, in the order in which it was made."""
    try:
        yaml: Any = import_module("yaml")  # late, because elections do not need it
    except ImportError as error:
        raise MissingExtra('writing YAML needs PyYAML: pip install "pgleaderlock[alerts]"') from error
    text: str = yaml.safe_dump(document, sort_keys=False, allow_unicode=True, width=1000)
    return text
