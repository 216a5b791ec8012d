"""The programs of the page about passwords that change: each one's passwords open the sessions of a leader."""

import re
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from pgleaderlock import LeaderLock, LockKey
from tests.support.passwords import GuardedServer, guarded_server
from tests.support.postgres import QUICK

pytestmark = pytest.mark.slow  # a server whose passwords change

PAGE = Path(__file__).parents[2] / "docs" / "how-to" / "use-a-password-that-changes.md"
_PROGRAM = re.compile(r"^## ([^\n]*)\n(?:(?!^## ).)*?```python\n(.*?)```", re.MULTILINE | re.DOTALL)
PROGRAMS = dict(_PROGRAM.findall(PAGE.read_text(encoding="utf-8")))


def module(name: str, **members: Any) -> ModuleType:
    made = ModuleType(name)
    vars(made).update(members)
    return made


def stand_ins(new_token: Callable[[], str]) -> dict[str, ModuleType]:
    """Return modules with those calls of the SDKs that the page uses: the real ones need an account at each cloud."""

    def generate_db_auth_token(*, DBHostname: str, Port: int, DBUsername: str) -> str:  # noqa: N803 - AWS's names
        assert (Port, DBUsername) == (5432, "app")
        return new_token()

    class Credential:
        def get_token(self, scope: str) -> SimpleNamespace:
            assert scope.endswith("/.default")
            return SimpleNamespace(token=new_token())

    class Credentials:
        valid, token = False, ""

        def refresh(self, request: object) -> None:
            self.token = new_token()

    requests = module("google.auth.transport.requests", Request=object)
    transport = module("google.auth.transport", requests=requests)
    auth = module("google.auth", transport=transport, default=lambda scopes: (Credentials(), "project"))
    return {
        "boto3": module(
            "boto3",
            client=lambda name, region_name: SimpleNamespace(generate_db_auth_token=generate_db_auth_token),
        ),
        "azure": module("azure"),
        "azure.identity": module("azure.identity", DefaultAzureCredential=Credential),
        "google": module("google", auth=auth),
        "google.auth": auth,
        "google.auth.transport": transport,
        "google.auth.transport.requests": requests,
    }


def run_program(program: str, guarded: GuardedServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Return the page's function. A file has a new password each time it is read, like a token."""
    for name, each in stand_ins(guarded.one_time_password).items():
        monkeypatch.setitem(sys.modules, name, each)
    secret = tmp_path / "app"
    names: dict[str, Any] = {}
    exec(compile(program.replace("/run/secrets/app", str(secret)), str(PAGE), "exec"), names)
    read_password = names["read_password"]

    def after_rotation() -> str:
        secret.write_text(guarded.one_time_password() + "\n")
        return str(read_password())

    return after_rotation if "read_text" in program else read_password


def test_the_page_has_a_program_for_each_way() -> None:
    assert [name.split()[0] for name in PROGRAMS] == ["A", "Amazon", "Azure", "Google"]


@pytest.mark.parametrize("name", PROGRAMS)
async def test_a_leader_gets_its_passwords_from_the_program_of_the_page(
    name: str, server_folder_root: Path, key: LockKey, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with guarded_server(server_folder_root) as guarded:
        read_password = run_program(PROGRAMS[name], guarded, tmp_path, monkeypatch)
        lock = LeaderLock(guarded.bare_url, key=key, password=read_password, settle_s=0, retry_strategy=QUICK)
        async with lock:
            assert await lock.wait_for_leadership(60)
        assert guarded.asked >= 2
