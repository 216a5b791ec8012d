"""The receivers of alerts, and the files with their secrets.

A key that pages people, or the address of a chat's hook, is a secret: with it, an attacker can wake a team up, or
teach it to ignore its pager. It would be copied from the TOML into ``alertmanager.yml``, into backups and into version
control. So only the path of a file that holds it is accepted, which Alertmanager itself reads, and a secret in the TOML
is refused without being repeated in the message.
"""

import re
from dataclasses import dataclass
from typing import Literal
from urllib.parse import SplitResult, parse_qsl, urlsplit

from pgleaderlock.ops.alerts._table import Table

Kind = Literal["pagerduty", "slack", "webhook"]

_FORMS = '"pagerduty", "slack:#channel", "webhook:https://..." or "webhook:NAME"'
_NAME = re.compile(r"[A-Za-z0-9_-]{1,64}")
_CHANNEL = re.compile(r"[#@]?[^\s{}\"'`/:#@]{1,80}")
_KIND_FOR_PEOPLE = re.compile("[a-z]{1,20}")
_ADDRESS = re.compile(r"https?://[!-z|~]+")  # no spaces, no control characters, no braces of a template
_SECRET_WORD = re.compile("token|key|secret|sig|pass|auth|code", re.IGNORECASE)
# Hosts at which the path alone is the permission to post.
_SECRET_PATHS = ("hooks.slack.com", "discord.com", "discordapp.com", "webhook.office.com", "hooks.zapier.com")
_INLINE = {
    "pagerduty": {"routing_key": "routing_key_file", "service_key": "routing_key_file", "key": "routing_key_file"},
    "slack": {"api_url": "api_url_file", "url": "api_url_file", "token": "api_url_file"},
    "webhook": {"token": "url_file", "password": "url_file"},
}


@dataclass(frozen=True, slots=True)
class Target:
    """One word of a ``notify``: the kind, and the channel, name or address after the colon."""

    kind: Kind
    detail: str = ""

    def __str__(self) -> str:
        return f"{self.kind}:{self.detail}" if self.detail else self.kind

    @property
    def is_address(self) -> bool:
        """Whether it is itself an address, so that it needs no receiver."""
        return "://" in self.detail


@dataclass(frozen=True, slots=True)
class Receiver:
    """How to reach one kind of target: ``key`` is Alertmanager's, ``value`` a path, or an address with no secret."""

    kind: Kind
    name: str
    key: str
    value: str


def parse(receivers: Table, source: str) -> tuple[Receiver, ...]:
    receivers.only(("default", "pagerduty", "slack", "webhook"))
    found = []
    if "pagerduty" in receivers:
        found.append(_by_file(receivers, "pagerduty", "routing_key_file", source))
    if "slack" in receivers:
        found.append(_by_file(receivers, "slack", "api_url_file", source))
    webhooks = receivers.part("webhook", f"{source}: [receivers.webhook]")
    for name in webhooks:
        if not _NAME.fullmatch(name):
            raise webhooks.wrong(repr(name), "is not a name for a receiver: use letters, digits, _ and -")
        found.append(_webhook(webhooks.part(name, f"{source}: [receivers.webhook.{name}]"), name))
    return tuple(found)


def parse_target(table: Table, key: str, written: str) -> Target:
    """Return one target of a ``notify``. An error does not repeat a text that may be a secret."""
    kind, colon, detail = written.partition(":")
    match kind:
        case "pagerduty":
            if colon:
                raise table.wrong(key, 'takes "pagerduty" alone; its key belongs into [receivers.pagerduty], in a file')
            return Target("pagerduty")
        case "slack":
            if not _CHANNEL.fullmatch(detail):
                raise table.wrong(
                    key, 'takes "slack:#channel"; Slack\'s address belongs into [receivers.slack], in a file'
                )
            return Target("slack", detail)
        case "webhook":
            if "/" in detail:
                return Target("webhook", _address(table, key, detail))
            if not _NAME.fullmatch(detail):
                raise table.wrong(key, 'takes "webhook:https://..." or "webhook:NAME" of a [receivers.webhook.NAME]')
            return Target("webhook", detail)
    shown = repr(kind) if _KIND_FOR_PEOPLE.fullmatch(kind) else "one that is not shown, because it may be a secret"
    raise table.wrong(key, f"must be made of {_FORMS}, and there is {shown}")


def _by_file(receivers: Table, kind: Literal["pagerduty", "slack"], key: str, source: str) -> Receiver:
    table = receivers.part(kind, f"{source}: [receivers.{kind}]")
    _refuse_inline(table, kind)
    table.only((key,))
    return Receiver(kind, "", key, _path(table, key, table.needed(key, f'"/run/secrets/{kind}"')))


def _webhook(table: Table, name: str) -> Receiver:
    _refuse_inline(table, "webhook")
    table.only(("url", "url_file"))
    url, url_file = table.text("url"), table.text("url_file")
    if (url is None) == (url_file is None):
        raise table.wrong("url", 'or url_file is required, and only one of them: url = "https://..."')
    if url_file is not None:
        return Receiver("webhook", name, "url_file", _path(table, "url_file", url_file))
    return Receiver("webhook", name, "url", _address(table, "url", url or ""))


def _refuse_inline(table: Table, kind: Kind) -> None:
    for key in table:
        if file_key := _INLINE[kind].get(key):
            raise table.wrong(
                key,
                "is a secret, and would be copied into alertmanager.yml: put it into a file that only Alertmanager can "
                f'read, and write {file_key} = "/run/secrets/{kind}" instead',
            )


def _path(table: Table, key: str, path: str) -> str:
    """Return an absolute path: Alertmanager resolves relative ones from the folder that it is started in."""
    if not path.startswith("/") or not path.isprintable():
        raise table.wrong(key, "must be the absolute path of the file with the secret (what is there is not shown)")
    return path


def _address(table: Table, key: str, url: str) -> str:
    """Return the address; ValueError if it seems to contain a secret."""
    parts = _split(url)
    if parts is None:
        raise table.wrong(key, "has an address that is not http://host... or https://host... (it is not shown)")
    if _tells_a_secret(parts):
        raise table.wrong(
            key,
            "has an address with a secret in it: put the address into a file that only Alertmanager can read, write "
            '[receivers.webhook.NAME] with url_file = "/run/secrets/NAME", and notify "webhook:NAME"',
        )
    return url


def _split(url: str) -> SplitResult | None:
    try:
        parts = urlsplit(url)
        has_host = bool(parts.hostname) and parts.port != 0
    except ValueError:  # a port that is no number, brackets that are not closed
        return None
    return parts if has_host and _ADDRESS.fullmatch(url) else None


def _tells_a_secret(parts: SplitResult) -> bool:
    host = parts.hostname or ""
    if parts.username is not None or any(host == known or host.endswith(f".{known}") for known in _SECRET_PATHS):
        return True
    return any(_SECRET_WORD.search(word) for word, _ in parse_qsl(parts.query, keep_blank_values=True))
