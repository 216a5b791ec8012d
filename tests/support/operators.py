"""What tests of operators share with others."""

import asyncio
import json
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest
from click.testing import CliRunner, Result

from pgleaderlock.cli.commands import cli
from tests.conftest import Postgres

HOSTILE = "\x1b[31m<b>[bold red]x[/]\n\x9b2J"

SHOWN_HOSTILE = r"\x1b[31m<b>[bold red]x[/]\n\x9b2J"


def run(*words: str) -> Result:
    return CliRunner().invoke(cli, words)


async def run_beside(*words: str) -> Result:
    """Run a command while this loop goes on: its nodes have work to do."""
    return await asyncio.to_thread(run, *words)


def records(result: Result) -> list[dict[str, Any]]:
    return [json.loads(line) for line in result.stdout.splitlines()]


class Hand:
    """Writes into a registry what no node would, or what it would take one long to."""

    def __init__(self, dsn: str, schema: str) -> None:
        self.options = ("--dsn", dsn, "--schema", schema)
        assert run("schema", "apply", *self.options).exit_code == 0
        self._schema = schema
        self.connection = psycopg.connect(dsn, autocommit=True)

    def execute(self, statement: str, *parameters: Any) -> None:
        self.connection.execute(statement.replace("S.", f'"{self._schema}".').encode(), parameters)

    def line(self, event: str, ago_s: float, node: str = "web-1", token: int | None = 1, **more: Any) -> None:
        row = {"lock": "pair:1/100", "role": "scheduler", "cause": None, "missing": 0, "within_s": 0.0, **more}
        self.execute(
            "INSERT INTO S.history (lock, role, node, instance, event, token, at, cause, missing, within_s, detail)"
            " VALUES (%s, %s, %s, %s, %s, %s, clock_timestamp() - make_interval(secs => %s), %s, %s, %s, %s)",
            *(row["lock"], row["role"], node, instance_of(node), event, token, ago_s),
            *(row["cause"], row["missing"], row["within_s"], row.get("detail")),
        )

    def node(
        self, name: str, seen_ago_s: float = 0.0, heartbeat_s: float = 1000.0, instance: str | None = None
    ) -> None:
        self.execute(
            "INSERT INTO S.nodes VALUES (%s, %s, 'host-1', 17, '0.2.0.dev0', '{}', now(),"
            " clock_timestamp() - make_interval(secs => %s), %s)",
            *(instance or instance_of(name), name, seen_ago_s, heartbeat_s),
        )

    def leader(self, node: str, ago_s: float = 0.0, token: int | None = 1, **more: Any) -> None:
        row = {"lock": "pair:1/100", "role": "scheduler", "left_s": 1000.0, **more}
        self.execute(
            "INSERT INTO S.leaders VALUES (%s, %s, %s, %s, %s, clock_timestamp() - make_interval(secs => %s),"
            " clock_timestamp() - make_interval(secs => %s), clock_timestamp() + make_interval(secs => %s),"
            " NULL, 'host-1', 17, '0.2.0.dev0', '{}')",
            *(row["lock"], row["role"], instance_of(node), node, token, ago_s, row.get("renewed_ago_s", ago_s)),
            row["left_s"],
        )

    def candidate(self, node: str, **more: Any) -> None:
        row = {"lock": "pair:1/100", "role": "scheduler", "state": "follower", **more}
        self.execute(
            "INSERT INTO S.candidates VALUES (%s, %s, %s, %s, now())",
            *(instance_of(node), row["lock"], row["role"], row["state"]),
        )


def instance_of(node: str) -> str:
    return str(uuid.uuid5(uuid.NAMESPACE_DNS, ascii(node)))


@pytest.fixture
def hand(postgres: Postgres, schema: str) -> Iterator[Hand]:
    made = Hand(postgres.dsn, schema)
    with made.connection:
        yield made


@pytest.fixture
def file_of(hand: Hand, tmp_path: Path) -> Callable[..., str]:
    """Writes the configuration of a node whose registry is the one that was written by hand."""

    def write(roles: str, backend: str | None = None, registry: str = "") -> str:
        path = tmp_path / "node.toml"
        path.write_text(
            f"[cluster.leader_election]\nbackend = {json.dumps(backend or hand.options[1])}\nroles = {roles}\n"
            f"[registry]\nschema = {json.dumps(hand.options[3])}\n{registry}"
        )
        return str(path)

    return write
