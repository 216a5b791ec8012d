"""The sections of ``schema.sql``, and the statements that are made of them. The rules are in :mod:`.schema`."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from importlib import resources

from pgleaderlock.options import DEFAULT_SCHEMA, check_schema
from pgleaderlock.postgres._ownership import guard_sql

__all__ = ["LABEL", "LOCK", "create_sql", "known_version", "schema_sql", "table_names", "upgrade_sql", "version_sql"]

LABEL = "schema_version"
"""The table whose comment is the version."""

# Two that create a schema at once collide in spite of IF NOT EXISTS, so one waits for the other.
LOCK = "pg_catalog.pg_advisory_xact_lock(pg_catalog.hashtext('pgleaderlock/schema')::bigint)"
"""The lock under which the schema is changed: an expression that takes it, until the end of the transaction."""

_SECTION = re.compile(r"^-- === Version (\d+), for programs that know version (\d+) or later: .*$", re.MULTILINE)
_TABLE_NAME = re.compile(r"CREATE TABLE IF NOT EXISTS \{schema\}\.(\w+)")
_COMMENT = "pgleaderlock: schema version {version}, for programs that know version {lowest} or later"

# Qualified, as schema.sql is: it runs in sessions of users too. A newer schema may do without one of the tables.
_VERSION = """
(SELECT ARRAY[CASE WHEN s.version OPERATOR(pg_catalog.>) {known} THEN s.version
                   WHEN s.tables OPERATOR(pg_catalog.<) {number} THEN 0
                   ELSE coalesce(s.version, 1) END, coalesce(s.lowest, 1)]
   FROM (SELECT pg_catalog.substring(h.label, 'schema version ([0-9]{{1,9}}),')::integer AS version,
                pg_catalog.substring(h.label, 'programs that know version ([0-9]{{1,9}}) ')::integer AS lowest, h.tables
           FROM (SELECT pg_catalog.count(*) FILTER (WHERE c.relname OPERATOR(pg_catalog.<>) '{label}') AS tables,
                        pg_catalog.max(pg_catalog.obj_description(c.oid, 'pg_class')) FILTER (
                            WHERE c.relname OPERATOR(pg_catalog.=) '{label}') AS label
                   FROM pg_catalog.pg_class AS c
                   JOIN pg_catalog.pg_namespace AS n ON n.oid OPERATOR(pg_catalog.=) c.relnamespace
                  WHERE n.nspname OPERATOR(pg_catalog.=) '{schema}'
                    AND c.relname OPERATOR(pg_catalog.=) ANY (ARRAY[{tables}]::pg_catalog.name[])) AS h) AS s)
"""

_OPENING = """\
DO $version$ DECLARE
    version integer;
BEGIN
    PERFORM {lock};
    SELECT v.found[1] INTO version FROM (SELECT {version} AS found) AS v;
    IF version OPERATOR(pg_catalog.>) {known} OR version OPERATOR(pg_catalog.<) {start} THEN
        RAISE EXCEPTION USING
            MESSAGE = pg_catalog.concat('pgleaderlock: schema {schema} ', CASE WHEN version OPERATOR(pg_catalog.=) 0
                THEN 'has no tables yet, or not all' ELSE pg_catalog.concat('has version ', version) END,
                ', and these statements are for versions {start} to {known}'),
            HINT = CASE WHEN version OPERATOR(pg_catalog.=) 0 THEN 'Use pgleaderlock schema show without --from'
                WHEN version OPERATOR(pg_catalog.<) {start}
                THEN pg_catalog.concat('Use pgleaderlock schema show --from ', version)
                ELSE 'Use a pgleaderlock that knows this version: pgleaderlock schema apply' END;
    END IF;
END $version$;
"""


@dataclass(frozen=True, slots=True)
class _Section:
    version: int
    lowest: int
    """The version that a program must know at least to work with this change."""
    text: str


def known_version() -> int:
    """Return the newest version of the schema that this program knows: the one that it makes."""
    return _sections()[-1].version


def schema_sql(schema: str = DEFAULT_SCHEMA, *, from_version: int = 0) -> str:
    """Return the statements that make the tables; with ``from_version``, those that upgrade tables of that version.

    For one transaction of the owner of the tables, with any ``search_path``. They may be repeated, and fail if the
    schema has an older version than that, or a newer one than this program knows.
    """
    if not 0 <= from_version <= known_version():
        raise ValueError(f"from_version must be between 0 and {known_version()}, not {from_version}")
    return f"{_preamble()}{_opening(schema, from_version)}\n{_changes(schema, from_version)}"


def upgrade_sql(schema: str, from_version: int, owner: str | None, note: str = "") -> str:
    """Return them for a session that is pinned. They fail if a table is not of a trusted role. ``note`` comes last.

    They cannot see what another role creates while they run: check the tables afterwards.
    """
    guard = guard_sql(check_schema(schema), table_names(), owner)
    return f"{_opening(schema, from_version)}{guard}{_changes(schema, from_version)}{note}"


def create_sql(schema: str, owner: str | None = None, *, from_version: int = 0, note: str = "") -> str:
    """Return them as one transaction, of which two may run at once."""
    return f"BEGIN; {upgrade_sql(schema, from_version, owner, note)} COMMIT; SELECT 1"


def version_sql(schema: str, tables: Sequence[str]) -> str:
    """Return an expression: the version of the schema, and the lowest one that a program must know, as an array.

    The version is 0 where one of the tables is missing.
    """
    listed = ", ".join(f"'{name}'" for name in (*tables, LABEL))
    known, number = known_version(), len(set(tables) - {LABEL})
    return _VERSION.format(schema=check_schema(schema), tables=listed, number=number, known=known, label=LABEL)


def table_names(*, up_to: int | None = None) -> list[str]:
    """Return the names of the tables of this version; of the newest one if none is given."""
    last = known_version() if up_to is None else up_to
    return [name for each in _sections() if each.version <= last for name in _TABLE_NAME.findall(each.text)]


def _opening(schema: str, from_version: int) -> str:
    found = version_sql(schema, table_names(up_to=min(1, from_version)))
    return _OPENING.format(schema=schema, lock=LOCK, version=found, start=from_version, known=known_version())


def _changes(schema: str, from_version: int) -> str:
    changes = "".join(each.text for each in _sections() if each.version > from_version)
    comment = _COMMENT.format(version=known_version(), lowest=max(each.lowest for each in _sections()))
    label = f"COMMENT ON TABLE {{schema}}.{LABEL} IS '{comment}';\n"
    return f"{changes}\n{label}".replace("{schema}", f'"{schema}"')


@cache
def _sections() -> tuple[_Section, ...]:
    """Return the sections of ``schema.sql``, the oldest first."""
    text = _schema_text()
    heads = list(_SECTION.finditer(text))
    ends = [*(head.start() for head in heads[1:]), len(text)]
    return tuple(
        _Section(int(head[1]), int(head[2]), text[head.start() : end]) for head, end in zip(heads, ends, strict=True)
    )


def _preamble() -> str:
    return _SECTION.split(_schema_text(), maxsplit=1)[0]


def _schema_text() -> str:
    return resources.files("pgleaderlock.postgres").joinpath("schema.sql").read_text("utf-8")
