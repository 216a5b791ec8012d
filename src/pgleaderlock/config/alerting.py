"""What is wrong with ``[[alerts]]`` and ``[receivers]``, in the words of their own parser, key by key.

That parser stops at the first thing that it cannot read. To hear of all of them it is asked again about each part.
"""

import re
from collections.abc import Iterator
from typing import Any

from pgleaderlock.alerts import parse
from pgleaderlock.config.lines import KeyPath

__all__ = ["find_problems"]

_SOURCE = "alerts"  # stands at the beginning of each message, and is taken off again
_OF_RECEIVERS = re.compile(r"\[(receivers[^\]]*)\](?:: ([a-z_]+)(?= ))?:? ?(.*)", re.DOTALL)
_VALUE = re.compile(r", not ('.*'|\".*\")$", re.DOTALL)


def find_problems(alerts: list[Any], receivers: dict[str, Any]) -> list[tuple[KeyPath, str]]:
    """Return the key that is meant, and what is wrong with it."""
    return [*_of_alerts(alerts), *_of_receivers(receivers)]


def _complaint(content: dict[str, Any]) -> str | None:
    try:
        parse(content, _SOURCE)
    except ValueError as error:
        return _VALUE.sub("", str(error).removeprefix(f"{_SOURCE}: "))
    except RecursionError:
        return "is nested too deeply"
    return None


def _of_alerts(alerts: list[Any]) -> Iterator[tuple[KeyPath, str]]:
    good = list[Any]()
    for number, entry in enumerate(alerts):
        complaint = _complaint({"alerts": [*good, entry]})
        if complaint is None:
            good.append(entry)
            continue
        name = entry.get("name") if isinstance(entry, dict) else None
        for place in (f"[[alerts]] number {len(good) + 1}", f'alert "{name}"'):
            complaint = complaint.removeprefix(place).removeprefix(": ").lstrip()
        yield _with_key(("alerts", number), complaint)


def _of_receivers(receivers: dict[str, Any]) -> Iterator[tuple[KeyPath, str]]:
    good = dict[str, Any]()
    for name, table in receivers.items():
        complaint = _complaint({"receivers": {**good, name: table}})
        if complaint is None:
            good[name] = table
        elif match := _OF_RECEIVERS.fullmatch(complaint):
            path = tuple(match[1].split("."))
            yield (*path, match[2]) if match[2] else path, match[3]
        else:
            yield ("receivers", name), complaint


def _with_key(path: KeyPath, complaint: str) -> tuple[KeyPath, str]:
    """Messages begin with the key that they are about."""
    key, _, rest = complaint.partition(" ")
    names_key = re.fullmatch("[a-z_]+", key) and rest.startswith(("is ", "must ", "has ", "takes "))
    return ((*path, key), rest) if names_key else (path, complaint)
