"""A Kubernetes configuration that is wrong: an error of ours that names the file and the key, and no secret."""

import asyncio
import base64
import json
import os
import re
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from pgleaderlock import ConnectionError
from pgleaderlock.errors import MissingExtra
from pgleaderlock.stores import kubernetes, open_backend
from pgleaderlock.stores.kubernetes import exec_plugin, new_from_env, open_kubernetes
from pgleaderlock.stores.kubernetes.client import HttpLeaseClient
from pgleaderlock.stores.kubernetes.config import Cluster, find_cluster, in_cluster, read_kubeconfig
from pgleaderlock.stores.kubernetes.credentials import Credential, FixedCredential, TokenFile
from pgleaderlock.stores.kubernetes.exec_plugin import ExecPlugin
from pgleaderlock.stores.record import RecordBackend
from pgleaderlock.testing.fake_kubernetes import FakeKubernetes
from tests.support.programs import find_program

SECRET = "s3cret"
V1 = "client.authentication.k8s.io/v1"


def encoded(content: bytes) -> str:
    return base64.b64encode(content).decode()


def config(**changes: Any) -> dict[str, Any]:
    """Return a kubeconfig with these keys changed, wherever they belong."""
    context = {"cluster": "c", "user": "u", **changes.pop("context", {})}
    cluster = {"server": "http://127.0.0.1:1", **changes.pop("cluster", {})}
    user = changes.pop("user", {"token": SECRET})
    return {
        "current-context": "here",
        "contexts": [{"name": "here", "context": context}],
        "clusters": [{"name": "c", "cluster": cluster}],
        "users": [{"name": "u", "user": user}],
        **changes,
    }


def plugin(**settings: Any) -> dict[str, Any]:
    return config(user={"exec": {"apiVersion": V1, "command": "sh", **settings}})


def written(path: Path, content: object) -> Path:
    if isinstance(content, bytes):
        path.write_bytes(content)
    else:
        path.write_text(content if isinstance(content, str) else json.dumps(content), encoding="utf-8")
    return path


def told(error: BaseException) -> str:
    """Return all that a log with tracebacks could show of an error that was raised on purpose."""
    return f"{error!r} {error} {error.__cause__!r}"


# --- What is found when the file is read ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("content", "key", "said"),
    [
        # The structure
        (config(contexts=5), "contexts", "must be a list, and is a number"),
        (config(contexts={"name": "here"}), "contexts", "must be a list, and is a mapping"),
        (config(clusters=[7]), r"clusters\[0\]", "must be a mapping, and is a number"),
        (config(clusters=[None]), r"clusters\[0\]", "must be a mapping, and is empty"),
        (config(users=None), "user 'u'", "add it under users"),
        (config(users=[{"name": 7}]), r"name of users\[0\]", "put it in quotes"),
        (config(users=[{"name": "u", "user": [SECRET]}]), "user 'u'", "must be a mapping, and is a list"),
        (config(**{"current-context": 7}), "current-context", "put it in quotes"),
        (config(**{"current-context": "x"}), "no context 'x'", "which is its current-context"),
        (config(context={"namespace": 7}), "namespace of context 'here'", "must be a text, and is a number: put it in"),
        (config(context={"cluster": None}), "cluster of context 'here'", "is missing"),
        (config(context={"user": True}), "user of context 'here'", "must be a text, and is true or false"),
        # The cluster
        (config(cluster={"server": 7}), "server of cluster 'c'", "must be a text"),
        (config(cluster={"server": "127.0.0.1:1"}), "server of cluster 'c'", "must begin with https://"),
        (config(cluster={"server": "https://127.0.0.1:99999"}), "server of cluster 'c'", "a port is 1 to 65535"),
        (config(cluster={"server": "https://127.0.0.1:"}), "server of cluster 'c'", "1 to 65535 after the colon"),
        (config(cluster={"server": "https://[::1"}), "server of cluster 'c'", "stands in brackets"),
        (config(cluster={"server": "https://"}), "server of cluster 'c'", "no proper host name"),
        (config(cluster={"server": f"https://{'a' * 64}.x"}), "server of cluster 'c'", "no proper host name"),
        (config(cluster={"server": "https://größe"}), "server of cluster 'c'", "xn-- form"),
        (config(cluster={"server": "https://h\n"}), "server of cluster 'c'", "a space or a character beyond ASCII"),
        (config(cluster={"server": f"https://h?token={SECRET}"}), "server of cluster 'c'", "query or a fragment"),
        (config(cluster={"server": "http://h\ud800"}), "server of cluster 'c'", "an invalid character"),
        (
            config(cluster={"tls-server-name": "größe"}),
            "tls-server-name of cluster 'c'",
            "must be a host name in ASCII",
        ),
        (config(cluster={"tls-server-name": 7}), "tls-server-name of cluster 'c'", "must be a text"),
        (config(cluster={"proxy-url": f"ftp://u:{SECRET}@h"}), "proxy-url of cluster 'c'", "must begin with one of"),
        (
            config(cluster={"proxy-url": f"http://u:{SECRET}/x@h"}),
            "proxy-url of cluster 'c'",
            "no proper host and port",
        ),
        (config(cluster={"proxy-url": 7}), "proxy-url of cluster 'c'", "must be a text"),
        (
            config(cluster={"insecure-skip-tls-verify": "false"}),
            "insecure-skip-tls-verify of cluster 'c'",
            "must be true or false without quotes",
        ),
        (
            config(cluster={"certificate-authority-data": "***"}),
            "certificate-authority-data of cluster 'c'",
            "is not base64",
        ),
        (config(cluster={"certificate-authority-data": "ä"}), "certificate-authority-data", "is not base64"),
        (config(cluster={"certificate-authority-data": 7}), "certificate-authority-data", "must be a text"),
        (
            config(cluster={"certificate-authority-data": encoded(SECRET.encode())}),
            "certificate-authority-data of cluster 'c'",
            "holds no certificate that can be read",
        ),
        (config(cluster={"certificate-authority": "missing"}), "certificate-authority of cluster 'c'", "cannot read"),
        (config(cluster={"certificate-authority": "."}), "certificate-authority of cluster 'c'", "Is a directory"),
        (config(cluster={"certificate-authority": "config"}), "certificate-authority of cluster 'c'", "no certificate"),
        (config(cluster={"certificate-authority": "a\0b"}), "certificate-authority", "an invalid character"),
        # The user
        (config(user={"token": 7}), "token of user 'u'", "put it in quotes"),
        (config(user={"token": f"{SECRET}é"}), "token of user 'u'", "characters that no token has"),
        (config(user={"tokenFile": 7}), "tokenFile of user 'u'", "must be a text"),
        (config(user={"client-certificate": 7}), "client-certificate of user 'u'", "must be a text"),
        (
            config(user={"client-certificate-data": encoded(SECRET.encode())}),
            "client-certificate-data of user 'u'",
            "holds no certificate",
        ),
        (config(user={"client-key-data": encoded(b"\xff")}), "client-key-data of user 'u'", "holds no key"),
        (
            config(user={"client-key-data": encoded(b"-----BEGIN ENCRYPTED PRIVATE KEY-----")}),
            "client-key-data of user 'u'",
            "a passphrase, which cannot be asked for here",
        ),
        (config(user={SECRET: 1, "as": "root"}), "user 'u'", "uses a key that is not shown here, as, which is not"),
        ("{current-context: c, contexts: [{name: c, context: {cluster: 2024-01-01}}]}", "cluster", "and is a date"),
        # The plug-in
        (config(user={"exec": None}), "exec of user 'u'", "is empty"),
        (config(user={"exec": [SECRET]}), "exec of user 'u'", "must be a mapping, and is a list"),
        (plugin(apiVersion=["x"]), "apiVersion of exec of user 'u'", "must be a text"),
        (plugin(apiVersion=None), "apiVersion of exec of user 'u'", "supported are"),
        (plugin(command=7), "command of exec of user 'u'", "must be a text"),
        (plugin(command=None), "exec of user 'u'", "names no command"),
        (plugin(args=["x", 7]), r"args\[1\] of exec of user 'u'", "must be a text, and is a number: put it in quotes"),
        (plugin(args="x"), "args of exec of user 'u'", "must be a list"),
        (plugin(args=["a\0"]), r"args\[0\] of exec of user 'u'", "an invalid character"),
        (plugin(env=[{"name": "A", "value": 7}]), r"value of env\[0\] of exec of user 'u'", "put it in quotes"),
        (plugin(env=[{"name": "A=", "value": SECRET}]), r"name of env\[0\]", "name of an environment variable"),
        (plugin(env=[{"value": SECRET}]), r"name of env\[0\]", "name of an environment variable"),
        (plugin(env={"A": SECRET}), "env of exec of user 'u'", "must be a list"),
        (plugin(provideClusterInfo="no"), "provideClusterInfo of exec of user 'u'", "must be true or false"),
        # The file
        (b"", "kubeconfig", "is empty"),
        ("# nothing\n", "kubeconfig", "is empty"),
        ([config()], "kubeconfig", "must be a mapping, and is a list"),
        (b"\x89PNG\x00\xff s3cret", "kubeconfig", "not text in UTF-8"),
        ("token: 's3cret", "kubeconfig", "not YAML, line 1"),
        ("token: !!int s3cret", "kubeconfig", "not YAML"),
        ("token: !!int ''", "kubeconfig", "not YAML"),
        ("token: !!bool s3cret", "kubeconfig", "not YAML"),
        ("token: !!timestamp s3cret", "kubeconfig", "not YAML"),
        ("token: 1" + ":59" * 300 + ".5", "kubeconfig", "not YAML"),
        ("[" * 5000, "kubeconfig", "not YAML"),
    ],
)
@pytest.mark.parametrize(
    "opened",
    [
        lambda environ: new_from_env("job", environ=environ),
        lambda environ: open_backend("k8s://ns/job", environ=environ),
    ],
    ids=["env", "url"],
)
@pytest.mark.slow
def test_error_in_a_kubeconfig_is_reported_with_the_file_and_the_key_and_no_secret(
    tmp_path: Path, opened: Callable[[dict[str, str]], object], content: object, key: str, said: str
) -> None:
    path = written(tmp_path / "config", content)
    with pytest.raises(ValueError, match=re.escape(str(path))) as caught:
        opened({"KUBECONFIG": str(path)})
    assert type(caught.value) is ValueError
    assert re.search(key, str(caught.value))
    assert said in str(caught.value)
    assert SECRET not in told(caught.value)


@pytest.mark.parametrize(
    "content",
    [
        config(context={"namespace": None, "user": None}),
        config(user={"token": None, "tokenFile": "", "client-key": None}),
        config(user=None),
        config(cluster={"proxy-url": None, "tls-server-name": "", "certificate-authority-data": ""}),
        config(cluster={"server": "https://[2001:db8::1]:6443/k8s/clusters/c-1", "insecure-skip-tls-verify": True}),
        config(cluster={"server": "http://under_score.example."}),
        plugin(args=None, env=None),
    ],
)
def test_nothing_and_null_are_the_same_as_for_kubectl(tmp_path: Path, content: object) -> None:
    assert read_kubeconfig(written(tmp_path / "config", content)).namespace is None


def test_certificates_with_comments_in_whatever_encoding_between_them(tmp_path: Path, pki: Path) -> None:
    certificate = (pki / "server.crt").read_bytes()
    (tmp_path / "ca.pem").write_bytes(b"# Soci\xe9t\xe9\n" + certificate + "# größer\n".encode())
    path = written(tmp_path / "config", config(cluster={"certificate-authority": "ca.pem"}))
    assert certificate.decode() in str(read_kubeconfig(path).authority)


def test_a_socks_proxy_says_which_package_it_needs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = written(tmp_path / "config", config(cluster={"proxy-url": f"socks5://u:{SECRET}@127.0.0.1:1"}))
    monkeypatch.setattr(kubernetes.kubeconfig, "find_spec", lambda _: None)
    with pytest.raises(MissingExtra, match=r"proxy-url of cluster 'c' in .*config needs the package socksio") as caught:
        read_kubeconfig(path)
    assert SECRET not in told(caught.value)


@pytest.mark.parametrize("name", ["x" * 300, "config/inside"])
def test_a_kubeconfig_at_a_path_that_cannot_be(tmp_path: Path, name: str) -> None:
    (tmp_path / "config").touch()
    with pytest.raises(ValueError, match=f"kubeconfig.*{name}") as caught:
        find_cluster({"KUBECONFIG": str(tmp_path / name)})
    assert type(caught.value) is ValueError


def test_a_user_without_a_home(monkeypatch: pytest.MonkeyPatch) -> None:
    def homeless() -> Path:
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.setattr(Path, "home", homeless)
    with pytest.raises(ValueError, match=r"without HOME there is no ~/\.kube/config\. Set KUBECONFIG"):
        find_cluster({})


@pytest.mark.parametrize(
    ("host", "port", "said"),
    [
        ("192.0.2.1", "99999", "a port is 1 to 65535"),
        ("192.0.2.1", "tcp://192.0.2.1:443", "no proper host and port"),
        ("größe", "443", "xn-- form"),
        (f"me:{SECRET}@h", "443", "has a user name in it"),
    ],
)
def test_a_pod_whose_environment_names_no_address(tmp_path: Path, host: str, port: str, said: str) -> None:
    environ = {"KUBERNETES_SERVICE_HOST": host, "KUBERNETES_SERVICE_PORT": port}
    with pytest.raises(ValueError, match=f"KUBERNETES_SERVICE_HOST and .* {said}") as caught:
        in_cluster(environ, tmp_path)
    assert SECRET not in told(caught.value)


def test_a_pod_whose_files_are_not_what_they_should_be(
    tmp_path: Path, pki: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    environ = {"KUBERNETES_SERVICE_HOST": "192.0.2.1"}
    (tmp_path / "ca.crt").write_text("nonsense")
    with pytest.raises(ValueError, match=r"ca\.crt, which belongs to .* holds no certificate"):
        in_cluster(environ, tmp_path)
    (tmp_path / "ca.crt").write_text((pki / "server.crt").read_text())
    (tmp_path / "namespace").write_bytes(b"\xff\xfe")
    namespace = in_cluster(environ, tmp_path).namespace
    monkeypatch.setattr(kubernetes, "SERVICE_ACCOUNT", tmp_path)
    with pytest.raises(ValueError, match="cannot be a Kubernetes namespace") as caught:
        new_from_env("job", client=HttpLeaseClient(Cluster("http://127.0.0.1:1")), environ={})
    assert type(caught.value) is ValueError
    assert repr(namespace) in str(caught.value)


@pytest.mark.parametrize("url", ["k8s://[x/job", "k8s://a℀b/job"])
def test_a_url_that_python_cannot_split(url: str) -> None:
    with pytest.raises(ValueError, match="k8s://namespace/name"):
        open_kubernetes(url, environ={})


# --- What is found with the first request --------------------------------------------------------------------------


@pytest.mark.parametrize(
    "cluster",
    [
        Cluster("http://127.0.0.1:99999"),
        Cluster(f"http://{'a' * 64}:1"),
        Cluster("http://127.0.0.1:1", proxy="ftp://127.0.0.1:1"),
        Cluster("http://127.0.0.1:1/\ud800"),
        Cluster("https://127.0.0.1:1", authority="größe"),
        Cluster("https://127.0.0.1:1", FixedCredential(Credential(None, "größe", "\ud800"))),
    ],
    ids=["port", "host", "proxy", "path", "authority", "certificate"],
)
async def test_a_cluster_that_was_made_by_hand_and_cannot_be_connected_to(cluster: Cluster) -> None:
    client = HttpLeaseClient(cluster, request_timeout_s=2)
    with pytest.raises(ConnectionError, match="cannot be"):
        await client.get("default", "job")
    await client.close()


@pytest.fixture
def locked_key(pki: Path) -> str:
    words = f"{find_program('openssl')} pkey -in {pki}/me.key -aes128 -passout pass:x".split()
    return subprocess.run(words, check=True, capture_output=True, text=True).stdout


async def test_key_with_a_passphrase_is_an_error_and_does_not_wait_for_input(pki: Path, locked_key: str) -> None:
    credential = Credential(None, (pki / "me.crt").read_text(), locked_key)
    client = HttpLeaseClient(Cluster("https://127.0.0.1:1", FixedCredential(credential)))
    with pytest.raises(ConnectionError, match="encrypted with a passphrase, which cannot be asked for here"):
        await client.get("default", "job")
    await client.close()


@pytest.mark.parametrize(("name", "said"), [("missing", "No such file"), ("binary", "empty or not text")])
async def test_invalid_token_file_is_reported_with_the_place_that_names_it(
    tmp_path: Path, name: str, said: str
) -> None:
    (tmp_path / "binary").write_bytes(SECRET.encode() + b"\xff")
    path = written(tmp_path / "config", config(user={"tokenFile": name}))
    with pytest.raises(ConnectionError, match=rf"{name} \(tokenFile of user 'u' in {path}\).*{said}") as caught:
        await read_kubeconfig(path).credentials.get()
    assert SECRET not in told(caught.value)
    with pytest.raises(ConnectionError, match="cannot read the Kubernetes token file"):
        await TokenFile(Path("a\0b")).get()


@pytest.mark.parametrize("body", ["[" * 100_000, '{"a":' * 100_000, "9" * 5000])
@pytest.mark.parametrize("status", [200, 500])
async def test_an_answer_that_no_parser_takes(status: int, body: str) -> None:
    async with FakeKubernetes() as server:
        server.answer_next(status, body)
        client = HttpLeaseClient(Cluster(server.url))
        with pytest.raises(ConnectionError, match="cannot get lease default/job"):
            await client.get("default", "job")
        await client.close()


# --- Plug-ins ------------------------------------------------------------------------------------------------------


def answer(**status: Any) -> str:
    return json.dumps({"apiVersion": V1, "kind": "ExecCredential", "status": status})


def candidate(path: Path, *, lease_s: float = 30.0, **settings: Any) -> RecordBackend:
    return new_from_env("job", environ={"KUBECONFIG": str(written(path, plugin(**settings)))}, lease_s=lease_s)


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"args": ["-c", "echo s3cret"]}, "no ExecCredential"),
        ({"args": ["-c", 'echo "[s3cret"']}, "no ExecCredential"),
        ({"args": ["-c", 'echo "[]"']}, "no ExecCredential"),
        ({"args": ["-c", "echo null"]}, "no ExecCredential"),
        ({"args": ["-c", "head -c 100000 /dev/zero | tr '\\0' '['"]}, "no ExecCredential"),
        ({"args": ["-c", f"echo '{answer(token=7)}'"]}, "no ExecCredential"),
        ({"args": ["-c", f"echo '{answer(token=['s3cret'])}'"]}, "no ExecCredential"),
        ({"args": ["-c", f"echo '{answer(token='s3creté')}'"]}, "no ExecCredential"),
        ({"args": ["-c", f"echo '{answer(clientCertificateData=7, clientKeyData='s3cret')}'"]}, "no ExecCredential"),
        ({"args": ["-c", f"echo '{answer(token='s3cret', clientKeyData='s3cret')}'"]}, "but not both"),
        ({"args": ["-c", "exec cat /dev/zero"]}, "printed more than 1048576 bytes"),
        ({"args": ["-c", "exit 3"]}, "exit code 3; its own words are on standard error"),
        ({"args": ["-c", "kill -9 $$"]}, "exit code -9"),
        ({"command": "/no/such"}, "cannot be started: No such file or directory. Install it"),
        ({"command": "no-such-program"}, "cannot be started: No such file or directory. Install it"),
        ({"command": "/"}, "cannot be started: Permission denied"),
    ],
)
async def test_plugin_that_fails_is_reported_with_the_file_and_the_key(
    tmp_path: Path, settings: dict[str, Any], said: str
) -> None:
    backend = candidate(tmp_path / "config", **settings)
    with pytest.raises(ConnectionError, match=re.escape(f"(exec of user 'u' in {tmp_path}/config)")) as caught:
        await backend.holder()
    assert said in str(caught.value)
    assert SECRET not in told(caught.value)
    await backend.close()


@pytest.mark.slow
async def test_plugin_that_hangs_is_named_before_the_backend_gives_up_and_leaves_no_process_behind(
    tmp_path: Path,
) -> None:
    child = tmp_path / "child"
    backend = candidate(tmp_path / "config", lease_s=9, args=["-c", f"sleep 60 & echo $! > {child}; wait"])
    with pytest.raises(ConnectionError, match=rf"'sh' \(exec of user 'u' in {tmp_path}/config\) did not end within"):
        await backend.holder()
    await backend.close()
    pid = int(child.read_text())
    for _ in range(100):
        if not is_running(pid):
            break
        await asyncio.sleep(0.05)
    else:
        os.kill(pid, signal.SIGKILL)
        pytest.fail("what the plug-in started is still there")


def is_running(pid: int) -> bool:
    """Whether it runs. A killed process whose parent did not wait for it, as in a container without init, does not."""
    try:
        return ") Z " not in Path(f"/proc/{pid}/stat").read_text()
    except FileNotFoundError:
        return False


@pytest.mark.parametrize("script", ["sleep 3 &", "setsid sleep 3 & sleep 60", "setsid sleep 3 &"])
async def test_a_plugin_whose_child_keeps_the_pipe_open_does_not_keep_us(
    script: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(exec_plugin, "_PLUGIN_TIMEOUT_S", 0.3)
    monkeypatch.setattr(exec_plugin, "_KILLED_TIMEOUT_S", 0.3)
    began = time.monotonic()
    with pytest.raises(ConnectionError, match=r"did not end within 0\.3 s"):
        await ExecPlugin(["sh", "-c", script], V1).get()
    assert time.monotonic() - began < 2


async def test_a_plugin_whose_time_has_no_zone_is_asked_again(tmp_path: Path) -> None:
    calls = tmp_path / "calls"
    script = f"echo x >> {calls}; echo '{answer(token='t', expirationTimestamp='2020-01-01T00:00:00')}'"
    source = ExecPlugin(["sh", "-c", script], V1)
    assert [(await source.get()).token for _ in range(2)] == ["t", "t"]
    assert calls.read_text() == "x\nx\n"


async def test_a_plugin_made_by_hand_of_what_no_program_can_be_handed() -> None:
    with pytest.raises(ConnectionError, match="cannot be started: its command, args or env") as caught:
        await ExecPlugin(["sh"], V1, environment={"A": f"{SECRET}\0"}).get()
    assert SECRET not in told(caught.value)
