"""Keep passwords out of what other users can see: the process list, and our own messages.

Every user of a machine can read every process's arguments; only its owner can read its environment. So a connection
string with a password is moved from the arguments to the environment, by executing this program again. Until then,
and in the shell's history, it is visible: ``$PG_DSN`` from the start is better, and the help says so. That time is
short: only small parts of the standard library are imported before, so it is little more than the start of Python.
"""

import os
import re
import sys
from collections.abc import Sequence

DSN_VARIABLE = "PG_DSN"
URL_VARIABLE = "PGLEADERLOCK_URL"
MOVED_VARIABLE = "PGLEADERLOCK_MOVED"
"""Names the variables that were set in place of options: they are not passed to the commands that ``exec`` starts."""
STORE_VARIABLES = (DSN_VARIABLE, URL_VARIABLE, "PGLEADERLOCK_BACKEND", "PGLEADERLOCK_REGISTRY_DSN")
"""The variables that may hold the password of a store."""

_WITHOUT_SECRETS = (
    "host|hostaddr|port|dbname|user|service|options|application_name|fallback_application_name|client_encoding|"
    r"connect_timeout|keepalives\w*|tcp_user_timeout|target_session_attrs|load_balance_hosts|passfile|"
    "ssl(?:mode|rootcert|cert|key|crl|negotiation)|channel_binding|gssencmode|require_auth|krbsrvname"
)
_PLAIN_URL = re.compile(
    rf"postgres(?:ql)?://(?:[^:@/?#%]*@)?[^@?#%]*(?:\?(?:(?:{_WITHOUT_SECRETS})=[^&@%]*(?:&|\Z))*)?"
)
_PLAIN_PAIRS = re.compile(rf"(?:\s*(?:{_WITHOUT_SECRETS})\s*=\s*(?:'[^'\\@]*'|[^\s'\\@]*)(?:\s|\Z))*\s*")


def take_out(option: str, arguments: Sequence[str]) -> tuple[list[str], str | None]:
    """Return the arguments without any such option, and the value that counts, which is the last."""
    rest: list[str] = []
    found: str | None = None
    waiting = iter(arguments)
    for argument in waiting:
        if argument == "--":
            rest += [argument, *waiting]
        elif argument.startswith(f"{option}="):
            found = argument.removeprefix(f"{option}=")
        elif argument == option:
            value = next(waiting, None)
            if value is None:  # click will say that the value is missing
                rest.append(argument)
            else:
                found = value
        else:
            rest.append(argument)
    return rest, found


def move_secrets_to_environment() -> None:
    """Replace this process by one without the options that hold a password. Returns when none does."""
    rest = arguments = sys.argv[1:]
    moved: dict[str, str] = {}
    if arguments[:1] == ["schema"] and take_out("--url", rest)[1] is not None:
        return  # this command has no such option: moving it would hide that error
    for option, variable, has_secret in (
        ("--dsn", DSN_VARIABLE, may_hold_password),
        ("--url", URL_VARIABLE, _has_user),
    ):
        without, value = take_out(option, rest)
        if value is not None and has_secret(value):
            rest, moved[variable] = without, value
    if not moved:
        return
    moved[MOVED_VARIABLE] = " ".join(moved)
    before = sys.orig_argv[1 : len(sys.orig_argv) - len(arguments)]
    if not sys.executable or sys.orig_argv[len(before) + 1 :] != arguments:
        return  # how this process was started is not known: rather keep running than start something else
    # The full path as the program's name, because that is how Python finds its virtual environment.
    command = [sys.executable, *before, *rest]
    os.execve(sys.executable, command, {**os.environ, **moved})  # noqa: S606 - this very program again


def may_hold_password(dsn: str) -> bool:
    """Return False only if a connection string certainly holds no secret.

    libpq could tell exactly, but would have to be loaded first; moving a string needlessly costs one start of Python.
    """
    return not (_PLAIN_URL.fullmatch(dsn) or _PLAIN_PAIRS.fullmatch(dsn))


def _has_user(url: str) -> bool:
    """Return whether a URL may hold a password: that of a user, or in an option."""
    return "@" in url or "?" in url


def hide_secrets(message: str, arguments: Sequence[str]) -> str:
    """Take out of a message any argument that may hold a password, such as a DSN given in the wrong place."""
    from pgleaderlock.postgres import _dsn  # noqa: PLC0415 - heavy, and by now everything is loaded

    for argument in arguments:
        value = argument.partition("=")[2] if argument.startswith("--") else argument
        if _looks_like_dsn(value) and not _is_plain_url(value) and _dsn.has_password(value):
            message = message.replace(value, "***")
    return message


def _is_plain_url(text: str) -> bool:
    """Return whether this is a URL of another store without user and options, and therefore without a secret."""
    scheme, separator, rest = text.partition("://")
    return bool(separator) and not scheme.startswith("postgres") and not set(rest) & set("@?:=")


def _looks_like_dsn(text: str) -> bool:
    return "://" in text or "=" in text or (":" in text and "@" in text)
