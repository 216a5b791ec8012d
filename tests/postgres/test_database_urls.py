"""What other libraries call a database: each form reaches the same server, or is refused with each option named."""

import ssl
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import dj_database_url
import pytest
from sqlalchemy import create_engine, event, text
from sqlalchemy.ext.asyncio import AsyncEngine, create_async_engine

from pgleaderlock import ConnectionError, LeaderGroup, LeaderLock, LockKey, open_backend, sync
from pgleaderlock.ops.registry import Registry
from pgleaderlock.postgres._dsn import check_dsn, has_password
from pgleaderlock.postgres._translation import NO_MEANING
from tests.support.passwords import GuardedServer, guarded_server
from tests.support.postgres import QUICK
from tests.support.shown_errors import everything_shown

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "how-to" / "use-your-database-url.md"
HERE = {"user": "u", "host": "h", "dbname": "db"}


@pytest.fixture(scope="module")
def guarded(server_folder_root: Path) -> Iterator[GuardedServer]:
    with guarded_server(server_folder_root) as server:
        yield server


# --- URLs ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("url", "parts"),
    [
        ("postgresql+asyncpg://u@h/db", {}),
        ("postgresql+psycopg://u@h/db", {}),
        ("postgresql+psycopg2://u@h/db", {}),
        ("postgresql+psycopg_async://u@h/db", {}),
        ("postgres+asyncpg://u@h/db", {}),
        ("postgres://u@h/db", {}),
        ("postgis://u@h/db", {}),
        ("pgsql://u@h/db", {}),
        ("postgresql+asyncpg://u:a%40b@h:5433/db", {"password": "a@b", "port": "5433"}),
        ("postgresql+asyncpg://u:a?b@h/db?ssl=verify-full", {"password": "a?b", "sslmode": "verify-full"}),
        ("postgresql+asyncpg://u@h/db?ssl=require", {"sslmode": "require"}),
        ("postgresql://u@h/db?ssl=require", {"sslmode": "require"}),
        ("postgresql://u@h/db?ssl=true", {"sslmode": "require"}),
        ("postgresql+asyncpg://u@h/db?ssl=true&timeout=2.5", {"sslmode": "require", "connect_timeout": "3"}),
        ("postgresql+asyncpg://u@h/db?prepared_statement_cache_size=0&command_timeout=5", {}),
        ("postgresql+psycopg2://u@h/db?sslmode=require&pool_size=5&max_overflow=2", {"sslmode": "require"}),
        ("postgres://u@h/db?pool_size=5&sslrootcert=%2Fca", {"sslrootcert": "/ca"}),
        ("postgresql+psycopg2://u@/db?host=a:1&host=b:2", {"host": "a,b", "port": "1,2"}),
        ("postgresql+asyncpg://u@/db?host=a&host=b&port=1&port=2", {"host": "a,b", "port": "1,2"}),
        ("postgresql+asyncpg://u@/db?host=/cloudsql/p:r:i", {"host": "/cloudsql/p:r:i"}),
        ("postgresql+psycopg://u@h/db?application_name=a+b", {"application_name": "a b"}),
        ("postgresql+psycopg://u@h/db?options=-c%20jit%3Doff", {"options": "-c jit=off"}),
        ("postgresql://u@h/db?application_name=a+b", {"application_name": "a+b"}),  # as libpq reads it
    ],
)  # fmt: skip
def test_a_url_of_another_driver_is_translated(url: str, parts: dict[str, str]) -> None:
    assert check_dsn(url) == {**HERE, **parts}


@pytest.mark.parametrize(
    ("url", "named"),
    [
        ("postgresql+asyncpg://u:s3cret@h/db?pool_size=5&nonsense=1&direct_tls=true", "(nonsense; direct_tls)"),
        ("postgres://u:s3cret@h/db?pgbouncer=true&ssl=require", "(pgbouncer)"),
        ("postgresql+asyncpg://u@h/db?ssl=maybe", "an option with a wrong value (ssl: must be one of disable, allow"),
        (
            "postgresql+asyncpg://u@h/db?timeout=soon",
            "an option with a wrong value (timeout: must be a number of seconds)",
        ),
        ("postgresql+asyncpg://u@h/db?ssl=require&ssl=disable", "(ssl: is there twice"),
        ("postgresql+asyncpg://u@h/db?sslmode=verify-full&ssl=disable", "sslmode is given by another name too"),
        ("postgresql+psycopg://h/db?user=one&username=two", "user is given by another name too"),
        ("postgresql+asyncpg://u:***@h/db", "str() of a SQLAlchemy URL"),
        ("cockroachdb://u@h/db", "the scheme 'cockroachdb'"),
        (
            "postgresql+aiopg://u:s3cret@h/db",
            "'aiopg' is not known here: write postgresql:// alone, which is enough, or with +asyncpg, +psycopg, +psyco",
        ),
        ("postgresql+lease://u@h/db", "For another store"),
    ],
)
def test_an_option_without_a_translation_is_refused_by_name(url: str, named: str) -> None:
    with pytest.raises(ValueError, match="dsn") as refused:
        check_dsn(url)
    assert named in str(refused.value)
    assert "s3cret" not in everything_shown(refused.value).partition("Traceback")[0]


@pytest.mark.parametrize("url", ["postgresql+asyncpg://u@h/db?ssl=maybe", "postgresql://u@h/db?timeout=soon"])
def test_a_wrong_value_is_not_to_be_left_out(url: str) -> None:
    with pytest.raises(ValueError, match="wrong value") as refused:
        check_dsn(url)
    assert "Leave out" not in str(refused.value)
    assert "does not know" not in str(refused.value)


def test_a_backend_by_url_names_the_drivers_that_are_known() -> None:
    with pytest.raises(ValueError, match=r"'aiopg' is not known here.*\+asyncpg, \+psycopg"):
        open_backend("postgresql+aiopg://u@h/db", role="x")


def unchecked() -> ssl.SSLContext:
    context = ssl.create_default_context()
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    return context


def without_host_names() -> ssl.SSLContext:
    context = ssl.create_default_context()
    context.check_hostname = False
    return context


@pytest.mark.parametrize(
    ("context", "instead"),
    [
        (ssl.create_default_context(), "sslmode=verify-full and sslrootcert=FILE"),
        (without_host_names(), "sslmode=verify-ca and sslrootcert=FILE"),
        (unchecked(), "sslmode=require"),
    ],
)
def test_in_place_of_an_ssl_context_something_is_named_that_checks_as_much(
    context: ssl.SSLContext, instead: str
) -> None:
    with pytest.raises(ValueError, match="ssl: an SSLContext") as refused:
        check_dsn(engine_of("asyncpg", ssl=context))
    assert instead in str(refused.value)
    assert "Leave out" not in str(refused.value)


def test_the_page_lists_every_option_that_has_no_meaning_here() -> None:
    page = PAGE.read_text(encoding="utf-8")
    for subject, names in NO_MEANING.items():
        row = next(line for line in page.splitlines() if line.startswith(f"| {subject} |"))
        assert row.count("`") == 2 * len(names), subject
        assert [name for name in names if f"`{name}`" not in row] == []


def test_a_password_is_known_to_be_in_the_url_of_another_driver() -> None:
    assert has_password("postgresql+asyncpg://u:p@h/db?ssl=require")
    assert not has_password("postgresql+asyncpg://u@h/db?ssl=require&pool_size=5")


def test_a_database_url_needs_neither_sqlalchemy_nor_django() -> None:
    program = (
        "import sys; from pgleaderlock import LeaderLock; "
        "LeaderLock('postgresql+asyncpg://u:p@h/db?ssl=require', role='x'); "
        "LeaderLock({'ENGINE': 'django.db.backends.postgresql', 'NAME': 'db'}, role='x'); "
        "print({'sqlalchemy', 'django', 'asyncpg'} & set(sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", program], check=True, capture_output=True, text=True)
    assert done.stdout == "set()\n"


# --- SQLAlchemy ------------------------------------------------------------------------------------------------------


def engine_of(driver: str, rest: str = "u:a%40b@h/db", **arguments: Any) -> Any:
    make = create_async_engine if driver in {"asyncpg", "psycopg_async"} else create_engine
    return make(f"postgresql+{driver}://{rest}", connect_args=arguments)


@pytest.mark.parametrize("driver", ["asyncpg", "psycopg", "psycopg_async", "psycopg2"])
def test_an_engine_is_taken_apart_with_its_real_password(driver: str) -> None:
    assert check_dsn(engine_of(driver)) == {**HERE, "password": "a@b"}
    assert check_dsn(engine_of(driver).url) == {**HERE, "password": "a@b"}


@pytest.mark.parametrize(
    ("driver", "arguments", "parts"),
    [
        ("psycopg2", {"keepalives": 1, "sslmode": "require", "connect_timeout": 5},
         {"keepalives": "1", "sslmode": "require", "connect_timeout": "5"}),
        ("psycopg", {"prepare_threshold": 0, "options": "-c jit=off"}, {"options": "-c jit=off"}),
        ("asyncpg", {"ssl": False, "statement_cache_size": 0}, {"sslmode": "disable"}),
        ("asyncpg", {"ssl": "verify-full", "command_timeout": 3}, {"sslmode": "verify-full"}),
        ("asyncpg", {"server_settings": {"application_name": "me", "search_path": r"a, b\c", "jit": "off"}},
         {"application_name": "me", "options": r"-c search_path=a,\ b\\c -c jit=off"}),
        ("asyncpg", {"prepared_statement_name_func": str, "passfile": Path("/p")}, {"passfile": "/p"}),
    ],
)  # fmt: skip
def test_connect_args_are_translated(driver: str, arguments: dict[str, Any], parts: dict[str, str]) -> None:
    assert check_dsn(engine_of(driver, **arguments)) == {**HERE, "password": "a@b", **parts}


def test_ssl_true_of_asyncpg_checks_the_certificate_as_it_does_there() -> None:
    parts = check_dsn(engine_of("asyncpg", ssl=True))
    assert parts["sslmode"] == "verify-full"
    assert parts["sslrootcert"] in {ssl.get_default_verify_paths().cafile, "system"}


def made_elsewhere() -> Any:
    raise AssertionError("never called")


@pytest.mark.parametrize(
    ("make", "named"),
    [
        (lambda: engine_of("asyncpg", ssl=ssl.create_default_context(), loop=1), ("ssl: an SSLContext", "(loop)")),
        (lambda: engine_of("psycopg2", connection_factory=object, cursor_factory=object), ("(connection_factory)",)),
        (lambda: engine_of("asyncpg", server_settings={"jit": object()}), ("server_settings: no text or number for",)),
        (lambda: engine_of("psycopg2", dsn="host=other"), ("(dsn)",)),
        (lambda: create_engine("postgresql+psycopg://", creator=made_elsewhere), ("a creator or a pool of its own",)),
        (lambda: create_async_engine("postgresql+asyncpg://", async_creator=made_elsewhere), ("a creator or a pool",)),
        (lambda: create_engine("sqlite://"), ("an engine of sqlite",)),
    ],
)  # fmt: skip
def test_what_an_engine_has_and_libpq_has_not_is_refused_by_name(make: Any, named: tuple[str, ...]) -> None:
    with pytest.raises(ValueError, match="dsn") as refused:
        LeaderLock(make(), role="x")
    assert [each for each in named if each not in str(refused.value)] == []


@pytest.mark.parametrize("driver", ["asyncpg", "psycopg", "psycopg_async", "psycopg2"])
async def test_a_lock_on_an_engine_leads_where_the_engine_works(
    driver: str, guarded: GuardedServer, key: LockKey
) -> None:
    engine = engine_of(driver, guarded.url().partition("://")[2])
    lock = LeaderLock(engine, key=key, settle_s=0, retry_strategy=QUICK)
    try:
        async with lock:
            assert await lock.wait_for_leadership(60)
            assert await _advisory_locks(engine) >= 1  # the same server and database, as the engine sees it
    finally:
        await engine.dispose() if isinstance(engine, AsyncEngine) else engine.dispose()


async def _advisory_locks(engine: Any) -> int:
    count = text("SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND granted")
    if isinstance(engine, AsyncEngine):
        async with engine.connect() as connection:
            return int((await connection.execute(count)).scalar_one())
    with engine.connect() as connection:
        return int(connection.execute(count).scalar_one())


def test_the_blocking_lock_takes_an_engine_too(guarded: GuardedServer, key: LockKey) -> None:
    engine = create_engine(guarded.url("postgresql+psycopg"))
    with sync.LeaderLock(engine, key=key, settle_s=0) as lock:
        assert lock.wait_for_leadership(60)


async def test_registry_group_and_backend_take_the_same(guarded: GuardedServer) -> None:
    engine = create_engine(guarded.url("postgresql+psycopg"))
    async with Registry(engine, node="n"):
        pass
    async with LeaderGroup(guarded.url("postgresql+asyncpg") + "?ssl=prefer", ["a"], settle_s=0) as group:
        assert await group["a"].wait_for_leadership(60)
    backend = open_backend(guarded.url("postgresql+asyncpg"), role="x")
    await backend.open()
    await backend.close()


async def test_listeners_of_do_connect_are_asked_for_the_password_of_each_session(
    server_folder_root: Path, key: LockKey
) -> None:
    with guarded_server(server_folder_root) as guarded:
        engine = create_async_engine(guarded.bare_url.replace("postgresql", "postgresql+asyncpg"))

        @event.listens_for(engine.sync_engine, "do_connect")
        def give_token(dialect: Any, record: Any, arguments: Any, parameters: dict[str, Any]) -> None:
            parameters["password"] = guarded.one_time_password()

        async with LeaderLock(engine, key=key, settle_s=0, retry_strategy=QUICK) as lock:
            assert await lock.wait_for_leadership(60)
        assert guarded.asked >= 2  # two sessions of a leader


async def test_a_function_as_the_password_of_asyncpg_is_asked_too(server_folder_root: Path, key: LockKey) -> None:
    with guarded_server(server_folder_root) as guarded:
        engine = engine_of("asyncpg", f"app@{guarded.place}", password=guarded.one_time_password)
        async with LeaderLock(engine, key=key, settle_s=0, retry_strategy=QUICK) as lock:
            assert await lock.wait_for_leadership(60)


async def test_a_listener_that_changes_more_than_the_password_is_named(key: LockKey) -> None:
    engine = engine_of("psycopg")

    @event.listens_for(engine, "do_connect")
    def send_elsewhere(dialect: Any, record: Any, arguments: Any, parameters: dict[str, Any]) -> None:
        parameters["host"] = "elsewhere"

    lock = LeaderLock(engine, key=key, settle_s=0)
    with pytest.raises(ConnectionError, match="changed more than the password: host") as refused:
        await lock._connector.connect()
    assert "send_elsewhere of the engine's do_connect changed" in str(refused.value)
    assert "password=" not in str(refused.value)
    assert "a@b" not in everything_shown(refused.value)


@pytest.mark.parametrize(
    ("does", "said"),
    [
        (lambda: dict[str, str]()["token"], "answer of the engine's do_connect raised KeyError: 'token'"),
        (object, "answer of the engine's do_connect made a connection: pass connect_fn"),
    ],
)
async def test_a_listener_that_fails_is_named(does: Any, said: str, key: LockKey) -> None:
    engine = engine_of("psycopg")

    @event.listens_for(engine, "do_connect")
    def answer(dialect: Any, record: Any, arguments: Any, parameters: dict[str, Any]) -> Any:
        return does()

    with pytest.raises(ConnectionError, match=said):
        await LeaderLock(engine, key=key, settle_s=0)._connector.connect()


async def test_a_function_in_the_connect_args_is_named_as_that(key: LockKey) -> None:
    engine = engine_of("asyncpg", "app@127.0.0.1:1/db", password=lambda: 7)
    with pytest.raises(ConnectionError, match="the function in the engine's connect_args returned int, not str"):
        await LeaderLock(engine, key=key, settle_s=0)._connector.connect()


# --- Django ----------------------------------------------------------------------------------------------------------

ENTRY = {
    "ENGINE": "django.db.backends.postgresql",
    "NAME": "db",
    "USER": "u",
    "PASSWORD": "it's s3cret",
    "HOST": "h",
    "PORT": "",
    "CONN_MAX_AGE": 600,
    "TEST": {"NAME": None},
}


@pytest.mark.parametrize(
    ("changes", "parts"),
    [
        ({}, {}),
        ({"PORT": 5433}, {"port": "5433"}),
        ({"OPTIONS": {"sslmode": "require", "pool": {"min_size": 2}, "isolation_level": 3}}, {"sslmode": "require"}),
        ({"OPTIONS": {"assume_role": "my owner"}}, {"options": r"-c role=my\ owner"}),
        ({"ENGINE": "django.contrib.gis.db.backends.postgis", "NAME": Path("db")}, {}),
    ],
)
def test_an_entry_of_databases_is_taken_apart(changes: Mapping[str, Any], parts: dict[str, str]) -> None:
    assert check_dsn({**ENTRY, **changes}) == {**HERE, "password": "it's s3cret", **parts}


@pytest.mark.parametrize(
    ("entry", "named"),
    [
        ({"default": ENTRY}, r"pass DATABASES\['default'\]"),
        ({"host": "h"}, "without ENGINE, as an entry of Django's DATABASES has it"),
        ({**ENTRY, "ENGINE": "django.db.backends.sqlite3"}, "ENGINE 'django.db.backends.sqlite3'"),
        ({**ENTRY, "HOTS": "x"}, "keys that Django's DATABASES do not have: HOTS"),
        ({**ENTRY, "OPTIONS": {"charset": "utf8", "sslmode": "require"}}, r"\(charset\)"),
        ({**ENTRY, "OPTIONS": {"password": "s3cret", "sslmode": object()}}, r"\(sslmode: a object is no value"),
        ({**ENTRY, "OPTIONS": "sslmode=require"}, "OPTIONS that are a str"),
        ({**ENTRY, "PASSWORD": "s3cret\0"}, "password: a str is no value"),
    ],
)
def test_what_is_no_entry_for_postgresql_is_refused_by_name(entry: Mapping[str, Any], named: str) -> None:
    with pytest.raises(ValueError, match=named) as refused:
        check_dsn(entry)
    assert "s3cret" not in everything_shown(refused.value).partition("Traceback")[0]


async def test_a_lock_leads_on_what_dj_database_url_returns(guarded: GuardedServer, key: LockKey) -> None:
    entry = dj_database_url.parse(guarded.url("postgres") + "?sslmode=prefer", conn_max_age=600)
    async with LeaderLock({**entry}, key=key, settle_s=0, retry_strategy=QUICK) as lock:
        assert await lock.wait_for_leadership(60)
