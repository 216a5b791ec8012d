"""Finding the API server, showing it who we are, and keeping that to ourselves."""

import asyncio
import base64
import json
import os
import ssl
import sys
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from pgleaderlock import ConnectionError
from pgleaderlock.stores import kubernetes
from pgleaderlock.stores.kubernetes import ApiError, exec_plugin, new_from_env, open_kubernetes
from pgleaderlock.stores.kubernetes.client import HttpLeaseClient
from pgleaderlock.stores.kubernetes.config import Cluster, find_cluster, in_cluster, read_kubeconfig
from pgleaderlock.stores.kubernetes.credentials import Credential, FixedCredential, TokenFile
from pgleaderlock.stores.kubernetes.exec_plugin import ExecPlugin
from pgleaderlock.testing.fake_kubernetes import FakeKubernetes

SECRET = "s3cret-token"
V1, V1BETA1 = "client.authentication.k8s.io/v1", "client.authentication.k8s.io/v1beta1"


@pytest.fixture
async def server() -> AsyncIterator[FakeKubernetes]:
    async with FakeKubernetes(tokens=(SECRET,)) as server:
        server.api.create("default", {"metadata": {"name": "job"}, "spec": {}})
        yield server


async def fetch(cluster: Cluster) -> dict[str, Any]:
    client = HttpLeaseClient(cluster, request_timeout_s=2)
    try:
        return await client.get("default", "job")
    finally:
        await client.close()


def write_config(path: Path, user: dict[str, Any] | None = None, **cluster: Any) -> Path:
    content = {
        "current-context": "here",
        "contexts": [{"name": "here", "context": {"cluster": "c", "user": "u", "namespace": "team"}}],
        "clusters": [{"name": "c", "cluster": {"server": "https://192.0.2.1:6443/", **cluster}}],
        "users": [{"name": "u", "user": user or {}}],
    }
    path.write_text(json.dumps(content), encoding="utf-8")  # JSON is YAML
    return path


def beside(script: Path, kind: str) -> str:
    """Return what the plug-in left beside itself."""
    return Path(f"{script}.{kind}").read_text(encoding="utf-8")


def plugin(path: Path, api_version: str = V1, **status: Any) -> dict[str, Any]:
    """Return the settings of a plug-in that counts its calls and prints its input."""
    answer = {"apiVersion": api_version, "kind": "ExecCredential", "status": status}
    path.write_text(
        "import os, sys\n"
        f"open({str(path) + '.calls'!r}, 'a').write('x')\n"
        f"open({str(path) + '.info'!r}, 'w').write(os.environ['KUBERNETES_EXEC_INFO'] + os.environ.get('EXTRA', ''))\n"
        f"print({json.dumps(answer)!r})\n",
        encoding="utf-8",
    )
    return {"apiVersion": api_version, "command": sys.executable, "args": [str(path)]}


# --- Tokens --------------------------------------------------------------------------------------------------------


async def test_a_token_of_the_kubeconfig(server: FakeKubernetes, tmp_path: Path) -> None:
    path = server.write_kubeconfig(tmp_path / "config", user={"token": SECRET})
    assert (await fetch(read_kubeconfig(path)))["kind"] == "Lease"


async def test_a_refused_token_says_so_and_is_not_shown(server: FakeKubernetes) -> None:
    cluster = Cluster(server.url, FixedCredential(Credential("wr0ng-token")))
    with pytest.raises(ApiError, match="does not accept our credentials") as caught:
        await fetch(cluster)
    assert caught.value.status == 401
    shown = (
        f"{caught.value!r} {caught.value.__cause__!r} {cluster!r} {cluster.credentials!r} {Credential('wr0ng-token')!r}"
    )
    assert "wr0ng" not in shown
    assert server.asked == ["get", "get"]  # asked for another, once


async def test_a_token_that_was_replaced_is_read_again_when_the_old_one_is_refused(
    server: FakeKubernetes, tmp_path: Path
) -> None:
    file = tmp_path / "token"
    file.write_text(SECRET + "\n")
    client = HttpLeaseClient(Cluster(server.url, TokenFile(file)))
    await client.get("default", "job")
    file.write_text("second")
    server.tokens = {"second"}
    await client.get("default", "job")
    async for _ in client.watch("default", "job", "1"):
        break
    await client.close()


async def test_a_token_file_is_read_again_every_minute(tmp_path: Path) -> None:
    now = 1000.0
    file = tmp_path / "token"
    file.write_text("first")
    source = TokenFile(file, clock=lambda: now)
    assert (await source.get()).token == "first"
    file.write_text("second")
    now += 59.9
    assert (await source.get()).token == "first"
    now += 0.2
    assert (await source.get()).token == "second"


@pytest.mark.parametrize("content", [b"", b"  \n", b"\xff\xfe", b"two\nlines"])
async def test_a_token_file_without_a_token(tmp_path: Path, content: bytes) -> None:
    file = tmp_path / "token"
    file.write_bytes(content)
    with pytest.raises(ConnectionError, match="token file"):
        await TokenFile(file).get()
    with pytest.raises(ConnectionError, match="cannot read the Kubernetes token file"):
        await TokenFile(tmp_path / "missing").get()


@pytest.mark.parametrize("api_version", [V1, V1BETA1])
async def test_an_exec_plugin_is_asked_once_while_its_token_lasts(
    server: FakeKubernetes, tmp_path: Path, api_version: str
) -> None:
    script = tmp_path / "plugin.py"
    settings = plugin(script, api_version, token=SECRET, expirationTimestamp="2999-01-01T00:00:00Z")
    settings |= {"env": [{"name": "EXTRA", "value": "more"}], "provideClusterInfo": True}
    path = server.write_kubeconfig(tmp_path / "config", user={"exec": settings})
    client = HttpLeaseClient(read_kubeconfig(path), request_timeout_s=2)
    for _ in range(3):
        await client.get("default", "job")
    assert beside(script, "calls") == "x"
    info = beside(script, "info")
    assert info.endswith("more")
    told = json.loads(info.removesuffix("more"))
    assert told["apiVersion"] == api_version
    assert told["spec"] == {"interactive": False, "cluster": {"server": server.url}}
    server.tokens = {"other"}
    with pytest.raises(ApiError):
        await client.get("default", "job")
    assert beside(script, "calls") == "xx"
    await client.close()


async def test_an_exec_plugin_is_asked_again_when_its_token_has_expired(tmp_path: Path) -> None:
    script = tmp_path / "plugin.py"
    settings = plugin(script, token=SECRET, expirationTimestamp="2020-01-01T00:00:00Z")
    source = ExecPlugin([settings["command"], *settings["args"]], V1)
    await source.get()
    await source.get()
    assert beside(script, "calls") == "xx"


@pytest.mark.parametrize(
    ("code", "said"),
    [
        ("print('tok3n not json')", "no ExecCredential"),
        ("print('[]')", "no ExecCredential"),
        ('print(\'{"apiVersion": "v0", "status": {"token": "tok3n"}}\')', "answered in 'v0'"),
        (f'print(\'{{"apiVersion": "{V1}", "status": {{}}}}\')', "neither a token nor"),
        (
            f'print(\'{{"apiVersion": "{V1}", "status": {{"token": "tok3n", "expirationTimestamp": "soon"}}}}\')',
            "no Exec",
        ),
        ("raise SystemExit('tok3n')", "exit code 1"),
    ],
)
async def test_an_exec_plugin_that_fails_is_named_and_what_it_printed_is_not(code: str, said: str) -> None:
    with pytest.raises(ConnectionError, match="the credential plug-in") as caught:
        await ExecPlugin([sys.executable, "-c", code], V1).get()
    assert said in str(caught.value)
    assert "tok3n" not in f"{caught.value!r} {caught.value.__cause__!r}"


async def test_an_exec_plugin_that_cannot_be_started_or_does_not_end(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ConnectionError, match="cannot be started"):
        await ExecPlugin(["/no/such/program"], V1).get()
    monkeypatch.setattr(exec_plugin, "_PLUGIN_TIMEOUT_S", 0.3)
    began = time.monotonic()
    with pytest.raises(ConnectionError, match=r"did not end within 0\.3 s"):
        await ExecPlugin([sys.executable, "-c", "import time; time.sleep(60)"], V1).get()
    assert time.monotonic() - began < 5


# --- kubeconfig files ----------------------------------------------------------------------------------------------


def test_what_a_kubeconfig_says(tmp_path: Path) -> None:
    settings: dict[str, Any] = {
        "insecure-skip-tls-verify": True,
        "tls-server-name": "api",
        "proxy-url": "http://192.0.2.9:3128",
    }
    cluster = read_kubeconfig(write_config(tmp_path / "config", **settings))
    assert (cluster.server, cluster.namespace, cluster.verify) == ("https://192.0.2.1:6443", "team", False)
    assert (cluster.server_name, cluster.proxy) == ("api", "http://192.0.2.9:3128")


async def test_paths_are_relative_to_their_file_and_data_wins_over_a_file(tmp_path: Path, pki: Path) -> None:
    (tmp_path / "ca.pem").write_text((pki / "server.crt").read_text())
    (tmp_path / "me.pem").write_text((pki / "me.crt").read_text())
    (tmp_path / "token").write_text("t0")
    user = {
        "client-certificate": "me.pem",
        "client-key": "missing",
        "client-key-data": base64.encodebytes((pki / "me.key").read_bytes()).decode(),  # in several lines
        "tokenFile": "token",
        "token": "ignored",
    }
    cluster = read_kubeconfig(write_config(tmp_path / "config", user, **{"certificate-authority": "ca.pem"}))
    assert cluster.authority == (pki / "server.crt").read_text()
    assert await cluster.credentials.get() == Credential(
        "t0", (pki / "me.crt").read_text(), (pki / "me.key").read_text()
    )


def test_of_several_files_the_first_that_defines_a_name_is_used(tmp_path: Path) -> None:
    first = write_config(tmp_path / "first")
    content = json.loads(first.read_text())
    content["clusters"] = []
    first.write_text(json.dumps(content))
    second = write_config(tmp_path / "second", server="https://192.0.2.2")
    environ = {"KUBECONFIG": os.pathsep.join(map(str, [tmp_path / "missing", first, second]))}
    assert find_cluster(environ).server == "https://192.0.2.2"


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("", "is empty"),
        ("a: [s3cret", r"not YAML, line 1"),
        ("{}", "names no current-context"),
        ("current-context: x", "has no context 'x'"),
        ("{current-context: x, contexts: [{name: x, context: text}]}", "context 'x' must be a mapping"),
        ("{current-context: x, contexts: [{name: x, context: {cluster: c}}]}", "has no cluster 'c'"),
        (
            "{current-context: x, contexts: [{name: x, context: {cluster: c}}], clusters: [{name: c}]}",
            "cluster 'c' has no server",
        ),
    ],
)
def test_a_kubeconfig_that_is_wrong(tmp_path: Path, content: str, said: str) -> None:
    path = tmp_path / "config"
    path.write_text(content)
    with pytest.raises(ValueError, match=said) as caught:
        read_kubeconfig(path)
    assert str(path) in str(caught.value)
    assert "s3cret" not in str(caught.value)


def test_a_kubeconfig_that_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="cannot read the kubeconfig"):
        read_kubeconfig(tmp_path)


@pytest.mark.parametrize(
    ("user", "said"),
    [
        ({"auth-provider": {}, "username": "x"}, "uses auth-provider, username, which is not supported"),
        (
            {"client-certificate-data": base64.b64encode(b"-----BEGIN CERTIFICATE-----").decode()},
            "certificate or a key, but not both",
        ),
        ({"client-certificate-data": "***"}, r"client-certificate-data of user 'u' \(not shown\) is not base64"),
        ({"client-key": "missing"}, "cannot read .*missing"),
        ({"exec": {"apiVersion": "client.authentication.k8s.io/v1alpha1", "command": "x"}}, "v1alpha1.*supported are"),
        ({"exec": {"apiVersion": V1}}, "names no command"),
        ({"exec": {"apiVersion": V1, "command": "x", "interactiveMode": "Always"}}, "needs a terminal"),
    ],
)
def test_a_user_that_we_cannot_be_is_refused_by_name(tmp_path: Path, user: dict[str, Any], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        read_kubeconfig(write_config(tmp_path / "config", user))


async def test_plugin_beside_the_kubeconfig_is_found_and_gets_the_cluster(tmp_path: Path, pki: Path) -> None:
    script = tmp_path / "plugin.py"
    settings = plugin(script, token=SECRET)
    (tmp_path / "run").symlink_to(sys.executable)
    settings |= {"command": "./run", "provideClusterInfo": True}
    authority = base64.b64encode((pki / "server.crt").read_bytes()).decode()
    more = {"certificate-authority-data": authority, "tls-server-name": "api", "insecure-skip-tls-verify": False}
    cluster = read_kubeconfig(write_config(tmp_path / "config", {"exec": settings}, **more))
    assert (await cluster.credentials.get()).token == SECRET
    told = json.loads(beside(script, "info"))["spec"]["cluster"]
    assert told == {"server": "https://192.0.2.1:6443/", **more}


# --- In a pod, and from the environment ----------------------------------------------------------------------------


@pytest.fixture
def account(tmp_path: Path, pki: Path) -> Path:
    folder = tmp_path / "serviceaccount"
    folder.mkdir()
    (folder / "token").write_text(SECRET)
    (folder / "ca.crt").write_text((pki / "server.crt").read_text())
    (folder / "namespace").write_text("of-the-pod\n")
    return folder


@pytest.mark.parametrize(
    ("host", "port", "server"),
    [("192.0.2.1", "6443", "https://192.0.2.1:6443"), ("2001:db8::1", "", "https://[2001:db8::1]:443")],
)
async def test_in_a_pod(account: Path, pki: Path, host: str, port: str, server: str) -> None:
    environ = {"KUBERNETES_SERVICE_HOST": host, "KUBERNETES_SERVICE_PORT": port}
    cluster = find_cluster(environ, account)
    assert (cluster.server, cluster.namespace, cluster.authority) == (
        server,
        "of-the-pod",
        (pki / "server.crt").read_text(),
    )
    assert (await cluster.credentials.get()).token == SECRET


def test_a_pod_without_its_files_says_which_is_missing(account: Path) -> None:
    (account / "namespace").unlink()
    assert in_cluster({"KUBERNETES_SERVICE_HOST": "192.0.2.1"}, account).namespace is None
    (account / "ca.crt").unlink()
    with pytest.raises(ValueError, match=r"cannot read .*ca\.crt"):
        in_cluster({"KUBERNETES_SERVICE_HOST": "192.0.2.1"}, account)


def test_kubeconfig_is_an_explicit_wish_and_wins_over_the_pod(account: Path, tmp_path: Path) -> None:
    environ = {"KUBERNETES_SERVICE_HOST": "192.0.2.7", "KUBECONFIG": str(write_config(tmp_path / "config"))}
    assert find_cluster(environ, account).server == "https://192.0.2.1:6443"


def test_without_any_configuration_the_places_looked_at_are_named(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"found no Kubernetes to talk to: .*\.kube/config"):
        find_cluster({"HOME": str(tmp_path)})


def test_the_config_in_the_home_folder(tmp_path: Path) -> None:
    (tmp_path / ".kube").mkdir()
    write_config(tmp_path / ".kube" / "config")
    assert find_cluster({"HOME": str(tmp_path)}).namespace == "team"


def environment(tmp_path: Path, **more: str) -> dict[str, str]:
    return {"KUBECONFIG": str(write_config(tmp_path / "config")), **more}


@pytest.mark.parametrize(
    ("more", "wanted"), [({}, "team"), ({"POD_NAMESPACE": "pods"}, "pods"), ({"POD_NAMESPACE": ""}, "team")]
)
def test_the_namespace_of_the_environment(tmp_path: Path, more: dict[str, str], wanted: str) -> None:
    backend = new_from_env("job", environ=environment(tmp_path, **more))
    assert backend.labels == {"namespace": wanted, "lease": "job"}


def test_the_identity_begins_with_the_pod_and_is_of_this_candidate_alone(tmp_path: Path) -> None:
    environ = environment(tmp_path, POD_NAME="billing-7d9f")
    identities = {new_from_env("job", environ=environ).identity for _ in range(50)}
    assert len(identities) == 50
    assert all(identity.startswith(f"billing-7d9f_{os.getpid()}_") for identity in identities)
    assert new_from_env("job", environ=environ, identity="mine").identity == "mine"
    assert new_from_env("job", environ=environment(tmp_path)).identity


def test_with_a_client_nothing_is_configured(monkeypatch: pytest.MonkeyPatch, account: Path) -> None:
    client = HttpLeaseClient(Cluster("http://127.0.0.1:1"))
    assert new_from_env("job", client=client, environ={}).labels["namespace"] == "default"
    monkeypatch.setattr(kubernetes, "SERVICE_ACCOUNT", account)
    assert new_from_env("job", client=client, environ={}).labels["namespace"] == "of-the-pod"
    assert new_from_env("job", client=client, environ={}, namespace="x").labels["namespace"] == "x"


def test_a_wrong_duration_is_refused_before_the_configuration_is_looked_for() -> None:
    with pytest.raises(ValueError, match="whole number of seconds"):
        new_from_env("job", lease_s=0.5, environ={})


def test_a_url(tmp_path: Path) -> None:
    environ = environment(tmp_path)
    assert open_kubernetes("k8s://pods/job", environ=environ).labels == {"namespace": "pods", "lease": "job"}
    assert open_kubernetes("k8s:///job", environ=environ).labels == {"namespace": "team", "lease": "job"}


@pytest.mark.parametrize(
    "url",
    [
        "k8s://pods",
        "k8s://pods/",
        "k8s://pods/a/b",
        "http://pods/job",
        "k8s://me:pw@pods/job",
        "k8s://pods/job?x=1",
        "",
    ],
)
def test_a_url_that_is_none(tmp_path: Path, url: str) -> None:
    with pytest.raises(ValueError, match="k8s://namespace/name") as caught:
        open_kubernetes(url, environ=environment(tmp_path))
    assert "pw" not in str(caught.value)


# --- What can go wrong on the way ----------------------------------------------------------------------------------


@pytest.fixture
async def open_server() -> AsyncIterator[FakeKubernetes]:
    async with FakeKubernetes() as server:
        server.api.create("default", {"metadata": {"name": "job"}, "spec": {}})
        yield server


async def test_server_that_does_not_listen_is_a_connection_error() -> None:
    with pytest.raises(ConnectionError, match=r"cannot get lease default/job: .*127\.0\.0\.1:1 cannot be reached"):
        await fetch(Cluster("http://127.0.0.1:1"))


async def test_an_address_that_is_none() -> None:
    with pytest.raises(ConnectionError, match="cannot be reached"):
        await fetch(Cluster("http://no host"))


async def test_no_answer_ends_by_the_time_limit(open_server: FakeKubernetes) -> None:
    open_server.freeze()
    client = HttpLeaseClient(Cluster(open_server.url), request_timeout_s=0.3)
    for call in (
        client.get("default", "job"),
        client.list("default", "job"),
        client.replace("default", "job", {}),
        client.create("default", {"metadata": {"name": "x"}}),
        anext(client.watch("default", "job", "1")),
    ):
        began = time.monotonic()
        with pytest.raises(ConnectionError, match=r"no answer from the API server .* within 0\.3 s"):
            await call
        assert time.monotonic() - began < 1
    await client.close()


@pytest.mark.slow
async def test_half_an_answer_ends_by_the_time_limit() -> None:
    async def drip(_reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 %d X\r\nContent-Length: 1000\r\n\r\n" % statuses.pop(0))
        try:
            for _ in range(40):
                writer.write(b" ")
                await asyncio.sleep(0.1)
        finally:
            writer.transport.abort()

    statuses = [200, 503]
    listener = await asyncio.start_server(drip, "127.0.0.1", 0)
    client = HttpLeaseClient(Cluster(f"http://127.0.0.1:{listener.sockets[0].getsockname()[1]}"), request_timeout_s=0.3)
    with pytest.raises(ConnectionError, match=r"no answer"):
        await client.get("default", "job")
    with pytest.raises(ApiError, match=r"the API server is not well \(503\)"):
        await client.get("default", "job")
    await client.close()
    listener.close()
    await asyncio.sleep(0.3)


@pytest.mark.parametrize(
    ("status", "body", "said"),
    [
        (502, "<html>Bad Gateway</html>", r"not well \(502: <html>Bad Gateway</html>\)"),
        (500, "", r"not well \(500\)"),
        (500, "[]", r"not well \(500\)"),
        (403, '{"message": "namespace x is being terminated"}', "namespace default is being deleted"),
        (404, '{"message": "leases \\"job\\" not found"}', "there is no such lease"),
        (307, "", "the API server refuses"),
        (422, '{"message": "x"}', "finds the object wrong"),
    ],
)
async def test_an_error_that_is_no_status(open_server: FakeKubernetes, status: int, body: str, said: str) -> None:
    open_server.answer_next(status, body)
    with pytest.raises(ApiError, match=said) as caught:
        await fetch(Cluster(open_server.url))
    assert caught.value.status == status


async def test_throttled_for_longer_than_there_is_time_fails_at_once(open_server: FakeKubernetes) -> None:
    open_server.throttle(1, retry_after_s=60)
    began = time.monotonic()
    with pytest.raises(ApiError, match="overloaded and asks us to come back later"):
        await fetch(Cluster(open_server.url))
    assert time.monotonic() - began < 1


async def test_throttled_twice_and_then_answered(open_server: FakeKubernetes) -> None:
    open_server.throttle(2, retry_after_s=0)
    assert await fetch(Cluster(open_server.url))
    assert open_server.asked == ["get", "get", "get"]


async def test_a_watch_that_is_refused(open_server: FakeKubernetes) -> None:
    open_server.forbidden = {"watch"}
    client = HttpLeaseClient(Cluster(open_server.url))
    with pytest.raises(ApiError, match="verb 'watch'"):
        await anext(client.watch("default", "job", "1"))
    await client.close()


# --- TLS -----------------------------------------------------------------------------------------------------------


@pytest.fixture
async def tls_server(pki: Path) -> AsyncIterator[FakeKubernetes]:
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH, cafile=str(pki / "me.crt"))
    context.load_cert_chain(pki / "server.crt", pki / "server.key")
    context.verify_mode = ssl.CERT_REQUIRED
    async with FakeKubernetes(tls=context) as server:
        server.api.create("default", {"metadata": {"name": "job"}, "spec": {}})
        yield server


def certificate_of(pki: Path) -> Credential:
    return Credential(None, (pki / "me.crt").read_text(), (pki / "me.key").read_text())


@pytest.mark.parametrize("server_name", [None, "api.example"])
async def test_a_client_certificate(tls_server: FakeKubernetes, pki: Path, server_name: str | None) -> None:
    authority = (pki / "server.crt").read_text()
    credential = FixedCredential(certificate_of(pki))
    cluster = Cluster(tls_server.url, credential, authority=authority, server_name=server_name)
    assert await fetch(cluster)


async def test_server_without_a_trusted_certificate_gets_no_request(tls_server: FakeKubernetes, pki: Path) -> None:
    credential = FixedCredential(certificate_of(pki))
    with pytest.raises(ConnectionError, match="CERTIFICATE_VERIFY_FAILED"):
        await fetch(Cluster(tls_server.url, credential))
    authority = (pki / "server.crt").read_text()
    with pytest.raises(ConnectionError, match="CERTIFICATE_VERIFY_FAILED"):
        await fetch(Cluster(tls_server.url, credential, authority=authority, server_name="other.example"))
    assert await fetch(Cluster(tls_server.url, credential, verify=False))


async def test_certificates_that_are_none(tls_server: FakeKubernetes) -> None:
    with pytest.raises(ConnectionError, match=r"certificates of the Kubernetes configuration .* cannot be used"):
        await fetch(Cluster(tls_server.url, FixedCredential(Credential(None, "x", "s3cret"))))
    with pytest.raises(ConnectionError, match=r"certificates of the Kubernetes configuration .* cannot be used"):
        await fetch(Cluster(tls_server.url, authority="nonsense"))
    with pytest.raises(ConnectionError, match="the certificate authority is empty"):
        await fetch(Cluster(tls_server.url, authority="\n"))


async def test_another_certificate_from_a_plugin_is_shown_on_new_connections(
    tls_server: FakeKubernetes, pki: Path
) -> None:
    class Changing:
        def __init__(self) -> None:
            self.answers = [certificate_of(pki), certificate_of(pki), Credential()]

        async def get(self, *, refused: bool = False) -> Credential:
            return self.answers.pop(0)

    cluster = Cluster(tls_server.url, Changing(), authority=(pki / "server.crt").read_text())
    client = HttpLeaseClient(cluster, request_timeout_s=2)
    await client.get("default", "job")
    first = client._http
    await client.get("default", "job")
    assert client._http is first
    with pytest.raises(ConnectionError):
        await client.get("default", "job")
    await client.close()


def test_a_token_loses_the_line_end_that_yaml_gave_it_and_is_never_quoted() -> None:
    assert Credential("a-secret\n").token == "a-secret"
    with pytest.raises(ValueError, match="not shown") as caught:
        Credential("a-sec\nret")
    assert "a-sec" not in str(caught.value)


def test_a_password_in_the_server_s_address_is_refused_and_not_shown(tmp_path: Path) -> None:
    config = tmp_path / "config"
    config.write_text(
        "clusters: [{name: c, cluster: {server: 'https://admin:a-secret@127.0.0.1:1'}}]\n"
        "contexts: [{name: c, context: {cluster: c}}]\ncurrent-context: c\n"
    )
    with pytest.raises(ValueError, match="not shown") as caught:
        find_cluster({"KUBECONFIG": str(config)})
    assert "a-secret" not in str(caught.value)
