"""The roles of a registry: find the one that the options name, and print them.

Names, causes and details in a registry are written by nodes. They are data: control characters are made visible,
since a node's name could contain some that repaint a terminal, and nothing in them is read as markup.
"""

import contextlib
import json
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from typing import Any

import click
from rich.table import Table
from rich.text import Text

from pgleaderlock.cli.console import visible
from pgleaderlock.cli.database import CHECK_REGISTRY, UnreachableError
from pgleaderlock.cli.shown_roles import ShownRoles
from pgleaderlock.cli.tables import console_for, fitting_table
from pgleaderlock.cli.times import duration, fields_of
from pgleaderlock.errors import ConnectionError
from pgleaderlock.ops.registry.reading import Candidate, KnownRole, Leader, RegistryReader, RoleStatus, open_reader
from pgleaderlock.postgres.keys import LockKey
from pgleaderlock.postgres.lease import Place

_HEADINGS = ("Role", "Leader", "Token", "For", "Lease left", "Candidates")
_PROCESS = ("host", "process_id", "version", "about", "is_alive")
_CANDIDATE = ("node", "instance", "state", "place", "since", "seen_at", *_PROCESS)
_SHOWN_NAMES = 10
_WHO_IS_IN_IT = (  # an empty registry does not mean that there is no leader: most locks are held without a registry
    "It has only nodes that use a registry. For the holder of any other lock, see pgleaderlock status --role NAME."
)


async def show_roles(dsn: str, place: ShownRoles, *, as_json: bool) -> None:
    """Print the roles of ``place``, as the registry shows them now."""
    async with opened(dsn, place) as reader:
        roles = await reader.status(roles=place.roles)
        problem = await registry_problem(reader)
    if as_json:
        for role in roles:
            print_record(role_fields(role) | ({"note": problem} if problem else {}))
        return
    if roles:
        console = console_for()
        console.print(roles_table(roles, console.width))
    else:
        of_them = "" if place.roles is None else " of this configuration"
        click.echo(f"The registry shows no role{of_them}. {_WHO_IS_IN_IT}", err=True)
    if problem:
        click.echo(f"problem: {visible(problem)}")


def roles_picture(roles: Sequence[RoleStatus], width: int) -> Table | Text:
    """Return the table; for no roles, a sentence that explains an empty registry."""
    return roles_table(roles, width) if roles else Text(f"The registry shows no role. {_WHO_IS_IN_IT}")


# --- Reading ---


async def registry_problem(reader: RegistryReader) -> str:
    """Return why nodes cannot write to the registry; an empty text if they can.

    Without it, live nodes would only be shown as "silent" or "dead", and a role with a leader as leaderless.
    """
    problem = await reader.standby_problem()
    return f"{problem}. Nodes cannot write the registry meanwhile: what it shows is outdated" if problem else ""


@contextlib.asynccontextmanager
async def opened(dsn: str, place: ShownRoles) -> AsyncIterator[RegistryReader]:
    """Open the registry; UnreachableError, also from within the block, if it does not answer."""
    try:
        async with open_reader(dsn, place.schema, schema_owner=place.owner) as reader:
            yield reader
    except ConnectionError as error:
        raise unreachable(error) from error


def unreachable(error: Exception) -> UnreachableError:
    """Return the error with what to check; control characters are made visible, because servers quote names."""
    return UnreachableError.from_error(error, CHECK_REGISTRY)


async def find_role(reader: RegistryReader, role: str | None, lock: str | None) -> KnownRole | None:
    """Return the role that the options name; None if they name none. No match, or two, is wrong usage."""
    if role is None and lock is None:
        return None
    known = await reader.roles()
    found = known if role is None else _called(known, role) or _called(known := await reader.former_roles(), role)
    if lock is not None:
        wanted = _printed(lock)
        found = [each for each in found if each.lock == wanted]
    by_lock = {each.lock: each for each in found}
    if len(by_lock) == 1:
        return next(iter(by_lock.values()))
    raise click.UsageError(_ambiguous(list(by_lock.values())) if by_lock else _unknown(known, role, lock))


def _called(known: Sequence[KnownRole], role: str) -> list[KnownRole]:
    """Return the roles of this name; if there are none, those whose lock is printed so or has the key of this name."""
    by_role = [each for each in known if each.role == role]
    locks = {role, _printed(role), _printed(f"named:{role}")}
    return by_role or [each for each in known if each.lock in locks]


def _printed(lock: str) -> str:
    """Return the lock as the registry writes it. Stores other than PostgreSQL's sessions choose their own names."""
    try:
        return str(LockKey.parse(lock))
    except ValueError:
        return lock


def _ambiguous(found: Sequence[KnownRole]) -> str:
    choices = ", ".join(f"--lock {visible(each.lock)}" for each in found)
    return f"{len(found)} locks have this role: add one of {choices}"


def _unknown(known: Sequence[KnownRole], role: str | None, lock: str | None) -> str:
    asked = " and ".join(
        f"{what} {visible(name)}" for what, name in (("role", role), ("lock", lock)) if name is not None
    )
    names = list(dict.fromkeys(visible(each.role) for each in known))
    more = ", ..." if len(names) > _SHOWN_NAMES else ""
    there = f"It has {', '.join(names[:_SHOWN_NAMES])}{more}." if names else "It has no roles yet."
    return f"the registry has no {asked}. {there}"


# --- For programs ---


def print_record(record: dict[str, Any]) -> None:
    """Print one record as one line, without buffering. DEL is escaped here, because json leaves it as it is.

    A time in PostgreSQL can be infinite. JSON has no infinity, so that becomes null.
    """
    text = json.dumps(record)
    if "Infinity" in text or "NaN" in text:
        text = json.dumps(json.loads(text, parse_constant=lambda _: None))
    click.echo(text.replace("\x7f", "\\u007f"))


def role_fields(role: RoleStatus) -> dict[str, Any]:
    """Return what is known of one role, under the names that the documentation lists."""
    return {
        "role": role.role,
        "lock": role.lock,
        "leader": None if role.leader is None else _leader_fields(role.leader),
        "candidates": [fields_of(each, *_CANDIDATE) for each in role.current_candidates],
        "last_leader": None if role.last_leader is None else _leader_fields(role.last_leader),
        "is_closed": role.is_closed,
    }


def _leader_fields(leader: Leader) -> dict[str, Any]:
    left_s = None if leader.lease_until is None else round(leader.lease_until - leader.read_at, 3)
    until = fields_of(leader, "node", "instance", "token", "acquired_at", "renewed_at", "lease_until")
    return {**until, "lease_left_s": left_s, **fields_of(leader, "backend_pid", *_PROCESS)}


# --- For people ---


def silence_s(leader: Leader) -> float | None:
    """Return the time since the last renewal of a leader that is overdue or not valid; None for a healthy leader."""
    return max(0.0, leader.read_at - leader.renewed_at) if leader.is_overdue or not leader.is_valid else None


def roles_table(roles: Sequence[RoleStatus], width: int) -> Table:
    """Return one line per role, or more where they would not fit."""
    shared = {name for name, count in Counter(each.role for each in roles).items() if count > 1}
    rows = []
    for each in roles:
        name = f"{each.role} ({each.lock})" if each.role in shared else each.role
        rows.append([Text(visible(name)), *_leader_cells(each), Text(_describe_candidates(each.current_candidates))])
    return fitting_table(_HEADINGS, rows, width, prose=("Leader", "Candidates"), least_first=("Token", "Lease left"))


def _leader_cells(role: RoleStatus) -> list[Text]:
    leader = role.leader
    if leader is None:
        return [_no_leader(role), *(Text("-") for _ in range(3))]
    silent_s, name = silence_s(leader), visible(leader.node)
    shown = Text(name) if silent_s is None else Text(f"{name} (silent for {duration(silent_s)})", style="yellow")
    left = "-" if leader.lease_until is None else duration(max(0.0, leader.lease_until - leader.read_at))
    token = "-" if leader.token is None else str(leader.token)
    return [shown, Text(token), Text(duration(max(0.0, leader.read_at - leader.acquired_at))), Text(left)]


def _no_leader(role: RoleStatus) -> Text:
    if role.last_leader is not None:
        silent_s = max(0.0, role.last_leader.read_at - role.last_leader.renewed_at)
        return Text(f"no leader ({visible(role.last_leader.node)} silent for {duration(silent_s)})", style="bold red")
    return Text("no leader", style="dim" if role.is_closed and not role.is_expected else "bold red")


def _describe_candidates(candidates: Sequence[Candidate]) -> str:
    heirs = [visible(each.node) for each in candidates if each.place == Place.HEIR.value]
    dead = [visible(each.node) for each in candidates if not each.is_alive]
    silent = [visible(each.node) for each in candidates if each.is_alive and each.is_overdue]
    counted = [f"{len(candidates) - len(dead) - len(silent)} alive"]
    counted += [f"heir: {', '.join(heirs)}"] if heirs else []
    for what, names in (("silent", silent), ("dead", dead)):
        counted += [f"{len(names)} {what}: {', '.join(names)}"] if names else []
    return ", ".join(counted)
