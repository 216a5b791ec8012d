"""Connection strings: checked before anything runs, and described without their secrets.

When libpq rejects a connection string, its message quotes the part that it could not parse, which may be the password.
So its message is never repeated here.
"""

import math
import os
import re
import socket
from collections.abc import Mapping
from typing import Any

from psycopg import ProgrammingError
from psycopg.conninfo import conninfo_to_dict, make_conninfo
from psycopg.pq import Conninfo

from pgleaderlock._base.checks import visible
from pgleaderlock._base.schemes import is_postgres_scheme, why_no_driver
from pgleaderlock.postgres import _engines
from pgleaderlock.postgres._django_entry import options_of_entry
from pgleaderlock.postgres._translation import CannotTranslate, as_libpq_url, translate
from pgleaderlock.postgres.login import Dsn, Login
from pgleaderlock.stores.times import answer_bound_s

_SECRETS = ("password", "sslpassword", "oauth_client_secret", "scram_client_key", "scram_server_key")
_FORMS = "write postgresql://user@host:5432/dbname or 'host=... dbname=...'"
_SCHEME = re.compile("[a-z0-9]{1,40}([+][a-z0-9_]{1,40})?", re.IGNORECASE)
_STRAY_PERCENT = re.compile("%(?![0-9a-f]{2})", re.IGNORECASE)
_OPTION = re.compile(r"(?:^|\s)([a-z_][a-z0-9_]{0,40})\s*=", re.IGNORECASE)
_LAST_PORT = 65535
_SHORT_NUMBER = re.compile(r"\d{1,9}", re.ASCII)  # int() of thousands of digits fails with words of its own
_SHORTEST_SECRET = 3
_HIDDEN = "***"  # SQLAlchemy prints a URL so
_PASSWORD_SHARE = 0.8  # of the time to connect
_APPLICATION_NAME_BYTES = 63  # the server cuts off the rest
_OUR_NAME = "pgleaderlock"
_CONNECT_TIMEOUT_S = 10
_SHORTEST_CONNECT_TIMEOUT_S = 2  # psycopg and libpq make no difference below
_DEFAULT_PORT = 5432
_VARIABLES = {
    "application_name": "PGAPPNAME",
    "target_session_attrs": "PGTARGETSESSIONATTRS",
    "client_encoding": "PGCLIENTENCODING",
    "connect_timeout": "PGCONNECT_TIMEOUT",
}
_STATEMENT_TIMEOUT = re.compile(r"(?:-c\s*|--)statement[_-]timeout=(\d+(?:\.\d+)?)(us|ms|s|min|h|d)?(?=\s|$)")
_UNITS_S = {"us": 1e-6, "ms": 1e-3, "s": 1.0, "min": 60.0, "h": 3600.0, "d": 86400.0}
_NAME_OF_PROCESS = re.compile(rf"{_OUR_NAME} (.*):(\d+)(?: \S+s \S+)?")
_NAME_WITH_AGREEMENT = re.compile(rf"{_OUR_NAME} .*:\d+ (\S+s [wn][fs](?:t(?:-[0-9a-f]{{4}})?)?)")


def check_dsn(dsn: Dsn | None) -> dict[str, str]:
    """Return libpq's parts of what names a database; else raise an error that says why not, without quoting it.

    That is a connection string or the DATABASE_URL of another library, an entry of Django's DATABASES, or an engine or
    a URL of SQLAlchemy. A function as the password is not among the parts.
    """
    if isinstance(dsn, Login):
        return _with_password(dsn)
    if isinstance(dsn, str):
        return _check_text(dsn)
    if isinstance(dsn, Mapping):
        return _check_options(options_of_entry(dsn))
    if _engines.is_engine(dsn):
        return _check_options(_engines.fixed_arguments_of(dsn))
    if _engines.is_url(dsn):
        return _check_text(_engines.text_of(dsn))
    raise TypeError(
        "dsn must be a str, a SQLAlchemy engine or an entry of Django's DATABASES, not " + type(dsn).__name__
    )


def _with_password(login: Login) -> dict[str, str]:
    parts = check_dsn(login.dsn)
    if parts.get("password") or (_engines.is_engine(login.dsn) and _engines.password_of(login.dsn) is not None):
        raise ValueError("dsn has a password already: leave out either that or password=")
    return {**parts, "password": login.password} if isinstance(login.password, str) else parts


def _check_options(options: Mapping[str, Any]) -> dict[str, str]:
    """Return the parts of options that another driver or framework has."""
    try:
        given = join(translate(options, _libpq_options()))
    except CannotTranslate as refused:
        raise ValueError(f"dsn cannot be used here: {_why_refused(refused, may_name=True)}") from None
    except UnicodeError:  # its arguments quote the whole text: it must not come along as the context of ours
        given = None
    parts = None if given is None else _parse(given)
    if parts is None:
        raise ValueError("dsn has an option whose value libpq cannot read (not shown, it may be a password)")
    _check_parts(parts, is_url=False)
    return parts


def _check_text(dsn: str) -> dict[str, str]:
    if not dsn.strip():
        raise ValueError(f"dsn is empty: {_FORMS}")
    scheme, separator, _ = dsn.partition("://")
    if separator and _SCHEME.fullmatch(scheme) and not is_postgres_scheme(scheme):
        if (why := why_no_driver(scheme)) is not None:
            raise ValueError(f"dsn has the scheme {scheme!r}: {why}")
        raise ValueError(
            f"dsn has the scheme {scheme!r}, which is not PostgreSQL's: {_FORMS}. For another store: "
            "Election(open_backend(url)), or --url on the command line"
        )
    parts, why = _read(dsn)
    # Raised here, where libpq's exception is no longer being handled: it would come along as the context.
    if parts is None:
        raise ValueError(f"dsn is not a valid PostgreSQL connection string (not shown, it may hold a password): {why}")
    _check_parts(parts, is_url=bool(separator))
    return parts


def _read(dsn: str) -> tuple[dict[str, str] | None, str]:
    """Return the parts of a connection string, or of the URL of another driver; or why there are none."""
    scheme, separator, _ = dsn.partition("://")
    is_url = bool(separator) and is_postgres_scheme(scheme)
    try:
        text = as_libpq_url(dsn, _libpq_options()) if is_url else dsn
    except CannotTranslate as refused:
        return None, _why_refused(refused, may_name=_may_name_options(dsn))
    except UnicodeError:
        return None, "it is not UTF-8"
    parts = _parse(text)
    return parts, "" if parts is not None else _why_invalid(dsn)


def _libpq_options() -> frozenset[str]:
    """Return the names of the options that the installed libpq has."""
    return frozenset(option.keyword.decode() for option in Conninfo.get_defaults())


def join(parts: Mapping[str, object]) -> str:
    """Return the connection string of these parts."""
    return make_conninfo(**{name: str(value) for name, value in parts.items() if value is not None})


def _why_invalid(dsn: str) -> str:
    """Return what libpq most likely could not parse. Only the name of what is surely an option is repeated."""
    if dsn.lstrip().lower().startswith("jdbc:"):
        return "it begins with jdbc:, which is for Java. Leave that out: postgresql://host:5432/dbname?user=..."
    if "://" in dsn and _STRAY_PERCENT.search(dsn):
        return "it has a % that two hexadecimal digits do not follow. Write %25 for a % in a password"
    unknown = _unknown_options(dsn)
    return _why_refused(CannotTranslate(unknown), may_name=_may_name_options(dsn)) if unknown else _FORMS


def _why_refused(refused: CannotTranslate, *, may_name: bool) -> str:
    """Return what is wrong with the options. Only an unknown one may be left out: a wrong value was meant to count."""
    reasons = []
    if refused.wrong:
        named = "; ".join(refused.wrong) if may_name else "not shown"
        reasons.append(f"it has an option with a wrong value ({named})")
    if refused.unknown:
        named = "; ".join(refused.unknown) if may_name else "not shown"
        advice = "Leave out what is meant for another driver"
        reasons.append(f"it has an option that libpq does not know ({named}). {advice}")
    return ", and ".join(reasons)


def _unknown_options(dsn: str) -> list[str]:
    """Return what looks like an option, and is none of libpq's."""
    text = dsn.partition("?")[2].replace("&", " ") if "://" in dsn else dsn
    names = _OPTION.findall(text)
    known = _libpq_options()
    return [name for name in names if name not in known and name != "ssl"]


def _may_name_options(dsn: str) -> bool:
    """Whether no part of a password can look like an option: none is there, and none before an @ in the wrong place."""
    after = dsn.partition("?")[2] if "://" in dsn else dsn
    return "@" not in after and not any(name in after.lower() for name in ("passw", "secret", "scram_"))


def _parse(dsn: str) -> dict[str, str] | None:
    """Return the parts, or None when libpq does not understand them."""
    if "\0" in dsn:  # libpq would end the string there, silently
        return None
    try:
        return {name: str(value) for name, value in conninfo_to_dict(dsn).items() if value is not None}
    except (ProgrammingError, UnicodeError, ValueError):
        return None


def _check_parts(parts: Mapping[str, str], *, is_url: bool) -> None:
    """Refuse now what would fail at every connection. Nothing is quoted: a mistyped password can end up anywhere."""
    for port in filter(None, parts.get("port", "").split(",")):
        if not (_SHORT_NUMBER.fullmatch(port) and 1 <= int(port) <= _LAST_PORT):
            raise ValueError(f"dsn has a port that is not a number from 1 to {_LAST_PORT}: {_FORMS}")
    if not _SHORT_NUMBER.fullmatch(parts.get("connect_timeout", "0").removeprefix("-")):
        raise ValueError("dsn has a connect_timeout that is not a whole number of seconds")
    if any("@" in host[1:] for host in parts.get("host", "").split(",") if not host.startswith("/")):
        raise ValueError("dsn has an @ in its host name: an @ in a password must be written as %40")
    if is_url and "@" in parts.get("dbname", ""):  # postgresql://u:5/secret@h/db has the dbname secret@h/db
        raise ValueError("dsn has an @ in its dbname: a / or @ in a password must be written as %2F or %40")
    if "://" in parts.get("dbname", ""):
        raise ValueError(f"dsn has a URL for its dbname: {_FORMS}")
    if parts.get("password") == _HIDDEN:
        raise ValueError(
            "dsn has the password ***, which str() of a SQLAlchemy URL writes in place of the real one: pass the "
            "engine itself, or engine.url.render_as_string(hide_password=False)"
        )


def default_application_name(agreement: str = "") -> str:
    """Return the name under which a session of this process shows in pg_stat_activity.

    It ends with the settings that candidates must share, so that they can compare them. Of a long host name the end is
    kept, where generated names differ.
    """
    rest = f":{os.getpid()} {agreement}".rstrip()
    host = socket.gethostname().encode("ascii", "replace").decode("ascii")
    room = _APPLICATION_NAME_BYTES - len(_OUR_NAME) - 1 - len(rest)
    return f"{_OUR_NAME} {host[-room:]}{rest}"


def own_session_name(parts: Mapping[str, str], agreement: str = "") -> str | None:
    """Return the name that sessions with this connection string have; None if the string or a variable names them.

    Such a name is the same in all candidates that share the string, so it identifies none of them.
    """
    variables = ("PGSERVICE", _VARIABLES["application_name"])
    is_named_elsewhere = "service" in parts or "application_name" in parts or any(map(os.environ.get, variables))
    return None if is_named_elsewhere else default_application_name(agreement)


def host_of(application_name: str) -> str | None:
    """Return the host in a name that this library gave a session; None if the name has another form."""
    match = _NAME_OF_PROCESS.fullmatch(application_name)
    return None if match is None else match[1]


def is_named(application_name: str, name: str) -> bool:
    """Return whether a session with this application_name is that of a candidate called so.

    The name is host and process id, as this library puts them into an application_name; or all of another one.
    """
    if application_name == name:
        return True
    match, (host, _, pid) = _NAME_OF_PROCESS.fullmatch(application_name), name.rpartition(":")
    if match is None or not host or match[2] != pid:
        return False
    host = host.encode("ascii", "replace").decode("ascii")
    is_cut = len(application_name) >= _APPLICATION_NAME_BYTES and bool(match[1])
    return match[1] == host or (is_cut and host.endswith(match[1]))


def agreement_of(application_name: str) -> str | None:
    """Return the settings in the name of a candidate; None if the name has another form."""
    match = _NAME_WITH_AGREEMENT.fullmatch(application_name)
    return None if match is None else match[1]


def with_defaults(parts: Mapping[str, str], *, agreement: str = "", lease_s: float | None = None) -> str:
    """Fill in what a long-lived, mostly idle session needs, wherever the string or the environment is silent.

    Of several hosts the primary is chosen: a standby would be refused. Data that is not acknowledged for
    ``answer_bound_s`` ends the connection. What a service file says we cannot see, so beside one nothing is filled in.
    """
    if parts.get("service") or os.environ.get("PGSERVICE"):
        return make_conninfo(**parts)
    defaults = {
        "application_name": default_application_name(agreement),
        "target_session_attrs": "primary",
        "client_encoding": "utf8",  # of SQL_ASCII, psycopg makes bytes
        "connect_timeout": str(_host_timeout_s(parts, lease_s)),
        "keepalives": "1",
        "keepalives_idle": "10",
        "keepalives_interval": "5",
        "keepalives_count": "3",
    }
    if lease_s is not None:
        defaults["tcp_user_timeout"] = str(max(1, round(1000 * answer_bound_s(lease_s))))
    for name, variable in _VARIABLES.items():
        if os.environ.get(variable):
            del defaults[name]
    return make_conninfo(**{**defaults, **parts})


def _hosts(parts: Mapping[str, str]) -> list[str]:
    return (parts.get("host") or parts.get("hostaddr") or os.environ.get("PGHOST") or "").split(",")


def _host_timeout_s(parts: Mapping[str, str], lease_s: float | None) -> int:
    """How long one host may take to answer: with several of them, so long that the last is asked in time."""
    if lease_s is None or len(_hosts(parts)) == 1:
        return _CONNECT_TIMEOUT_S
    return max(_SHORTEST_CONNECT_TIMEOUT_S, min(_CONNECT_TIMEOUT_S, int(lease_s / (len(_hosts(parts)) + 1))))


def connect_s(parts: Mapping[str, str], lease_s: float) -> float:
    """How long it may take until the last of several hosts has answered; 0 for one alone, which the lease bounds."""
    if len(_hosts(parts)) == 1:
        return 0.0
    timeout_s = max(0, int(parts.get("connect_timeout") or _host_timeout_s(parts, lease_s)))
    return len(_hosts(parts)) * timeout_s + 1.0


def password_s(parts: Mapping[str, str], lease_s: float | None) -> float:
    """How long a function may take to return the password: less than connecting may, so that an error names it."""
    given = parts.get("connect_timeout") or os.environ.get("PGCONNECT_TIMEOUT") or ""
    longest_s = (int(given) if _SHORT_NUMBER.fullmatch(given) else 0) or _CONNECT_TIMEOUT_S
    return _PASSWORD_SHARE * (longest_s if lease_s is None else min(longest_s, answer_bound_s(lease_s)))


def put_first(parts: Mapping[str, str], host: str, port: int) -> Mapping[str, str]:
    """Return the same connection string with the host that answered as the first."""
    hosts = parts.get("host", "").split(",")
    ports = parts.get("port", "").split(",")
    ports = ports * len(hosts) if len(ports) == 1 else ports
    places = [(each, int(number or _DEFAULT_PORT)) for each, number in zip(hosts, ports, strict=False)]
    if len(places) != len(hosts) or "hostaddr" in parts or (host, port) not in places[1:]:
        return parts
    first = places.index((host, port), 1)
    order = [first, *(index for index in range(len(hosts)) if index != first)]
    return {
        **parts,
        "host": ",".join(hosts[index] for index in order),
        "port": ",".join(str(places[index][1]) for index in order),
    }


def describe(parts: Mapping[str, str]) -> str:
    """Return where a connection goes, for messages: never a secret."""
    host = parts.get("host") or parts.get("hostaddr") or os.environ.get("PGHOST") or "the local socket"
    port = parts.get("port") or os.environ.get("PGPORT") or "5432"
    user = parts.get("user") or os.environ.get("PGUSER") or "(default)"
    if service := parts.get("service") or os.environ.get("PGSERVICE"):  # the rest is in a file that we do not read
        named = {name: parts[name] for name in ("host", "port", "dbname", "user") if name in parts}
        return " ".join([f"service={service}", *(f"{name}={value}" for name, value in named.items())])
    return f"host={host} port={port} dbname={database(parts)} user={user}"


def database(parts: Mapping[str, str]) -> str:
    """Return the name of the database that a connection goes to, as far as it is known here."""
    named = parts.get("dbname") or os.environ.get("PGDATABASE")
    if not named and (parts.get("service") or os.environ.get("PGSERVICE")):
        return "(of the service)"
    return named or parts.get("user") or os.environ.get("PGUSER") or "(default)"


def names_database(parts: Mapping[str, str]) -> bool:
    """Return whether the database is named explicitly. Otherwise it is the user's name, and differs between users."""
    chosen = [parts.get("dbname"), parts.get("service"), os.environ.get("PGDATABASE"), os.environ.get("PGSERVICE")]
    return any(chosen)


def statement_timeout_s(parts: Mapping[str, str]) -> float | None:
    """Return the limit of a statement that the options ask for; None when they ask for none, or for no limit."""
    found = _STATEMENT_TIMEOUT.findall(parts.get("options") or os.environ.get("PGOPTIONS") or "")
    if not found:
        return None
    number, unit = found[-1]  # the last one counts
    seconds = float(number) * _UNITS_S[unit or "ms"]
    return seconds if 0 < seconds < math.inf else None


def has_password(dsn: str) -> bool:
    """Whether this string holds a secret that must not be seen by others. A string that cannot be read may."""
    parts, _ = _read(dsn)
    return parts is None or any(parts.get(name) for name in _SECRETS)


def one_line(text: str, parts: Mapping[str, str]) -> str:
    """Return what a driver or a server says as one line, without secrets and without what a terminal would obey.

    Servers quote names and values that any user can have chosen: a line break in one would begin a line of its own in a
    log, and a control character would rewrite the screen.
    """
    return visible("; ".join(filter(None, map(str.strip, scrub(text, parts).splitlines()))))


def scrub(text: str, parts: Mapping[str, str]) -> str:
    """Take the secrets of this connection string out of a text, should a driver have put them there."""
    # A very short one would be cut out of ordinary words, and shown by its absence.
    secrets = [secret for name in _SECRETS if len(secret := parts.get(name, "")) >= _SHORTEST_SECRET]
    for secret in sorted(secrets, key=len, reverse=True):  # one may hold another
        text = text.replace(secret, "***")
    return text
