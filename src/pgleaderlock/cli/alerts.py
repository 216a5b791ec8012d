"""``pgleaderlock alerts``: from an operator's TOML to the files that Prometheus, Alertmanager and Grafana read."""

import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click

from pgleaderlock.cli.console import print_json
from pgleaderlock.cli.options import wrong_usage
from pgleaderlock.cli.words import WORDS, texts
from pgleaderlock.errors import MissingExtra
from pgleaderlock.ops.alerts import (
    Alert,
    Config,
    Remark,
    alertmanager_config,
    dashboard,
    default_alerts,
    prometheus_rules,
    unheard,
)
from pgleaderlock.ops.alerts.export import json_text, write, yaml_text
from pgleaderlock.ops.alerts.model import parse


@click.group(short_help=WORDS["alerts"].short)
def alerts() -> None:
    """Export alerts that are written in TOML, for Prometheus, Alertmanager and Grafana."""


@alerts.command("export", **texts("alerts export"))
@click.option(
    "--config", type=click.Path(path_type=Path), metavar="FILE", help="The TOML with [[alerts]] and [receivers]."
)
@click.option(
    "--out",
    type=click.Path(path_type=Path, file_okay=False),
    metavar="DIR",
    help="Write rules.yml, alertmanager.yml and grafana.json to this folder. [default: the rules go to stdout]",
)
@click.option(
    "--prefix", metavar="NAME", help="What the metrics begin with. [default: metrics.prefix of FILE, or pgleaderlock]"
)
@click.option("--defaults", is_flag=True, help="Add the default alerts. They are exported anyway if FILE has none.")
@click.option(
    "--role",
    "roles",
    multiple=True,
    metavar="NAME",
    help="A role that must have a leader; may be repeated. [default: FILE's]",
)
@click.option(
    "--lease",
    "--lease-s",
    "lease_s",
    type=float,
    metavar="SECONDS",
    help="The lease of your candidates, for the alert on slow renewals. [default: FILE's lease_duration, or 15]",
)
@click.option("--json", "as_json", is_flag=True, help="Print the result as one JSON object.")
@click.option("--force", is_flag=True, help="Replace files that were not written by this command.")
def alerts_export(
    *,
    config: Path | None,
    out: Path | None,
    prefix: str | None,
    defaults: bool,
    roles: tuple[str, ...],
    lease_s: float | None,
    as_json: bool,
    force: bool,
) -> None:
    """Compile alerts to rules for Prometheus, a configuration for Alertmanager, and a dashboard for Grafana.

    A condition with a known mistake (a sum over no series, a rate per second) is corrected, and stderr says how and
    why; as_written = true keeps an alert as it is.
    """
    if config is None and not defaults:
        raise click.UsageError("give it --config FILE, or --defaults for the default alerts alone.")
    cluster = _cluster(config)
    prefix = prefix or cluster.prefix
    lease_s = cluster.lease_s if lease_s is None else lease_s
    with wrong_usage():
        chosen, settings = _chosen(config, prefix, roles, cluster.roles, lease_s, defaults=defaults)
        document, remarks = prometheus_rules(chosen, prefix)
        texts = {"rules.yml": yaml_text(document)}
        if out is not None:
            told = alertmanager_config(chosen, settings.receivers, _source(config))
            texts |= {"alertmanager.yml": yaml_text(told), "grafana.json": json_text(dashboard(prefix))}
    remarks += unheard(chosen) if out is not None else []
    written = [] if out is None else _write(out, texts, force=force)
    _tell(config, settings, remarks, defaults=defaults)
    if as_json:
        print_json(_fields(written, document, remarks))
    elif out is None:
        click.echo(texts["rules.yml"], nl=False)
    else:
        click.echo("\n".join(map(str, written)))


def _source(config: Path | None) -> str:
    return "the command line" if config is None else str(config)


def _load(config: Path | None) -> Config:
    if config is None:
        return Config((), (), {})
    try:
        content = tomllib.loads(config.read_bytes().decode("utf-8"))
    except OSError as error:
        raise click.UsageError(f"cannot read {config}: {error.strerror}") from error
    except UnicodeDecodeError:
        raise click.UsageError(f"{config} is not text in UTF-8: is it another file?") from None
    except tomllib.TOMLDecodeError as error:
        raise click.UsageError(f"{config} is not TOML: {error}") from None
    return parse(content, str(config))


@dataclass(frozen=True, slots=True)
class _Cluster:
    """The settings of the nodes in the same file, if it has any: roles, lease and prefix of the metrics."""

    prefix: str = "pgleaderlock"
    lease_s: float = 15.0
    roles: tuple[str, ...] = ()


def _cluster(config: Path | None) -> _Cluster:
    """Read them leniently: a file of alerts alone is valid, and ``config check`` reports errors in the rest."""
    try:
        from pgleaderlock.ops.config import ConfigError, load_config  # noqa: PLC0415 - it needs an extra of its own
    except MissingExtra:
        return _Cluster()
    try:
        found = load_config(config, environ={})
    except (ConfigError, OSError):
        return _Cluster()
    return _Cluster(found.metrics.prefix, found.election.lease_s, tuple(role.name for role in found.election.roles))


def _chosen(
    config: Path | None, prefix: str, asked: tuple[str, ...], known: tuple[str, ...], lease_s: float, *, defaults: bool
) -> tuple[list[Alert], Config]:
    """Return the file's alerts, then the default alerts that it does not define itself; each with its receivers."""
    settings = _load(config)
    own = list(settings.addressed)
    if own and not defaults:
        if asked:
            raise click.UsageError("--role is for the default alerts: add --defaults, or name the role in your own.")
        return own, settings
    names = {alert.name for alert in own}
    more = default_alerts(prefix, lease_s=lease_s, roles=asked or known, notify=settings.notify)
    return own + [alert for alert in more if alert.name not in names], settings


def _write(out: Path, texts: dict[str, str], *, force: bool) -> list[Path]:
    try:
        return write(out, texts, force=force)
    except FileExistsError as error:
        raise click.UsageError(str(error)) from error
    except OSError as error:
        raise click.ClickException(f"cannot write to {out}: {error.strerror or error}") from error


def _tell(config: Path | None, settings: Config, remarks: list[Remark], *, defaults: bool) -> None:
    if config is not None and not settings.alerts and not defaults:
        click.echo(f"{config} has no [[alerts]]: the default ones are exported.", err=True)
    for remark in remarks:
        click.echo(f'Warning: alert "{remark.alert}": {remark.text}', err=True)


def _fields(written: list[Path], document: dict[str, Any], remarks: list[Remark]) -> dict[str, Any]:
    rules = document["groups"][0]["rules"]
    return {
        "written": [str(path) for path in written],
        "alerts": [
            {
                "name": rule["alert"],
                "severity": rule["labels"]["severity"],
                "condition": rule["expr"],
                "for": rule.get("for"),
                "role": rule["labels"].get("role"),
            }
            for rule in rules
        ],
        "warnings": [{"alert": remark.alert, "kind": remark.kind, "text": remark.text} for remark in remarks],
    }
