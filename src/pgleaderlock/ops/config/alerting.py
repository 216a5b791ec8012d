"""All problems of ``[[alerts]]`` and ``[receivers]``, with the error texts of their own parser, key by key.

That parser stops at the first problem. To find all of them, each part is parsed again with the reported problem
corrected.
"""

import difflib
import re
from collections.abc import Iterator
from copy import deepcopy
from dataclasses import replace
from typing import Any

from pgleaderlock.ops.alerts import Config, alertmanager_config, parse, prometheus_rules, unheard
from pgleaderlock.ops.config.problems import KeyPath

__all__ = ["find_problems", "review"]

_SOURCE = "alerts"  # each message begins with it; it is removed again
_OF_RECEIVERS = re.compile(r"\[(receivers[^\]]*)\](?:: ([a-z_]+)(?= ))?:? ?(.*)", re.DOTALL)
_MISSING = "is missing"
_MOST = 20  # problems of one alert that are reported at once
_VALUE = re.compile(r", not ('.*'|\".*\")$", re.DOTALL)


def find_problems(alerts: list[Any], receivers: dict[str, Any]) -> list[tuple[KeyPath, str]]:
    """Return each problem, with its key."""
    return [*_of_alerts(alerts), *_of_receivers(receivers)]


def review(alerts: Config, prefix: str) -> tuple[list[tuple[KeyPath, str]], list[tuple[KeyPath, str]]]:
    """Return the problems for which ``pgleaderlock alerts export`` would refuse these alerts, and its warnings."""
    refused, doubtful = list[tuple[KeyPath, str]](), list[tuple[KeyPath, str]]()
    for number, alert in enumerate(alerts.addressed):
        for target in alert.notify:
            try:
                alertmanager_config([replace(alert, notify=(target,))], alerts.receivers, _SOURCE)
            except ValueError as error:
                text = str(error).removeprefix(f'{_SOURCE}: alert "{alert.name}": notify ')
                refused.append((("alerts", number, "notify"), text))
        remarks = prometheus_rules([alert], prefix)[1] + unheard([alert])
        keys = {"no_receiver": "notify"}
        doubtful += [(("alerts", number, keys.get(each.kind, "condition")), each.text) for each in remarks]
    return refused, doubtful


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
        mended, slips = entry, list[str]()
        for _ in range(_MOST):
            complaint = _complaint({"alerts": [*good, mended]})
            if complaint is None:
                good.append(mended)
                break
            path, text = _place_in_alert(number, len(good) + 1, mended, complaint)
            key = str(path[-1])
            if not (text.startswith(_MISSING) and difflib.get_close_matches(key, slips)):
                yield from _each_of(path, text, mended)
            slips.append(key)
            if (mended := _mended(mended, path, number)) is None:
                break


def _place_in_alert(number: int, shown: int, entry: Any, complaint: str) -> tuple[KeyPath, str]:
    name = entry.get("name") if isinstance(entry, dict) else None
    for place in (f"[[alerts]] number {shown}", f'alert "{name}"'):
        complaint = complaint.removeprefix(place).removeprefix(": ").lstrip()
    return _with_key(("alerts", number), complaint)


def _mended(entry: Any, path: KeyPath, number: int) -> Any:
    """Return the alert with the reported problem corrected, to find further ones; None if that is impossible."""
    key = path[-1]
    if not isinstance(entry, dict) or not isinstance(key, str):
        return None
    stand_ins = {"name": f"number {number}", "condition": "up == 0", "severity": "info"}
    rest = {name: value for name, value in entry.items() if name != key}
    return {**rest, key: stand_ins[key]} if key in stand_ins else rest if key in entry else None


def _each_of(path: KeyPath, text: str, entry: Any) -> Iterator[tuple[KeyPath, str]]:
    """Yield all problems in the elements of a list."""
    targets = entry.get(path[-1]) if isinstance(entry, dict) else None
    texts = [text]
    if isinstance(targets, list):
        probe = {"name": "probe", "condition": "up == 0", "severity": "info"}
        complaints = (_complaint({"alerts": [{**probe, path[-1]: [target]}]}) for target in targets)
        found = [each.removeprefix('alert "probe": ').removeprefix(f"{path[-1]} ") for each in complaints if each]
        texts = found or texts
    for each in dict.fromkeys(texts):
        yield path, each


def _of_receivers(receivers: dict[str, Any]) -> Iterator[tuple[KeyPath, str]]:
    good = dict[str, Any]()
    for name, table in receivers.items():
        mended, said, seen = deepcopy(table), "", set[KeyPath]()
        for _ in range(_MOST):
            complaint = _complaint({"receivers": {**good, name: mended}})
            if complaint is None:
                good[name] = mended
                break
            path, text = _place_in_receivers(name, complaint)
            # A missing key that an earlier text has named already is not reported again.
            if path not in seen and not (text.startswith(_MISSING) and str(path[-1]) in said):
                yield path, text
            said += text
            seen.add(path)
            if not _removed(mended, path[2:]):
                break


def _place_in_receivers(name: str, complaint: str) -> tuple[KeyPath, str]:
    match = _OF_RECEIVERS.fullmatch(complaint)
    if match is None:
        return ("receivers", name), complaint
    path = tuple(match[1].split("."))
    return (*path, match[2]) if match[2] else path, match[3]


def _removed(table: Any, path: KeyPath) -> bool:
    """Remove the reported key from the table. Return False if the table does not have it."""
    for name in path[:-1]:
        table = table.get(name) if isinstance(table, dict) else None
    if not path or not isinstance(table, dict) or path[-1] not in table:
        return False
    del table[path[-1]]
    return True


def _with_key(path: KeyPath, complaint: str) -> tuple[KeyPath, str]:
    """Split a message into its key, with which it begins, and the text."""
    key, _, rest = complaint.partition(" ")
    names_key = re.fullmatch("[a-z_]+", key) and rest.startswith(("is ", "must ", "has ", "takes "))
    return ((*path, key), rest) if names_key else (path, complaint)
