"""A database in which a stranger has planted functions, operators, aggregates, views and types of his own.

``mallory`` may create in ``public`` and nothing else. For every name of ``pg_catalog`` that occurs anywhere in our
source he has an object of that name in ``public``: once with the very arguments of the original, and once for each
combination of arguments that would match a call better. Whatever runs of it writes a line into the server's log, which
no rollback takes back, and makes mallory a superuser if the caller is one.
"""

import itertools
import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import psycopg
from psycopg.conninfo import make_conninfo

import pgleaderlock
from pgleaderlock.testing.embedded import Server

__all__ = ["CAUGHT", "SETTINGS", "STRANGER", "PlantedDatabase"]

STRANGER = "mallory"
CAUGHT = "code of a stranger ran as"

_TRAP = f"""
CREATE FUNCTION public.trap(what text) RETURNS bool LANGUAGE plpgsql SET search_path = pg_catalog AS $trap$ BEGIN
    RAISE LOG '{CAUGHT} %: %', current_user, what;
    BEGIN ALTER ROLE {STRANGER} SUPERUSER; EXCEPTION WHEN OTHERS THEN NULL; END;
    RETURN true;
END $trap$
"""
_BODY = "LANGUAGE plpgsql AS $b$ BEGIN PERFORM public.trap('{what}'); RETURN{null}; END $b$"

_TEXTS = ["text", "varchar", "name", '"char"']
_NUMBERS = ["int2", "int4", "int8", "float4", "float8", "numeric", "oid"]
_TIMES = ["timestamptz", "timestamp", "date", "interval"]
_OTHERS = ["bool", "jsonb", "json", "uuid", "inet", "pg_lsn", "xid8", "xid", "bytea"]
_SCALARS = [*_TEXTS, *_NUMBERS, *_TIMES, *_OTHERS]
_ARRAYS = [f"{name}[]" for name in ("int2", "int4", "int8", "text", "varchar", "name", "timestamptz", "float8", "uuid")]
_ROWS = ["pg_locks", "pg_stat_activity", "pg_settings", "pg_class", "pg_roles", "pg_database"]


def _each(types: list[str], close: list[str]) -> dict[str, list[str]]:
    return dict.fromkeys(types, close)


_CLOSE = {
    **_each(["text", "name", "character varying", "cstring"], _TEXTS),
    **_each(["smallint", "integer", "bigint", "double precision", "numeric", "real", "oid"], _NUMBERS),
    **_each(["timestamp with time zone", "interval", "timestamp without time zone"], _TIMES),
    **_each(["anyelement", '"any"', "anynonarray", "anycompatible"], [*_SCALARS, *_ARRAYS, *_ROWS]),
    **_each(["anyarray", "anycompatiblearray"], _ARRAYS),
    **_each(["jsonb", "json"], ["json", "jsonb", "text"]),
}
_OPERATORS = {  # and what each of them gives
    **dict.fromkeys(["=", "<>", "<", ">", "<=", ">=", "~", "@>", "~~", "!~~"], "bool"),
    **dict.fromkeys(["||", "->>", "->", "#>>"], "text"),
    **dict.fromkeys(["+", "-", "*", "/", "%"], "float8"),
}
_COMBINATIONS_MAX = 200
SETTINGS = {"log_statement": "all", "log_line_prefix": "%c|%a|", "fsync": "off"}
"""What the server must have, so that its log shows who began with what."""
_STATEMENT = re.compile(r"LOG:  (?:statement|execute [^:]*): (.*)")
_PIN = "SELECT pg_catalog.set_config('search_path', 'pg_catalog, pg_temp', "

_FUNCTIONS = """
SELECT proname, prokind::text, proretset, prorettype::regtype::text,
       ARRAY(SELECT format_type(t, NULL) FROM unnest(proargtypes) AS t)
  FROM pg_proc
 WHERE pronamespace = 'pg_catalog'::regnamespace AND proname = ANY(%s) AND prokind IN ('f', 'a')
"""
# What cannot be planted (a pseudo-type, the same thing twice) cannot be called either.
_TRY = """
CREATE PROCEDURE public.try(statements text[]) LANGUAGE plpgsql AS $try$ DECLARE
    statement text;
BEGIN
    FOREACH statement IN ARRAY statements LOOP
        BEGIN EXECUTE statement; EXCEPTION WHEN OTHERS THEN NULL; END;
    END LOOP;
END $try$
"""
_COUNT = """
SELECT (SELECT count(*) FROM pg_proc WHERE pronamespace = 'public'::regnamespace)
     + (SELECT count(*) FROM pg_operator WHERE oprnamespace = 'public'::regnamespace)
"""
_RELATIONS = "SELECT relname FROM pg_class WHERE relnamespace = 'pg_catalog'::regnamespace AND relname = ANY(%s)"
_TYPES = ("text", "name", "timestamptz", "uuid", "jsonb", "oid", "int4", "int8", "bool", "float8", "interval")


def _words_of_our_source() -> list[str]:
    folder = Path(pgleaderlock.__file__).parent
    sources = [path for path in folder.rglob("*") if path.suffix in {".py", ".sql"}]
    return sorted({word for path in sources for word in re.findall(r"[a-z_][a-z0-9_]*", path.read_text())})


def _function(name: str, arguments: Iterable[str], returns: str, *, is_set: bool) -> str:
    signature = f"public.{name}({', '.join(arguments)})"
    body = _BODY.format(what=signature.replace("'", ""), null="" if is_set or returns == "void" else " NULL")
    return f"CREATE FUNCTION {signature} RETURNS {'SETOF ' * is_set}{returns} {body}"


def _functions(found: list[tuple[str, str, bool, str, list[str]]]) -> Iterator[str]:
    for name, kind, is_set, returns, arguments in found:
        if kind == "a":
            continue
        yield _function(name, arguments, returns, is_set=is_set)
        returned = "text" if returns.startswith("any") else returns
        close = [_CLOSE.get(argument, [argument]) for argument in arguments]
        for each in itertools.islice(itertools.product(*close), _COMBINATIONS_MAX):
            if list(each) != arguments:
                yield _function(name, each, returned, is_set=is_set)


def _operators() -> Iterator[str]:
    types = [*_SCALARS, *_ARRAYS]
    for given, (left, right) in itertools.product(("bool", "text", "float8"), itertools.product(types, types)):
        if not ({left, right} & {"text[]", "int4[]"}) and left in _ARRAYS and left != right:
            continue
        symbols = [symbol for symbol, gives in _OPERATORS.items() if gives == given]
        name = f"operator_{given}"
        yield _function(name, (left, right), given, is_set=False)
        for symbol in symbols:
            yield f"CREATE OPERATOR public.{symbol} (FUNCTION = public.{name}, LEFTARG = {left}, RIGHTARG = {right})"


def _aggregates(found: list[tuple[str, str, bool, str, list[str]]]) -> Iterator[str]:
    yield _function("step", ("int8",), "int8", is_set=False)
    yield "CREATE AGGREGATE public.count(*) (SFUNC = public.step, STYPE = int8, INITCOND = '0')"
    for type_ in [*_SCALARS, *_ARRAYS]:
        yield _function("step", ("int8", type_), "int8", is_set=False)
    for name in sorted({each[0] for each in found if each[1] == "a" and len(each[4]) == 1}):
        for type_ in [*_SCALARS, *_ARRAYS]:
            yield f"CREATE AGGREGATE public.{name}({type_}) (SFUNC = public.step, STYPE = int8, INITCOND = '0')"


def _relations(names: list[str]) -> Iterator[str]:
    for name in names:
        yield f"CREATE VIEW public.{name} AS SELECT * FROM pg_catalog.{name} WHERE public.trap('view {name}')"
    for name in _TYPES:  # last, because from here on the names mean these where public comes first
        yield f"CREATE DOMAIN public.{name} AS pg_catalog.{name} CHECK (public.trap('type {name}'))"


class PlantedDatabase:
    """The database ``planted`` on a server of the tests' own."""

    def __init__(self, server: Server) -> None:
        self._server = server
        self.dsn = server.dsn.replace("/postgres?", "/planted?")
        self._read_to = 0
        self.planted = 0

    def plant(self) -> None:
        with psycopg.connect(self._server.dsn, autocommit=True) as owner:
            owner.execute(f"CREATE ROLE {STRANGER} LOGIN")
            owner.execute("CREATE DATABASE planted")
        with psycopg.connect(self.dsn, autocommit=True) as owner:
            owner.execute(f"GRANT CREATE, USAGE ON SCHEMA public TO {STRANGER}")
        with psycopg.connect(make_conninfo(self.dsn, user=STRANGER)) as stranger:
            stranger.execute("SET search_path = pg_catalog")
            self._plant_as(stranger)
        self.forget()

    def _plant_as(self, stranger: psycopg.Connection[tuple[Any, ...]]) -> None:
        words = _words_of_our_source()
        functions = stranger.execute(_FUNCTIONS, (words,)).fetchall()
        relations = [str(row[0]) for row in stranger.execute(_RELATIONS, (words,))]
        statements = [_TRAP, *_functions(functions), *_operators(), *_aggregates(functions), *_relations(relations)]
        stranger.execute(_TRY)
        stranger.execute("CALL public.try(%s)", (statements,))
        row = stranger.execute(_COUNT).fetchone()
        self.planted = 0 if row is None else int(str(row[0]))

    def put_public_first(self, *, first: bool) -> None:
        """As the owner of a database may: what is planted then comes before what PostgreSQL has."""
        path = "public, pg_catalog" if first else '"$user", public'
        with psycopg.connect(self._server.dsn, autocommit=True) as owner:
            owner.execute(f"ALTER DATABASE planted SET search_path = {path}")

    def forget(self) -> None:
        """Begin anew: what ran until now is not looked at, and mallory is as he was."""
        self._read_to = self._server.log_path.stat().st_size
        with psycopg.connect(self._server.dsn, autocommit=True) as owner:
            owner.execute(f"ALTER ROLE {STRANGER} NOSUPERUSER")

    def unpinned(self) -> list[str]:
        """Return the first statements of those of our sessions that did not begin with the pin."""
        first: dict[str, str] = {}
        for line in self._log().splitlines():
            session, _, rest = line.partition("|")
            application, _, said = rest.partition("|")
            statement = _STATEMENT.search(said)
            if application.startswith("pgleaderlock") and statement is not None:
                first.setdefault(session, statement[1])
        return sorted({statement for statement in first.values() if not statement.startswith(_PIN)})

    def _log(self) -> str:
        return self._server.log_path.read_bytes()[self._read_to :].decode(errors="replace")

    def caught(self) -> list[str]:
        """Return what ran since, each once."""
        return sorted({line.partition(CAUGHT)[2] for line in self._log().splitlines() if f"LOG:  {CAUGHT}" in line})

    def stranger_is_superuser(self) -> bool:
        with psycopg.connect(self._server.dsn, autocommit=True) as owner:
            row = owner.execute("SELECT rolsuper FROM pg_roles WHERE rolname = %s", (STRANGER,)).fetchone()
        return row == (True,)
