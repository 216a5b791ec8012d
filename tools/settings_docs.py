"""Write the tables of all settings into the documentation and the example, from the code that declares them.

    python tools/settings_docs.py            write them
    python tools/settings_docs.py --check    exit 1 when what is written is not what the code says

Only the parts between a line with ``generated: NAME`` and a line with ``end`` are ours; the rest is prose.
"""

import argparse
import re
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from pgleaderlock._base.durations import show_duration
from pgleaderlock.ops.config.settings import SETTINGS as KEYS
from pgleaderlock.ops.config.settings import Setting as Key
from pgleaderlock.options import SETTINGS, Setting

__all__ = ["main", "regenerate"]

ROOT = Path(__file__).parents[1]
PAGES = ("docs/reference/settings.md", "docs/reference/configuration.md", "examples/pgleaderlock.toml")

_PART = re.compile(
    r"(?P<begin>^(?:<!--|#) generated: (?P<name>[a-z]+)[^\n]*\n).*?(?P<end>^(?:<!--|#) end\b)", re.DOTALL | re.MULTILINE
)
_KEY_OF = {key.path[-1]: key for key in KEYS if key.path[:-1] == ("cluster", "leader_election")}
_TYPES = {
    "duration": "duration",
    "flag": "true or false",
    "number": "whole number",
    "text": "text",
    "secret": "URL, never shown",
    "token": "text, never shown",
    "roles": "list",
    "facts": "table",
    "tables": "tables",
}


# --- Every setting, in all its places --------------------------------------------------------------------------------


def _settings(*, rare: bool) -> Iterator[str]:
    yield "| in Python | default | command line | file | variable | meaning |\n|---|---|---|---|---|---|\n"
    for setting in SETTINGS:
        if setting.is_rare is rare:
            key = _KEY_OF.get(setting.key or "")
            elsewhere = "" if key is None else f"`{key.variable}`"
            file = "" if key is None else f"`{setting.key}`"
            flag = "" if key is None and setting.type is not bool else f"`{setting.flag}`"
            told = setting.told(setting.meaning, _python_name)
            yield f"| `{setting.name}` | {_default(setting)} | {flag} | {file} | {elsewhere} | {told} |\n"


def _default(setting: Setting) -> str:
    if setting.otherwise:
        return setting.told(setting.otherwise, _python_name)
    return f"`{setting.default!r}`"


def _python_name(setting: Setting) -> str:
    return f"`{setting.name}`"


# --- Every key of the file -------------------------------------------------------------------------------------------


def _keys() -> Iterator[str]:
    yield "| key | type | default | variable | meaning |\n|---|---|---|---|---|\n"
    for key in KEYS:
        kind = ", ".join(f'`"{choice}"`' for choice in key.choices) or _TYPES[key.kind]
        default = key.otherwise or f"`{_written(key)}`"
        yield f"| `{key.key}` | {kind} | {default} | `{key.variable}` | {key.meaning} |\n"


def _written(key: Key) -> str:
    if key.kind == "duration":
        return show_duration(key.default)
    return str(key.default).lower() if key.kind == "flag" else str(key.default)


def _example() -> Iterator[str]:
    """Yield the rare keys, each commented out."""
    for setting in SETTINGS:
        key = _KEY_OF.get(setting.key or "") if setting.is_rare else None
        if key is not None and setting.key != "lock_timeout":  # the example has a value for it
            value = _written(key) if not key.otherwise else "10s" if key.kind == "duration" else "name"
            shown = value if key.kind == "flag" else f'"{value}"'
            default = f"default: {key.otherwise}. " if key.otherwise else ""
            yield f"{f'# {key.path[-1]} = {shown}':<39} # {default}{key.meaning}\n".replace("`", "")


_PARTS: dict[str, Callable[[], Iterator[str]]] = {
    "common": lambda: _settings(rare=False),
    "rare": lambda: _settings(rare=True),
    "keys": _keys,
    "example": _example,
}


def regenerate(text: str) -> str:
    """Return the page with its generated parts as the code has them."""
    return _PART.sub(lambda part: part["begin"] + "".join(_PARTS[part["name"]]()) + part["end"], text)


def main(arguments: Sequence[str] | None = None) -> int:
    """Write the parts, or compare them."""
    parser = argparse.ArgumentParser(description="Write the tables of all settings into the documentation.")
    parser.add_argument("--check", action="store_true")
    parser.add_argument("--root", type=Path, default=ROOT)
    options = parser.parse_args(arguments)
    stale = []
    for page in (options.root / name for name in PAGES):
        text = page.read_text(encoding="utf-8")
        right = regenerate(text)
        if right != text and options.check:
            stale.append(page.name)
        elif right != text:
            page.write_text(right, encoding="utf-8")
    if stale:
        sys.stderr.write(f"not what the code says: {', '.join(stale)}. Run `make docs`\n")
    return 1 if stale else 0


if __name__ == "__main__":
    sys.exit(main())
