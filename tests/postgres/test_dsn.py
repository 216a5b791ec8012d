"""Connection strings: checked early, and whatever is wrong with one, its secret is never shown."""

import os
import re
import socket
from typing import Any

import psycopg.pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from psycopg.conninfo import conninfo_to_dict

from pgleaderlock import LeaderLock
from pgleaderlock.postgres import _dsn
from pgleaderlock.postgres._dsn import (
    agreement_of,
    check_dsn,
    database,
    default_application_name,
    describe,
    has_password,
    names_database,
    scrub,
    with_defaults,
)
from tests.support.shown_errors import everything_shown

SECRET = "s3cret"

MALFORMED = [
    "postgresql://u:s3cret@h:notaport/db",  # libpq itself finds this out only when it connects
    "postgresql://u:s3cret@h:1:2/db",
    "postgresql://u:s3cret@h:99999999/db",
    "host=h password=s3cret port=x",
    "host=h password=s3cret connect_timeout=soon",
    "host=h password='s3cret",
    "host=h password=s3cret oops",
    "host=h s3cret",
    "s3cret",
    "host=h pasword=s3cret",
    "host=h password=x\x00s3cret",  # C ends the string there, silently
    "postgresql://u:p@s3cret:x@h/db",  # "@" and ":" in a password that was not percent-encoded
    "postgresql://u:p@s3cret@h/db",
    "postgresql://u:p/s3cret@h/db",
    "postgresql://u:5/s3cret@h/db",
    "postgresql://u:%zzs3cret@h/db",
    "postgresql://u:s3cret%00@h/db",
    "postgresql://u:s3cret@[::1/db",
    "postgresql://u:s3cret@h/db?nonsense=s3cret",
    "postgresql://u:s3cret@h/db?connect_timeout",
    "postgresql://u:s3cret\ud800@h/db",  # cannot be encoded at all
    "postgres:/u:s3cret@h/db",
    "postgresql:u:s3cret@h/db",
    "postgresql+nothing://u:s3cret@h/db",
    "postgresql+asyncpg://u:s3cret@h/db?nonsense=s3cret",
    "postgresql+asyncpg://u:s3cret@h/db?ssl=s3cret",
    "postgresql+asyncpg://u:s3cret@h/db?ssl",
    "postgresql+asyncpg://u:p/s3cret@h/db",
    "postgresql+psycopg://u:s3cret@h/db?connect_timeout=s3cret",
    "mysql://u:s3cret@h/db",
    "POSTGRESQL://u:s3cret@h/db",
    "u:s3cret@h/db",
    "host=h dbname=postgresql://u:s3cret@h/db",  # a URL where only a name belongs
]


@pytest.mark.parametrize("dsn", MALFORMED, ids=ascii)
def test_a_malformed_string_is_refused(dsn: str) -> None:
    with pytest.raises(ValueError, match="dsn"):
        check_dsn(dsn)


@pytest.mark.parametrize("dsn", MALFORMED, ids=ascii)
def test_a_malformed_string_never_shows_its_secret(dsn: str) -> None:
    """Refused or not: neither the exception, nor what is behind it, nor the description may hold it."""
    shown = ""
    try:
        shown = describe(check_dsn(dsn))
    except ValueError as error:
        shown = everything_shown(error)
    # Compared outside of an assert, because pytest would print both sides of it.
    leaked = SECRET in shown
    assert not leaked


@pytest.mark.parametrize("dsn", MALFORMED, ids=ascii)
def test_a_lock_refuses_a_malformed_string_before_anything_runs(dsn: str) -> None:
    with pytest.raises(ValueError, match="dsn"):
        LeaderLock(dsn, 1, 2)


@pytest.mark.parametrize(
    ("dsn", "why"),
    [
        ("postgresql://u@h/db?poolsize=5", "an option that libpq does not know (poolsize). Leave out what is meant"),
        ("postgresql://u@h/db?sslmode=require&overflow=1&pool_size=5&poolsize=5", "(overflow; poolsize)"),
        ("host=h pool_size=5", "(pool_size)"),
        ("postgresql://u:p@h/db?poolsize=5", "(poolsize)"),  # the password is not after the ?
        ("postgresql://u:100%@h/db", "a % that two hexadecimal digits do not follow. Write %25"),
        ("jdbc:postgresql://h/db", "it begins with jdbc:, which is for Java. Leave that out"),
        ("JDBC:postgresql://h/db?user=u", "it begins with jdbc:"),
        ("garbage", "write postgresql://user@host:5432/dbname"),
    ],
)
def test_a_string_of_another_program_is_refused_with_what_to_change(dsn: str, why: str) -> None:
    with pytest.raises(ValueError, match=re.escape(why)):
        check_dsn(dsn)


@pytest.mark.parametrize(
    "dsn",
    [
        "postgresql://u@h/db?x=1&secret=b@h/db",  # an @ after the ?: perhaps all before it is a password
        "postgresql://u@h/db?password=a&secret=b",  # so does an & in one
        "host=h password=a secret=b",
        "jdbc:postgresql://h/db?user=u&password=secret",
        "postgresql://u:secret%@h/db",
    ],
)
def test_what_may_be_a_part_of_a_password_is_not_named_as_an_option(dsn: str) -> None:
    with pytest.raises(ValueError, match="dsn") as refused:
        check_dsn(dsn)
    assert "secret" not in everything_shown(refused.value).partition("Traceback")[0]


@pytest.mark.parametrize("dsn", ["", " ", "\n\t "], ids=repr)
def test_an_empty_string_is_refused_although_libpq_would_guess_a_server(dsn: str) -> None:
    with pytest.raises(ValueError, match=r"^dsn is empty"):
        check_dsn(dsn)


@pytest.mark.parametrize("dsn", [None, 5, True, b"host=h", ["h"]], ids=repr)
def test_what_names_no_database_is_refused(dsn: Any) -> None:
    with pytest.raises(TypeError, match=rf"^dsn must be a str, a SQLAlchemy engine or .*, not {type(dsn).__name__}$"):
        check_dsn(dsn)


def test_another_database_s_scheme_is_named() -> None:
    with pytest.raises(ValueError, match="mysql"):
        check_dsn("mysql://u@h/db")


@pytest.mark.parametrize(
    ("dsn", "parts"),
    [
        ("postgresql://", {}),
        ("postgres://u@h/db", {"user": "u", "host": "h", "dbname": "db"}),
        (
            "postgresql://u:p%40ss@h:6432/db",
            {"user": "u", "password": "p@ss", "host": "h", "port": "6432", "dbname": "db"},
        ),
        ("postgresql://a:1,b:2/db", {"host": "a,b", "port": "1,2", "dbname": "db"}),
        ("postgresql://a,b/db", {"host": "a,b", "dbname": "db", "port": ","}),
        ("postgresql://[::1]:5432/db", {"host": "::1", "port": "5432", "dbname": "db"}),
        ("postgresql://%2Frun%2Fpg/db", {"host": "/run/pg", "dbname": "db"}),
        ("host=/run/pg dbname=db", {"host": "/run/pg", "dbname": "db"}),
        ("host=h password='it''s'", None),
        (r"host=h password='it\'s = a:\/\/ secret'", {"host": "h", "password": "it's = a:// secret"}),
        ("password=a://b host=h", {"password": "a://b", "host": "h"}),
        ("service=mine", {"service": "mine"}),
        ("dbname=db sslmode=require", {"dbname": "db", "sslmode": "require"}),
    ],
    ids=str,
)
def test_a_usable_string_is_taken_apart(dsn: str, parts: dict[str, str] | None) -> None:
    if parts is None:
        with pytest.raises(ValueError, match="dsn"):
            check_dsn(dsn)
    else:
        assert check_dsn(dsn) == parts


# --- describe --------------------------------------------------------------------------------------------------


@pytest.fixture
def _no_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in os.environ if name.startswith("PG")]:
        monkeypatch.delenv(name)


@pytest.mark.usefixtures("_no_environment")
@pytest.mark.parametrize(
    ("dsn", "said"),
    [
        ("postgresql://u:s3cret@h:6432/db?sslpassword=s3cret", "host=h port=6432 dbname=db user=u"),
        ("host=h user=u", "host=h port=5432 dbname=u user=u"),
        ("hostaddr=10.0.0.1 dbname=db", "host=10.0.0.1 port=5432 dbname=db user=(default)"),
        ("sslmode=disable", "host=the local socket port=5432 dbname=(default) user=(default)"),
    ],
)
def test_a_description_says_where_and_who_and_no_secret(dsn: str, said: str) -> None:
    assert describe(check_dsn(dsn)) == said


@pytest.mark.usefixtures("_no_environment")
def test_a_description_knows_the_environment_that_libpq_reads(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {"PGHOST": "e", "PGPORT": "1", "PGUSER": "eu", "PGDATABASE": "ed", "PGPASSWORD": SECRET}.items():
        monkeypatch.setenv(name, value)
    assert describe({}) == "host=e port=1 dbname=ed user=eu"
    assert describe({"host": "h", "port": "2", "user": "u", "dbname": "d"}) == "host=h port=2 dbname=d user=u"


# --- has_password ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("dsn", "holds"),
    [
        ("postgresql://u:p@h/db", True),
        ("postgresql://u@h/db?password=p", True),
        ("host=h password=p", True),
        ("host=h sslpassword=p", True),
        ("postgresql://u@h/db", False),
        ("postgresql://u:@h/db", False),
        ("host=h password=''", False),
        ("host=h passfile=/etc/pgpass", False),
        ("", False),
        ("host=h password='p", True),
        ("u:p@h", True),
        ("\ud800", True),
    ],
    ids=ascii,
)
def test_a_string_with_a_secret_is_known_and_one_that_cannot_be_read_is_suspected(dsn: str, holds: bool) -> None:
    assert has_password(dsn) is holds


def test_every_option_that_libpq_hides_as_a_password_is_a_secret_here() -> None:
    """libpq marks them with an asterisk. A newer one may have more than we know of."""
    hidden = {option.keyword.decode() for option in psycopg.pq.Conninfo.get_defaults() if option.dispchar == b"*"}
    assert "password" in hidden
    assert hidden <= set(_dsn._SECRETS)


def test_the_keys_of_scram_pass_through_are_secrets_too() -> None:
    """libpq 18 shows them to debuggers only, but who has the client key can log in with it."""
    known = {option.keyword.decode() for option in psycopg.pq.Conninfo.get_defaults()}
    assert {"scram_client_key", "scram_server_key"} & known <= set(_dsn._SECRETS)


# --- scrub -----------------------------------------------------------------------------------------------------


def test_every_occurrence_of_a_secret_is_taken_out_of_a_text() -> None:
    parts = check_dsn("postgresql://u:s3cret@h/db?sslpassword=t0p")
    assert (
        scrub("auth failed for u with s3cret (s3cret), key t0p", parts) == "auth failed for u with *** (***), key ***"
    )


def test_a_text_without_secrets_stays_as_it_is() -> None:
    assert scrub("no secrets here", {"host": "h", "password": "s3cret"}) == "no secrets here"
    assert scrub("no secrets here", {"password": ""}) == "no secrets here"
    assert scrub("no secrets here", {}) == "no secrets here"


def test_a_secret_that_holds_another_is_taken_out_whole() -> None:
    """Taking out the shorter one first would leave the rest of the longer one to be read."""
    assert "-and-more" not in scrub("key: base-and-more", {"password": "base", "sslpassword": "base-and-more"})


# --- with_defaults ---------------------------------------------------------------------------------------------


def test_a_bare_string_gets_what_a_long_idle_session_needs() -> None:
    assert conninfo_to_dict(with_defaults({"host": "h"})) == {
        "host": "h",
        "application_name": default_application_name(),
        "target_session_attrs": "primary",
        "client_encoding": "utf8",
        "connect_timeout": "10",
        "keepalives": "1",
        "keepalives_idle": "10",
        "keepalives_interval": "5",
        "keepalives_count": "3",
    }


def test_silence_ends_a_connection_in_the_time_that_the_lease_allows() -> None:
    assert conninfo_to_dict(with_defaults({"host": "h"}, lease_s=15))["tcp_user_timeout"] == "10000"
    assert conninfo_to_dict(with_defaults({"tcp_user_timeout": "5"}, lease_s=15))["tcp_user_timeout"] == "5"


def test_the_name_of_a_session_ends_with_what_candidates_must_agree_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("socket.gethostname", lambda: "x" * 100 + "end")
    name = default_application_name("15s wf")
    assert len(name) == 63
    assert name.endswith(f"xend:{os.getpid()} 15s wf")
    assert agreement_of(name) == "15s wf"


@pytest.mark.parametrize(
    "name", ["", "psql", "pgleaderlock vm:12", "pgleaderlock vm:12 15s", "a pgleaderlock vm:1 1s wf"]
)
def test_other_application_name_shows_no_agreement(name: str) -> None:
    assert agreement_of(name) is None


@pytest.mark.parametrize(
    ("parts", "environment", "is_named", "database_name"),
    [
        ({"dbname": "app"}, {}, True, "app"),
        ({"user": "me"}, {}, False, "me"),
        ({}, {}, False, "(default)"),
        ({"service": "x"}, {}, True, "(of the service)"),
        ({}, {"PGDATABASE": "app"}, True, "app"),
        ({}, {"PGSERVICE": "x"}, True, "(of the service)"),
        ({}, {"PGUSER": "me"}, False, "me"),
    ],
)
def test_default_database_name_is_distinguished_from_a_chosen_one(
    parts: dict[str, str],
    environment: dict[str, str],
    is_named: bool,
    database_name: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name in ("PGDATABASE", "PGSERVICE", "PGUSER"):
        monkeypatch.delenv(name, raising=False)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    assert (names_database(parts), database(parts)) == (is_named, database_name)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("application_name", "mine"),
        ("connect_timeout", "77"),
        ("keepalives", "0"),
        ("keepalives_idle", "77"),
        ("keepalives_interval", "77"),
        ("keepalives_count", "77"),
        ("target_session_attrs", "any"),
    ],
)
def test_what_the_string_says_itself_is_never_overridden(name: str, value: str) -> None:
    full = conninfo_to_dict(with_defaults(check_dsn(f"host=h {name}={value}")))
    assert full[name] == value


@settings(deadline=None, max_examples=60)
@given(password=st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), min_size=1))
def test_a_password_of_any_characters_comes_through(password: str) -> None:
    assert conninfo_to_dict(with_defaults({"host": "h", "password": password}))["password"] == password


# --- The application name --------------------------------------------------------------------------------------


def test_the_application_name_says_who_where_and_which_process() -> None:
    assert default_application_name().startswith("pgleaderlock ")
    assert default_application_name().endswith(f"{socket.gethostname()}:{os.getpid()}"[:50])


@pytest.mark.parametrize("host", ["h" * 300, "hôte-à-paris", "主机" * 40, "😀", "a\ud800b"], ids=ascii)
def test_the_application_name_is_ascii_and_short_enough_for_the_server(
    monkeypatch: pytest.MonkeyPatch, host: str
) -> None:
    monkeypatch.setattr(socket, "gethostname", lambda: host)
    name = default_application_name()
    assert name.isascii()
    assert len(name) <= 63
    assert name.startswith("pgleaderlock ")


@pytest.mark.parametrize(
    ("parts", "lease_s", "timeout_s", "all_s"),
    [
        ({"host": "a"}, 3.0, "10", 0.0),
        ({"host": "a,b"}, 3.0, "2", 5.0),
        ({"host": "a,b"}, 15.0, "5", 11.0),
        ({"host": "a,b,c"}, 600.0, "10", 31.0),
        ({"host": "a,b", "connect_timeout": "7"}, 15.0, "7", 15.0),
    ],
)
def test_of_several_hosts_each_gets_so_long_that_the_last_is_asked_in_time(
    parts: dict[str, str], lease_s: float, timeout_s: str, all_s: float
) -> None:
    assert conninfo_to_dict(with_defaults(parts, lease_s=lease_s))["connect_timeout"] == timeout_s
    assert _dsn.connect_s(parts, lease_s) == all_s


@pytest.mark.parametrize(
    ("parts", "host", "port", "expected"),
    [
        ({"host": "a,b", "port": "1,2"}, "b", 2, {"host": "b,a", "port": "2,1"}),
        ({"host": "a,b,c"}, "c", 5432, {"host": "c,a,b", "port": "5432,5432,5432"}),
        ({"host": "a,b"}, "a", 5432, {"host": "a,b"}),
        ({"host": "a"}, "a", 5432, {"host": "a"}),
        ({"host": "a,b"}, "elsewhere", 1, {"host": "a,b"}),
        ({"host": "a,b", "hostaddr": "::1,::2"}, "b", 5432, {"host": "a,b", "hostaddr": "::1,::2"}),
        ({}, "/run", 5432, {}),
    ],
)
def test_the_host_that_answered_is_asked_first_the_next_time(
    parts: dict[str, str], host: str, port: int, expected: dict[str, str]
) -> None:
    assert _dsn.put_first(parts, host, port) == expected


def test_what_a_service_or_the_environment_says_is_not_overridden(monkeypatch: pytest.MonkeyPatch) -> None:
    assert conninfo_to_dict(with_defaults({"service": "prod"}, lease_s=15)) == {"service": "prod"}
    assert describe({"service": "prod", "dbname": "app"}) == "service=prod dbname=app"
    monkeypatch.setenv("PGCONNECT_TIMEOUT", "3")
    assert "connect_timeout" not in conninfo_to_dict(with_defaults({"host": "h"}))


@pytest.mark.parametrize(
    "dsn",
    [
        {"ENGINE": "django.db.backends.postgresql", "NAME": "app", "HOST": "db", "PASSWORD": "hunter\udce9"},
        "postgresql+asyncpg://u:hunter\udce9@db/app?ssl=require",
        "postgresql://u:hunter\udce9@db/app",
        "host=db password=hunter\udce9",
    ],
)
def test_a_password_that_is_not_utf_8_is_in_nothing_that_the_error_brings_along(dsn: object):
    """Python reads such a one from the environment, and its own error quotes the text that it could not encode."""
    with pytest.raises(ValueError, match="dsn ") as raised:
        LeaderLock(dsn, 1, 2)  # type: ignore[arg-type]
    error: BaseException | None = raised.value
    while error is not None:
        assert "hunter" not in repr(error) + repr(error.args)
        error = error.__cause__ or error.__context__
