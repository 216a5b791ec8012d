"""The store on real servers: tokens, hand-over, members that fail, TLS, users, errors."""

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Callable
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from pgleaderlock import ConnectionError, Election, FixedInterval, LeadershipLost, open_backend
from pgleaderlock.models import Grant
from pgleaderlock.stores import BackendSettings
from pgleaderlock.stores.base import Backend
from pgleaderlock.stores.record import Claim, Record
from pgleaderlock.stores.watching import find_leader
from pgleaderlock_etcd import EtcdStore, GatewayClient, open_etcd
from pgleaderlock_etcd.api import Compacted
from pgleaderlock_etcd.url import parse
from tests_etcd.server import Etcd

SECRET = "hunter2-secret"
LEASE_S = 15.0
_numbers = count(1)


@contextlib.asynccontextmanager
async def candidate(url: str, **settings: Any) -> AsyncIterator[Backend]:
    backend = open_backend(url, **{"lease_s": LEASE_S, **settings})
    try:
        yield backend
    finally:
        await backend.close()


def new_key() -> str:
    return f"locks/{next(_numbers)}"


async def acquired(backend: Backend) -> Grant:
    grant = await backend.try_acquire()
    assert grant is not None
    assert grant.token is not None
    return grant


def client_of(url: str) -> GatewayClient:
    return GatewayClient(parse(url), next_after_s=5.0)


# --- Tokens -----------------------------------------------------------------------------------------------------------


async def test_tokens_grow_when_the_key_was_deleted_and_no_candidate_remembers_it(etcd: Etcd):
    key = new_key()
    tokens: list[int] = []
    for _ in range(3):
        async with candidate(f"etcd://{etcd.hosts}/{key}") as newcomer:
            grant = await acquired(newcomer)
            tokens.append(grant.token or 0)
            assert (await newcomer.renew(grant)).token == grant.token
            await newcomer.release(grant)
        etcd.ctl("del", key)
    assert tokens == sorted(set(tokens))


async def test_tokens_grow_on_a_cluster_whose_revisions_began_anew(etcd: Etcd):
    """As after a restore from a backup that has the record of a greater token."""
    key = new_key()
    text = json.dumps({"holder": "", "token": 10**12, "lease_s": LEASE_S, "since": None})
    etcd.ctl("put", key, text)
    async with candidate(f"etcd://{etcd.hosts}/{key}") as newcomer:
        grant = await acquired(newcomer)
        assert grant.token == 10**12 + 1
        assert (await newcomer.renew(grant)).token == grant.token


async def test_a_write_whose_answer_was_lost_is_found_to_be_our_own(etcd: Etcd):
    async with candidate(f"etcd://{etcd.hosts}/{new_key()}") as backend:
        store = backend._store  # type: ignore[attr-defined]
        write = store.write

        async def lose_the_answer(claim: Claim, replacing: Record | None) -> Record | None:
            await write(claim, replacing)
            store.write = write
            raise ConnectionError("the answer was lost")

        store.write = lose_the_answer
        with pytest.raises(ConnectionError):
            await backend.try_acquire()
        await acquired(backend)


@pytest.mark.parametrize(
    "value",
    [
        "",
        "hello",
        "[]",
        '{"holder": 1, "token": 1, "lease_s": 1}',
        '{"holder": "x", "token": -1, "lease_s": 1}',
        '{"holder": "x", "token": true, "lease_s": 1}',
        '{"holder": "x", "lease_s": 1}',
        '{"holder": "x", "token": 1, "lease_s": "long"}',
        '{"holder": "x", "token": 1, "lease_s": 1, "since": 5}',
    ],
)
async def test_a_key_that_another_program_wrote_is_left_alone(etcd: Etcd, value: str):
    key = new_key()
    await _put(etcd, key, value.encode())
    async with candidate(f"etcd://{etcd.hosts}/{key}") as backend:
        with pytest.raises(ConnectionError, match=f"pgleaderlock did not write: .* etcdctl del {key}"):
            await backend.try_acquire()
    assert (await _read(etcd, key)) == value.encode()


async def _put(etcd: Etcd, key: str, value: bytes) -> None:
    client = client_of(f"etcd://{etcd.hosts}/{key}")
    assert await client.replace(key.encode(), value, 0) is not None
    await client.close()


async def _read(etcd: Etcd, key: str) -> bytes | None:
    client = client_of(f"etcd://{etcd.hosts}/{key}")
    seen = await client.read(key.encode())
    await client.close()
    return seen.value


# --- The watch --------------------------------------------------------------------------------------------------------


async def test_a_release_wakes_the_follower_long_before_a_lease_or_a_poll(etcd: Etcd):
    async with (
        candidate(f"etcd://{etcd.hosts}/{(key := new_key())}", lease_s=600.0) as first,
        candidate(f"etcd://{etcd.hosts}/{key}", lease_s=600.0) as second,
    ):
        grant = await acquired(first)
        assert await second.try_acquire() is None
        store: EtcdStore = second._store  # type: ignore[attr-defined]
        store._poll_pause_s = lambda: 600.0  # type: ignore[method-assign]
        waiting = asyncio.create_task(second.wait(600.0))
        await first.release(grant)
        async with asyncio.timeout(60):
            await waiting
        assert (await acquired(second)).token > grant.token  # type: ignore[operator]


async def test_a_leader_whose_key_is_taken_or_deleted_notices_at_once(etcd: Etcd):
    key = new_key()
    async with candidate(f"etcd://{etcd.hosts}/{key}", lease_s=600.0) as leader:
        await acquired(leader)
        losing = asyncio.create_task(leader.lost())
        other = json.dumps({"holder": "other", "token": 10**9, "lease_s": 600.0, "since": None})
        etcd.ctl("put", key, other)
        async with asyncio.timeout(60):
            assert isinstance(await losing, LeadershipLost)
    async with candidate(f"etcd://{etcd.hosts}/{(key := new_key())}", lease_s=600.0) as leader:
        grant = await acquired(leader)
        losing = asyncio.create_task(leader.lost())
        etcd.ctl("del", key)
        async with asyncio.timeout(60):
            assert await losing is None  # "check now"
        with pytest.raises(LeadershipLost, match="is gone"):
            await leader.renew(grant)


@pytest.mark.slow
async def test_a_follower_watches_on_after_a_compaction(make_etcd: Callable[..., Etcd]):
    etcd = make_etcd()
    async with (
        candidate(f"etcd://{etcd.hosts}/a", lease_s=600.0) as first,
        candidate(f"etcd://{etcd.hosts}/a", lease_s=600.0) as second,
    ):
        grant = await acquired(first)
        assert await second.try_acquire() is None
        for number in range(3):
            etcd.ctl("put", "other", str(number))
        revision = json.loads(etcd.ctl("get", "other", "-w", "json"))["header"]["revision"]
        etcd.ctl("compaction", str(revision))
        client = client_of(f"etcd://{etcd.hosts}/a")
        with pytest.raises(Compacted):
            await anext(client.watch(b"a", 2))
        await client.close()
        waiting = asyncio.create_task(second.wait(600.0))
        await first.release(grant)
        async with asyncio.timeout(60):
            await waiting
        await acquired(second)


# --- Members ----------------------------------------------------------------------------------------------------------


@pytest.mark.slow
async def test_a_leader_stays_leader_when_any_one_member_is_killed_or_frozen(make_etcd: Callable[..., Etcd]):
    cluster = make_etcd(3)
    async with candidate(f"etcd://{cluster.hosts}/a", lease_s=30.0) as leader:
        grant = await acquired(leader)
        for member in cluster.members:
            member.freeze()
            grant = await leader.renew(grant)
            member.thaw()
            cluster.wait_for(member)
        for member in cluster.members:
            member.kill()
            grant = await leader.renew(grant)
            cluster.restart(member)


@pytest.mark.slow
async def test_without_a_majority_nothing_is_granted_and_the_error_names_every_member(make_etcd: Callable[..., Etcd]):
    cluster = make_etcd(3)
    for member in cluster.members[1:]:
        member.kill()
    async with candidate(f"etcd://{cluster.hosts}/a", lease_s=60.0) as backend:
        with pytest.raises(ConnectionError) as failed:
            await backend.try_acquire()
    assert all(member.address in str(failed.value) for member in cluster.members)
    assert "majority" in str(failed.value)


async def test_a_server_that_is_not_there_is_named_with_what_happened(etcd: Etcd):
    async with candidate("etcd://127.0.0.1:1,127.0.0.1:2/a") as backend:
        with pytest.raises(
            ConnectionError, match=r"cannot read a in etcd \(http://127.0.0.1:1: .*http://127.0.0.1:2: "
        ):
            await backend.try_acquire()
    async with candidate(f"etcd://127.0.0.1:1,{etcd.hosts}/{new_key()}") as backend:
        await acquired(backend)


async def test_a_server_that_is_no_etcd_is_recognised():
    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        request = await reader.readuntil(b"\r\n\r\n")
        body = b"<html>welcome</html>"
        status = b"200 OK" if b"/v3/kv/range" in request else b"404 Not Found"
        writer.write(b"HTTP/1.1 %s\r\nContent-Length: %d\r\nConnection: close\r\n\r\n%s" % (status, len(body), body))
        await writer.drain()
        writer.close()

    async with await asyncio.start_server(answer, "127.0.0.1", 0) as server:
        port = server.sockets[0].getsockname()[1]
        client = client_of(f"etcd://127.0.0.1:{port}/a")
        with pytest.raises(ConnectionError, match="the answer is not one of etcd's v3 API"):
            await client.read(b"a")
        with pytest.raises(ConnectionError, match=r"is this etcd 3\.4 or newer"):
            await client.replace(b"a", b"", 0)
        await client.close()


async def test_an_election_hands_over_by_url(etcd: Etcd):
    """The whole way: entry point, engine, store."""
    url = f"etcd://{etcd.hosts}/{new_key()}"
    first, second = (Election(open_backend(url), retry_strategy=FixedInterval(1.0)) for _ in range(2))
    async with first:
        assert await first.wait_for_leadership(60)
        async with second:
            assert not second.is_leader
            await first.shutdown()
            assert await second.wait_for_leadership(60)
            assert not first.is_leader


# --- TLS and users ----------------------------------------------------------------------------------------------------


@pytest.mark.slow
async def test_tls_with_certificates_of_both_sides(make_etcd: Callable[..., Etcd], pki: Path, tmp_path: Path):
    both = (
        tmp_path / "authorities.crt"
    )  # the server's own too: the gateway shows the server's certificate to the server
    both.write_bytes((pki / "me.crt").read_bytes() + (pki / "server.crt").read_bytes())
    server = make_etcd(
        1,
        f"--cert-file={pki / 'server.crt'}",
        f"--key-file={pki / 'server.key'}",
        f"--trusted-ca-file={both}",
        "--client-cert-auth",
    )
    ours = f"ca={pki / 'server.crt'}&cert={pki / 'me.crt'}&key={pki / 'me.key'}"
    async with candidate(f"etcds://{server.hosts}/a?{ours}") as backend:
        await acquired(backend)
    for url, advice in (
        (f"etcds://{server.hosts}/a", "ca=/path"),
        (f"etcds://{server.hosts}/a?ca={pki / 'server.crt'}", "cert=/path and key=/path"),
        (f"etcd://{server.hosts}/a", "etcds://"),
    ):
        async with candidate(url) as backend:
            with pytest.raises(ConnectionError, match=advice):
                await backend.try_acquire()


async def test_tls_to_a_server_without_it_says_so(etcd: Etcd):
    async with candidate(f"etcds://{etcd.hosts}/a") as backend:
        with pytest.raises(ConnectionError, match=r"does not speak TLS.* write etcd://"):
            await backend.try_acquire()


async def test_a_user_where_no_user_is_checked_is_refused(etcd: Etcd):
    async with candidate(f"etcd://app:{SECRET}@{etcd.hosts}/a") as backend:
        with pytest.raises(ConnectionError, match="leave user and password out") as refused:
            await backend.try_acquire()
    assert SECRET not in str(refused.value)


@pytest.fixture
def guarded(make_etcd: Callable[..., Etcd]) -> Etcd:
    """A server on which ``app`` may use the keys below ``locks/``, and only they."""
    server = make_etcd(1, "--bcrypt-cost=4")
    for words in (
        "user add root:root",
        "user grant-role root root",
        f"user add app:{SECRET}",
        "role add app",
        "role grant-permission app readwrite locks/ --prefix=true",
        "user grant-role app app",
        "auth enable",
    ):
        server.ctl(*words.split())
    return server


@pytest.mark.slow
async def test_a_user_leads_with_a_token_that_is_replaced_when_it_is_refused(guarded: Etcd):
    url = f"etcd://app:{SECRET}@{guarded.hosts}/locks/a"
    async with candidate(url, lease_s=600.0) as first, candidate(url, lease_s=600.0) as second:
        grant = await acquired(first)
        assert await second.try_acquire() is None
        for backend in (first, second):
            backend._store._client._token = "expired.1"  # type: ignore[attr-defined]
        grant = await first.renew(grant)
        waiting = asyncio.create_task(second.wait(600.0))
        await first.release(grant)
        async with asyncio.timeout(60):
            await waiting
        await acquired(second)


@pytest.mark.parametrize(
    ("user", "key", "advice"),
    [
        (f"app:wrong-{SECRET}@", "locks/a", "log in as app .*user or password is wrong"),
        (f"app:{SECRET}@", "other", "grant-permission ROLE readwrite other"),
        ("", "locks/a", "wants a user"),
    ],
)
async def test_error_about_a_missing_permission_does_not_show_the_password(
    guarded: Etcd, user: str, key: str, advice: str
):
    async with candidate(f"etcd://{user}{guarded.hosts}/{key}") as backend:
        with pytest.raises(ConnectionError, match=advice) as refused:
            await backend.try_acquire()
    assert guarded.hosts in str(refused.value)
    assert SECRET not in str(refused.value)
    assert SECRET not in repr(refused.value.__cause__)


async def test_clients_find_the_leader_and_its_address(etcd: Etcd):
    url = f"etcd://{etcd.hosts}/{new_key()}"
    async with candidate(url, address="10.0.0.7:8080", identity="node-1") as leader:
        grant = await leader.renew(await acquired(leader))
        seen = await find_leader(url)
        assert seen is not None
        assert (seen.name, seen.address, seen.token) == ("node-1", "10.0.0.7:8080", grant.token)
        await leader.release(grant)
    assert await find_leader(url) is None


async def test_the_factory_is_that_of_the_entry_point(etcd: Etcd):
    backend = open_etcd(f"etcd://{etcd.hosts}/{new_key()}", BackendSettings(lease_s=LEASE_S, role="a/b"))
    await acquired(backend)
    holder = await backend.holder()
    assert holder is not None
    assert holder.since is not None
    await backend.close()
