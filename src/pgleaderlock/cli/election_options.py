"""The settings of an election as options of the command line, made from :mod:`pgleaderlock.options`.

They are no arguments of the commands: code that makes an election asks :func:`given_settings`.
"""

from collections.abc import Callable
from dataclasses import replace
from typing import Any, TypeVar

import click
from click.core import ParameterSource

from pgleaderlock.cli.options import naming_options, seconds_option, with_options, wrong_usage
from pgleaderlock.options import BY_NAME, POD_LABEL, SETTINGS, Setting
from pgleaderlock.retry import ExponentialBackoff

F = TypeVar("F", bound=Callable[..., Any])

_GIVEN = "pgleaderlock.settings"
_BESIDE = "pgleaderlock.beside"
_MORE: dict[str, dict[str, Any]] = {
    "schema_owner": {"metavar": "ROLE", "envvar": "PGLEADERLOCK_SCHEMA_OWNER", "show_envvar": True},
    "pod_label": {"metavar": "KEY=VALUE"},
}


def given_settings() -> dict[str, Any]:
    """Return the settings that the command line gives, by their names in the library."""
    return dict(click.get_current_context().meta.get(_GIVEN, {}))


def given_pod_label() -> str | None:
    """Return the pod label that the command line gives."""
    label: str | None = click.get_current_context().meta.get(_BESIDE, {}).get(POD_LABEL.name)
    return label


def schema_owner() -> str | None:
    """Return the database role that the command line accepts as owner of the tables."""
    return given_settings().get("schema_owner")


def allows_pooler() -> bool:
    """Return whether the command line allows a pooler between candidate and server."""
    return bool(given_settings().get("allow_pooler"))


def election_options(command: F) -> F:
    """Add an option for each setting that a configuration may have too."""
    return with_options(command, *(_option(each) for each in SETTINGS if each.key is not None))


def _option(setting: Setting, kept: str = _GIVEN) -> Callable[[F], F]:
    more: dict[str, Any] = {}
    if setting.type is bool:
        more |= {"is_flag": True}
    elif setting.is_seconds:
        more |= {"type": float, "metavar": "SECONDS"}
    elif setting.choices:
        more |= {"type": click.Choice(setting.choices)}
    else:
        more |= {"metavar": "NAME", **_MORE.get(setting.name, {})}
    if setting.type is not bool and not setting.otherwise:
        more |= {"default": setting.default, "show_default": True}
    return click.option(
        setting.flag, setting.name, expose_value=False, callback=_keeper(setting, kept), help=setting.flag_help, **more
    )


def _keeper(setting: Setting, kept: str) -> Callable[[click.Context, click.Parameter, Any], None]:
    """Return a callback that checks a given value, in the library's words and under the option's name, and keeps it."""

    def keep(context: click.Context, _option: click.Parameter, value: Any) -> None:
        if context.get_parameter_source(setting.name) is ParameterSource.DEFAULT:
            return
        with wrong_usage():
            replace(setting, name=setting.flag).check(value)
        is_off = setting.default is True  # the flag is --no-witness
        context.meta.setdefault(kept, {})[setting.name] = not value if is_off else value

    return keep


allow_pooler_option = _option(BY_NAME["allow_pooler"])
auto_reacquire_option = _option(BY_NAME["auto_reacquire"])
schema_owner_option = _option(BY_NAME["schema_owner"])
pod_label_option = _option(POD_LABEL, _BESIDE)  # no setting of a lock: cli/elect.py obeys it


# --- Commands that take part until they are asked to stop ---


def candidate_options(command: F) -> F:
    """Add the options that say which lock, with which settings, how often to try, and what to log."""
    return with_options(
        command,
        naming_options,
        election_options,
        pod_label_option,
        seconds_option("--retry-base", "Base delay of the exponential back-off between attempts.", default=1.0),
        seconds_option("--retry-max", "Longest delay of the back-off.", default=30.0),
        auto_reacquire_option,
        click.option(
            "-q", "--quiet", is_flag=True, help="Do not log a follower's attempts, only changes of leadership."
        ),
    )


def chosen_backoff(retry_base_s: float, retry_max_s: float) -> ExponentialBackoff:
    """Return the strategy of ``--retry-base`` and ``--retry-max``."""
    with wrong_usage(said="--retry-base and --retry-max: {}"):
        return ExponentialBackoff(retry_base_s, retry_max_s)
