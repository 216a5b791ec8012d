"""Alembic and Django, the real ones, run the migrations of the page."""

import re
import subprocess
import sys
from pathlib import Path

import psycopg
import pytest

from pgleaderlock.postgres._schema_versions import version_sql
from pgleaderlock.postgres.schema import known_version
from pgleaderlock.testing.embedded import Server

pytestmark = pytest.mark.slow

PAGE = Path(__file__).parents[2] / "docs" / "how-to" / "upgrade-the-tables.md"
OLD = Path(__file__).parents[1] / "postgres" / "schema_of_0_1_0.sql"

ALEMBIC_ENV = """
import os
import psycopg
from alembic import context
from sqlalchemy import create_engine

if context.is_offline_mode():
    context.configure(dialect_name="postgresql")
    with context.begin_transaction():
        context.run_migrations()
else:
    engine = create_engine("postgresql+psycopg://", creator=lambda: psycopg.connect(os.environ["PG_DSN"]))
    with engine.connect() as connection:
        context.configure(connection=connection)
        with context.begin_transaction():
            context.run_migrations()
"""
ALEMBIC_TEMPLATE = "[alembic]\nscript_location = %(here)s\npath_separator = os\n"
DJANGO_SETTINGS = """
from psycopg.conninfo import conninfo_to_dict
import os

parts = conninfo_to_dict(os.environ["PG_DSN"])
names = {"NAME": "dbname", "USER": "user", "HOST": "host", "PORT": "port"}
DATABASES = {"default": {"ENGINE": "django.db.backends.postgresql", **{a: parts[b] for a, b in names.items()}}}
INSTALLED_APPS = ["tables"]
USE_TZ = True
"""


def program_of(name: str, *, from_version: int) -> str:
    """Return the migration on the page, for a database with tables of this version."""
    found = re.search(rf"<!-- run: {name} -->\n```python\n(.*?)```", PAGE.read_text(), re.DOTALL)
    assert found is not None
    program = found[1]
    assert program.count("schema_sql()") == 1
    return program.replace(
        "schema_sql()", f"schema_sql(from_version={from_version})" if from_version else "schema_sql()"
    )


@pytest.fixture(params=[0, 1], ids=["new", "of 0.1.0"])
def before(request: pytest.FixtureRequest, own_server: Server) -> int:
    """The version that is there before the migration."""
    if request.param:
        with psycopg.connect(own_server.dsn, autocommit=True) as owner:
            owner.execute(OLD.read_text().replace("{schema}", '"pgleaderlock"').encode())
    return int(request.param)


def run(folder: Path, dsn: str, *words: str) -> str:
    environment = {"PG_DSN": dsn, "PYTHONPATH": str(folder), "DJANGO_SETTINGS_MODULE": "settings"}
    done = subprocess.run(
        [sys.executable, "-m", *words], cwd=folder, env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def version_in(dsn: str) -> object:
    with psycopg.connect(dsn) as connection:
        row = connection.execute(f"SELECT {version_sql('pgleaderlock', ['terms', 'asks'])}".encode()).fetchone()
    assert row is not None
    return row[0][0]


@pytest.mark.parametrize("mode", ["online", "offline"])
def test_alembic_makes_and_upgrades_the_tables(own_server: Server, tmp_path: Path, before: int, mode: str):
    (tmp_path / "alembic.ini").write_text(ALEMBIC_TEMPLATE)
    (tmp_path / "env.py").write_text(ALEMBIC_ENV)
    (tmp_path / "versions").mkdir()
    (tmp_path / "versions" / "pgleaderlock_4.py").write_text(program_of("alembic", from_version=before))
    if mode == "online":
        run(tmp_path, own_server.dsn, "alembic", "upgrade", "head")
    else:
        with psycopg.connect(own_server.dsn, autocommit=True) as owner:
            owner.execute(run(tmp_path, own_server.dsn, "alembic", "upgrade", "head", "--sql").encode())
    assert version_in(own_server.dsn) == known_version()
    run(tmp_path, own_server.dsn, "alembic", "downgrade", "base")
    assert version_in(own_server.dsn) == known_version()


def test_django_makes_and_upgrades_the_tables(own_server: Server, tmp_path: Path, before: int):
    migrations = tmp_path / "tables" / "migrations"
    migrations.mkdir(parents=True)
    for each in (migrations.parent, migrations):
        (each / "__init__.py").touch()
    (tmp_path / "settings.py").write_text(DJANGO_SETTINGS)
    (migrations / "0001_pgleaderlock.py").write_text(program_of("django", from_version=before))
    assert "Applying tables.0001_pgleaderlock... OK" in run(tmp_path, own_server.dsn, "django", "migrate")
    assert version_in(own_server.dsn) == known_version()
    run(tmp_path, own_server.dsn, "django", "migrate", "tables", "zero")
    assert version_in(own_server.dsn) == known_version()
