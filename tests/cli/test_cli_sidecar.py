"""``pgleaderlock sidecar``: real processes that take part, answer over HTTP, and hand over."""

import asyncio
import signal
import subprocess
import sys
import uuid
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from pgleaderlock.cli import exit_codes
from pgleaderlock.testing.fake_kubernetes import FakeKubernetes
from tests.conftest import Postgres
from tests.support.cli import CLI
from tests.support.json_shapes import assert_shape, documented
from tests.support.operators import run
from tests.support.processes import Process
from tests.support.programs import needs
from tests.support.sidecars import SidecarProcess, ask, sidecar, until_answer

pytestmark = pytest.mark.slow  # each starts sidecars

LEASE = ("--lease", "3", "--retry-base", "0.05", "--retry-max", "0.2")


@pytest.fixture(params=["sessions", "kubernetes"])
async def options(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch) -> AsyncIterator[tuple[str, ...]]:
    if request.param == "sessions":
        postgres: Postgres = request.getfixturevalue("postgres")
        yield ("--dsn", postgres.dsn, "--role", uuid.uuid4().hex, "--settle", "0", *LEASE)
        return
    async with FakeKubernetes() as server:
        monkeypatch.setenv("KUBECONFIG", str(server.write_kubeconfig(tmp_path / "kubeconfig")))
        yield ("--url", "k8s://default/sidecar", *LEASE)


@pytest.mark.slow
async def test_sigterm_hands_over_and_a_killed_leader_is_replaced(options: tuple[str, ...]):
    async with sidecar(*options, "--address", "http://10.0.0.7:80", pod="pod-1") as first:
        body = await until_answer(first.url, "leader", 200)
        assert_shape(body, documented("sidecar", "answer"), "sidecar")
        async with sidecar(*options, pod="pod-2") as second:
            seen = await until_answer(second.url, "election", 200, leadership="led")
            assert seen["leader"]["name"] == body["leader"]["name"]
            assert seen["leader"]["address"] == "http://10.0.0.7:80"
            assert await ask(first.url, "") == await ask(second.url, "")
            first.signal(signal.SIGTERM)
            assert await asyncio.to_thread(first.wait, 60.0) == exit_codes.CLEAN
            await until_answer(second.url, "leader", 200)
            async with sidecar(*options, pod="pod-3") as third:
                name = (await ask(second.url, "leader"))[1]["leader"]["name"]
                await until_answer(third.url, "election", 200, leadership="led")
                assert (await ask(third.url, "election"))[1]["leader"]["name"] == name
                second.signal(signal.SIGKILL)
                await asyncio.to_thread(second.wait, 60.0)
                body = await until_answer(third.url, "leader", 200)
                assert body["leader"]["name"] != name
                third.signal(signal.SIGTERM)
                assert await asyncio.to_thread(third.wait, 60.0) == exit_codes.CLEAN


async def test_a_pod_is_named_as_the_leader_elector_named_it(tmp_path: Path):
    async with FakeKubernetes() as server:
        kubeconfig = str(server.write_kubeconfig(tmp_path / "kubeconfig"))
        options = ("--url", "k8s://default/pods")
        async with sidecar(*options, pod="worker-6d4cf-x2x8k", KUBECONFIG=kubeconfig) as process:
            await until_answer(process.url, "leader", 200)
            assert await ask(process.url, "") == (200, {"name": "worker-6d4cf-x2x8k"})


async def test_with_a_notice_the_lock_is_released_after_it(tmp_path: Path):
    options = ("--url", f"file://{tmp_path}/lock", *LEASE)
    async with sidecar(*options, "--notice", "0.2") as process:
        await until_answer(process.url, "leader", 200)
        process.signal(signal.SIGTERM)
        await asyncio.to_thread(process.wait_for, "released", 60.0)
        assert await asyncio.to_thread(process.wait, 60.0) == exit_codes.CLEAN


def test_a_configured_role_is_served(tmp_path: Path):
    config = tmp_path / "node.toml"
    config.write_text(f'[cluster.leader_election]\nbackend = "file://{tmp_path}/lock"\nroles = ["one"]\n')
    with SidecarProcess("--config", str(config)) as process:
        process.wait_for("this process leads", 60.0)
        process.signal(signal.SIGTERM)
        assert process.wait(60.0) == exit_codes.CLEAN


def test_wrong_usage_is_refused_before_anything_is_started(tmp_path: Path):
    url = f"file://{tmp_path}/lock"
    result = run("sidecar", "--url", url, "--notice", "6")
    assert result.exit_code == exit_codes.USAGE
    assert "--notice must be at most 5 seconds" in result.stderr
    result = run("sidecar", "--url", url, "--host", "")
    assert result.exit_code == exit_codes.USAGE
    assert "host must not be empty" in result.stderr
    with SidecarProcess("--url", url) as first:
        port = first.find_url().rstrip("/").rpartition(":")[2]
        with Process(*CLI, "sidecar", "--url", url, "--port", port) as second:
            second.wait_for(f"cannot listen on 127.0.0.1:{port}", 60.0)
            assert second.wait(60.0) == exit_codes.USAGE


def test_without_the_extra_the_sidecar_names_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    for module in [
        name for name in sys.modules if name.startswith(("pgleaderlock.ops.http", "pgleaderlock.ops.sidecar"))
    ]:
        monkeypatch.delitem(sys.modules, module)
    monkeypatch.setitem(sys.modules, "uvicorn", None)
    result = run("sidecar", "--url", f"file://{tmp_path}/lock")
    assert result.exit_code != exit_codes.CLEAN
    assert "the sidecar needs the package uvicorn" in str(result.exception)


@needs("curl")
async def test_the_loop_of_the_docs_works_on_the_leader_alone(tmp_path: Path):
    page = Path(__file__).parents[2] / "docs" / "how-to" / "run-a-sidecar.md"
    loop = page.read_text(encoding="utf-8").partition("```sh\n")[2].partition("```")[0]
    options = ("--url", f"file://{tmp_path}/lock", *LEASE)
    async with sidecar(*options) as first:
        await until_answer(first.url, "leader", 200)
        async with sidecar(*options) as second:
            for process, is_expected in ((first, True), (second, False)):
                # It ends after the first answer, and says which it was.
                script = loop.replace("http://127.0.0.1:4040/", process.url).replace("sleep 1", "sleep 0")
                script = script.replace("./do-one-piece-of-work", "{ echo works; exit; }").replace(
                    "done\n", "exit 3; done\n"
                )
                done = await asyncio.to_thread(
                    subprocess.run, ["sh", "-c", script], capture_output=True, text=True, check=False, timeout=60
                )
                assert (done.stdout, done.returncode) == (("works\n", 0) if is_expected else ("", 3))
