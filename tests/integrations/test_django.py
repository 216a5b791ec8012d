"""Django, the real one: what leader_exec refuses at once, what it becomes, and a project that runs it."""

import os
import signal
import sys
from pathlib import Path
from typing import Any

import django
import psycopg
import pytest
from django.apps import apps as registry
from django.conf import settings
from django.core.exceptions import ImproperlyConfigured
from django.core.management import CommandError, call_command
from django.test import override_settings

from pgleaderlock.integrations.django import apps
from pgleaderlock.integrations.django.conf import find_dsn
from tests.conftest import Postgres
from tests.support.processes import Process

PROJECT = Path(__file__).parents[2] / "examples" / "django"
POSTGRESQL = {
    "ENGINE": "django.db.backends.postgresql",
    "NAME": "shop",
    "USER": "app",
    "PASSWORD": "it's secret",
    "HOST": "db",
    "PORT": 5433,
    "OPTIONS": {"sslmode": "require", "pool": True, "isolation_level": 3},
}


MANAGE = str(PROJECT / "manage.py")


@pytest.fixture(autouse=True)
def _project(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(PROJECT))
    monkeypatch.setenv("DJANGO_SETTINGS_MODULE", "shop.settings")
    monkeypatch.setattr(sys, "argv", [MANAGE, "check"])  # no process that serves
    if not settings.configured:
        django.setup()  # type: ignore[attr-defined] # our own package of that name confuses mypy


@pytest.fixture
def became(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """What the process would have become."""
    seen: list[Any] = []
    monkeypatch.setattr(os, "execve", lambda *arguments: seen.extend(arguments))
    return seen


def exec_of(became: list[Any], *words: str, **changes: Any) -> list[str]:
    with override_settings(PGLEADERLOCK={"role": "shop", "dsn": "host=db password=secret", **changes}):
        call_command("leader_exec", *words)
    arguments: list[str] = became[1]
    return arguments


def test_it_becomes_exec_around_the_command_and_no_password_is_on_the_command_line(became: list[Any]):
    options = ["--lease", "5", "--no-witness", "--wait", "0", "--once", "--restart"]
    arguments = exec_of(became, *options, "--", "run_scheduler", "--every", "5m")
    assert arguments[:6] == [sys.executable, "-m", "pgleaderlock.cli", "exec", "--role", "shop"]
    assert arguments[6:14] == [*options, "--"]
    assert arguments[-3:] == ["run_scheduler", "--every", "5m"]
    assert "secret" not in " ".join(arguments)
    assert became[2]["PG_DSN"] == "host=db password=secret"


def test_a_role_on_the_command_line_wins(became: list[Any]):
    assert exec_of(became, "--role", "other", "run_scheduler")[5] == "other"


def test_a_function_is_run_by_this_command_once_more(became: list[Any]):
    arguments = exec_of(became, "--call", "shop.jobs:nightly")
    assert arguments[-3:] == ["leader_exec", "--call-now", "shop.jobs:nightly"]


def test_and_then_it_is_called(capfd: pytest.CaptureFixture[str]):
    call_command("leader_exec", "--call-now", "shop.jobs:nightly")
    assert f"nightly job in process {os.getpid()}" in capfd.readouterr().out


def test_without_a_manage_py_it_is_django_s_own(became: list[Any], monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(sys, "argv", ["django-admin-of-nowhere"])
    assert exec_of(became, "run_scheduler")[-3:] == ["-m", "django", "run_scheduler"]


@pytest.mark.parametrize(
    ("words", "changes", "text"),
    [
        (["--", "run_schedular"], {}, "did you mean run_scheduler"),
        (["--", "xyzzy"], {}, "no management command 'xyzzy'"),
        ([], {}, "which command"),
        (["run_scheduler"], {"role": None}, "which lock"),
        (["run_scheduler"], {"rolle": "x"}, "has no rolle"),
        (["--call", "shop.jobs.yearly"], {}, "yearly"),
        (["--call", "shop.jobs.os"], {}, "no function"),
        (["--call", "shop.jobs.nightly", "run_scheduler"], {}, "not both"),
        (["--database", "other", "run_scheduler"], {}, "no database 'other'"),
    ],
)
def test_wrong_arguments_are_refused_before_the_command_waits_for_leadership(
    became: list[Any], words, changes, text: str
):
    with pytest.raises(CommandError, match=text):
        exec_of(became, *words, **changes)
    assert became == []


def test_without_the_command_line_it_says_what_to_install(became: list[Any], monkeypatch: pytest.MonkeyPatch):
    from pgleaderlock.integrations.django.management.commands import leader_exec

    monkeypatch.setattr(leader_exec, "find_spec", lambda _: None)
    with pytest.raises(CommandError, match=r"pgleaderlock\[django,cli\]"):
        exec_of(became, "run_scheduler")


def test_the_lock_is_kept_in_the_project_s_database_unless_it_says_otherwise(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(settings, "DATABASES", {"default": POSTGRESQL, "locks": {**POSTGRESQL, "NAME": "locks"}})
    with override_settings(PGLEADERLOCK={}):
        found = psycopg.conninfo.conninfo_to_dict(find_dsn())
    assert found == {
        "dbname": "shop", "user": "app", "password": "it's secret", "host": "db", "port": "5433", "sslmode": "require",
    }  # fmt: skip
    with override_settings(PGLEADERLOCK={"database": "locks"}):
        assert "dbname=locks" in find_dsn()


def test_another_database_is_refused(became: list[Any], monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(settings, "DATABASES", {"default": {"ENGINE": "django.db.backends.sqlite3"}})
    with pytest.raises(CommandError, match="no PostgreSQL"):
        exec_of(became, "run_scheduler", dsn="")


@pytest.mark.parametrize(
    ("argv", "environment", "expected"),
    [
        (["/venv/bin/gunicorn", "shop.wsgi"], {}, True),
        (["manage.py", "migrate"], {}, False),
        (["/srv/manage.py"], {}, False),
        (["/venv/lib/django/__main__.py", "migrate"], {}, False),
        (["/venv/lib/uvicorn/__main__.py", "shop.asgi:app"], {}, True),
        (["manage.py", "runserver"], {}, False),
        (["manage.py", "runserver"], {"RUN_MAIN": "true"}, True),
        (["manage.py", "runserver", "--noreload"], {}, True),
    ],
)
def test_work_runs_in_processes_that_serve(argv: list[str], environment: dict[str, str], expected: bool):
    assert apps._serves(argv, environment) is expected


@pytest.mark.parametrize(
    ("changes", "text"),
    [({"while_leader": "shop.jobs.consume"}, "list"), ({"while_leader": ["x"], "role": ""}, "no role")],
)
def test_work_that_cannot_be_found_ends_the_start_of_the_server(changes: dict[str, Any], text: str):
    with override_settings(PGLEADERLOCK={"role": "shop", **changes}), pytest.raises(ImproperlyConfigured, match=text):
        registry.get_app_config("pgleaderlock").ready()


def test_the_application_takes_part_and_stops(postgres: Postgres, monkeypatch: pytest.MonkeyPatch, capfd):
    monkeypatch.setattr(sys, "argv", ["gunicorn"])
    config = registry.get_app_config("pgleaderlock")
    work = {
        "dsn": postgres.dsn,
        "role": f"django/{os.getpid()}",
        "while_leader": ["shop.jobs:consume"],
        "options": {"settle_s": 0, "drain_s": 5.0},
    }
    with override_settings(PGLEADERLOCK=work):
        config.ready()
    assert config.lock.wait_for_leadership(30)
    config.lock.shutdown(10)
    assert f"consumes in process {os.getpid()}" in capfd.readouterr().out


@pytest.mark.slow
def test_one_of_two_servers_consumes_and_the_other_goes_on_when_it_is_killed(postgres: Postgres):
    def server() -> Process:
        words = [sys.executable, "-u", MANAGE, "runserver", "--noreload", "127.0.0.1:0"]
        return Process(*words, env={"PG_DSN": postgres.dsn})

    with server() as first:
        first.wait_for(f"consumes in process {first.pid}", 30)
        with server() as second:
            second.wait_for("Quit the server")
            first.signal(signal.SIGKILL)
            second.wait_for(f"consumes in process {second.pid}", 30)


def leader_exec(postgres: Postgres, *words: str) -> Process:
    timing = ["--lease", "3", "--health-interval", "1", "--settle", "0"]
    return Process(sys.executable, "-u", MANAGE, "leader_exec", *timing, *words, env={"PG_DSN": postgres.dsn})


@pytest.mark.slow
def test_a_management_command_runs_in_one_of_two_and_goes_on_in_the_other(postgres: Postgres):
    role = f"django/exec/{os.getpid()}"
    with leader_exec(postgres, "--role", role, "--", "run_scheduler") as first:
        term = int(first.wait_for("scheduled in process", 30).split()[-1])
        with leader_exec(postgres, "--role", role, "--", "run_scheduler") as second:
            second.wait_for("waits to lead", 30)
            first.signal(signal.SIGTERM)
            assert first.wait() == 128 + signal.SIGTERM
            assert int(second.wait_for("scheduled in process", 30).split()[-1]) > term


@pytest.mark.slow
def test_a_function_runs_while_leading_and_its_end_is_the_end(postgres: Postgres):
    with leader_exec(postgres, "--role", f"django/call/{os.getpid()}", "--call", "shop.jobs.nightly") as process:
        process.wait_for("nightly job in process", 30)
        assert process.wait() == 0
