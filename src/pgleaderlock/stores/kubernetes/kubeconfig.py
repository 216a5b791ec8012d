"""A kubeconfig file, or several, as kubectl reads them.

An unsupported setting that changes the credentials or the trusted certificates is refused by name, never ignored. All
errors that can be detected in a file are raised when it is read: an election that had begun would only retry without
end.
"""

import base64
import binascii
import os
import re
from collections.abc import Callable
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from pgleaderlock.errors import MissingExtra
from pgleaderlock.stores.kubernetes.addresses import proxy_fault, server_fault, server_name_fault
from pgleaderlock.stores.kubernetes.cluster import Cluster
from pgleaderlock.stores.kubernetes.credentials import Credential, CredentialSource, FixedCredential, TokenFile
from pgleaderlock.stores.kubernetes.exec_plugin import ExecPlugin
from pgleaderlock.stores.kubernetes.files import exists, read_file
from pgleaderlock.stores.kubernetes.settings import Settings
from pgleaderlock.stores.kubernetes.tls import authority_fault, certificate_fault, key_fault, pem_text

__all__ = ["read_kubeconfig"]

_EXEC_VERSIONS = ("client.authentication.k8s.io/v1", "client.authentication.k8s.io/v1beta1")
_USER_KEYS = {
    "token", "tokenFile", "client-certificate", "client-certificate-data", "client-key", "client-key-data", "exec",
}  # fmt: skip
_KEY_FOR_PEOPLE = re.compile("[A-Za-z-]{1,40}")
# Errors of int(), float(), datetime and its own recursion that PyYAML does not catch in malformed files.
_YAML_SLIPS = (ValueError, TypeError, LookupError, AttributeError, ArithmeticError, RecursionError)


def read_kubeconfig(*paths: Path) -> Cluster:
    """Return the cluster of the current context. Of several files, the first that has a name is used."""
    merged = _Merged(*(path for path in paths if exists(path)))
    if not merged.current:
        raise ValueError(f"{merged.where} names no current-context: run kubectl config use-context")
    context = merged.find("contexts", "context", merged.current, "is its current-context")
    cluster_name, user_name = context.text("cluster"), context.text("user")
    if not cluster_name:
        raise context.wrong("cluster", "is missing: name one of the clusters in the file")
    needed = f"its {context.place} needs"
    cluster = merged.find("clusters", "cluster", cluster_name, needed)
    user = merged.find("users", "user", user_name, needed) if user_name else Settings({}, context.file, "no user")
    return Cluster(
        server=_server(cluster).rstrip("/"),
        credentials=_credentials(user, cluster),
        authority=_pem(cluster, "certificate-authority", authority_fault),
        verify=not cluster.flag("insecure-skip-tls-verify"),
        server_name=_checked(cluster, "tls-server-name", server_name_fault),
        proxy=_proxy(cluster),
        namespace=context.text("namespace") or None,
    )


class _Merged:
    """The merged kubeconfig files. Each entry knows its file, because paths in it are relative to that."""

    def __init__(self, *paths: Path) -> None:
        self.where = os.pathsep.join(map(str, paths))
        self._files = [_load_yaml(path) for path in paths]
        self.current = next(filter(None, (file.text("current-context") for file in self._files)), None)

    def find(self, section: str, kind: str, name: str, why: str) -> Settings:
        for file in self._files:
            for entry in file.parts(section):
                if entry.text("name") == name:
                    return entry.part(kind, f"{kind} {name!r}")
        raise ValueError(f"{self.where} has no {kind} {name!r}, which {why}: add it under {section}")


def _load_yaml(path: Path) -> Settings:
    try:
        yaml: Any = import_module("yaml")  # late, because it is not needed in a pod; by name, because it has no types
    except ImportError as error:  # pragma: no cover - the tests have it
        raise MissingExtra('reading a kubeconfig needs PyYAML: pip install "pgleaderlock[kubernetes]"') from error
    try:
        text = path.read_bytes().decode("utf-8")
        content = yaml.safe_load(text)
    except OSError as error:
        raise ValueError(f"cannot read the kubeconfig {path}: {error.strerror or error}") from error
    except UnicodeDecodeError:  # not chained: it holds the whole file, with its secrets
        raise ValueError(f"the kubeconfig {path} is not text in UTF-8: is it another file, or encrypted?") from None
    except (yaml.YAMLError, *_YAML_SLIPS) as error:
        mark = getattr(error, "problem_mark", None)  # the line number only: the text may be a secret
        place = f", line {mark.line + 1}" if mark else ""
        raise ValueError(f"the kubeconfig {path} is not YAML{place}: try kubectl config view") from None
    if content is None:
        raise ValueError(f"the kubeconfig {path} is empty: write it again, or take it out of KUBECONFIG")
    return Settings(content, path)


# --- The cluster ---------------------------------------------------------------------------------------------------


def _server(cluster: Settings) -> str:
    server = cluster.text("server")
    if not server:
        raise ValueError(f"{cluster.file}: {cluster.place} has no server to connect to: write its address there")
    if fault := server_fault(server):
        raise cluster.wrong("server", f"(not shown) {fault}")
    return server


def _checked(settings: Settings, key: str, fault_of: Callable[[str], str | None]) -> str | None:
    """Return the text of this key, None when there is none; ValueError when ``fault_of`` finds a fault."""
    value = settings.text(key)
    if not value:
        return None
    if fault := fault_of(value):
        raise settings.wrong(key, f"(not shown) {fault}")
    return value


def _proxy(cluster: Settings) -> str | None:
    proxy = _checked(cluster, "proxy-url", proxy_fault)
    if proxy and proxy.startswith("socks") and find_spec("socksio") is None:
        raise MissingExtra(f"{cluster.named('proxy-url')} needs the package socksio: pip install 'httpx[socks]'")
    return proxy


# --- The user ------------------------------------------------------------------------------------------------------


def _credentials(user: Settings, cluster: Settings) -> CredentialSource:
    if foreign := user.keys - _USER_KEYS:
        # By a missing space or colon, a token may have become a key.
        shown = {key if _KEY_FOR_PEOPLE.fullmatch(key) else "a key that is not shown here" for key in foreign}
        raise ValueError(f"{user.file}: {user.place} uses {', '.join(sorted(shown))}, which is not supported")
    if "exec" in user:
        return _plugin(user, cluster)
    certificate = _pem(user, "client-certificate", certificate_fault)
    key = _pem(user, "client-key", key_fault)
    if (certificate is None) != (key is None):
        raise ValueError(f"{user.file}: {user.place} has a client certificate or a key, but not both")
    token = user.text("token")
    try:
        base = Credential(token, certificate, key)
    except ValueError:
        raise user.wrong("token", "(not shown) holds characters that no token has: copy it once more") from None
    if token_file := user.text("tokenFile"):  # takes precedence over a token, as in kubectl
        return TokenFile(user.file.parent / token_file, base, origin=user.named("tokenFile"))
    return FixedCredential(base)


def _plugin(user: Settings, cluster: Settings) -> ExecPlugin:
    settings = user.part("exec", f"exec of {user.place}")
    if not settings.keys:  # we would be anonymous to the server, which would answer with a permission error
        raise user.wrong("exec", "is empty: write the plug-in under it, or remove it")
    version, command = settings.text("apiVersion"), settings.text("command")
    if version not in _EXEC_VERSIONS:
        spoken = repr(version[:80]) if version else "no version"
        raise settings.wrong("apiVersion", f"says that it speaks {spoken}; supported are {', '.join(_EXEC_VERSIONS)}")
    if not command:
        raise ValueError(f"{settings.file}: {settings.place} names no command: write the plug-in's name or path there")
    if settings.text("interactiveMode") == "Always":
        raise settings.wrong("interactiveMode", f"is Always: {command!r} needs a terminal, and there is none here")
    if os.sep in command:  # as in kubectl: a path is relative to the file, a bare name is looked up in PATH
        command = str(settings.file.parent / command)
    return ExecPlugin(
        [command, *settings.texts("args")],
        version,
        environment=dict(map(_variable, settings.parts("env"))),
        cluster=_cluster_info(cluster) if settings.flag("provideClusterInfo") else None,
        origin=user.named("exec"),
    )


def _variable(pair: Settings) -> tuple[str, str]:
    name = pair.text("name")
    if not name or "=" in name:
        raise pair.wrong("name", "must be the name of an environment variable, without =")
    return name, pair.text("value") or ""


def _cluster_info(cluster: Settings) -> dict[str, Any]:
    info: dict[str, Any] = {"server": cluster.text("server")}
    for name in ("tls-server-name", "proxy-url"):
        if name in cluster:
            info[name] = cluster.text(name)
    if "insecure-skip-tls-verify" in cluster:
        info["insecure-skip-tls-verify"] = cluster.flag("insecure-skip-tls-verify")
    if authority := _pem(cluster, "certificate-authority", authority_fault):
        info["certificate-authority-data"] = base64.b64encode(authority.encode()).decode()
    return info


# --- Certificates and keys -----------------------------------------------------------------------------------------


def _pem(settings: Settings, name: str, fault_of: Callable[[str], str | None]) -> str | None:
    """Return the PEM that is given as base64 under ``name``-data, or else in the file that ``name`` points to."""
    if inline := settings.text(f"{name}-data"):
        key, content = f"{name}-data", _decoded(settings, f"{name}-data", inline)
    elif file := settings.text(name):
        key, content = name, read_file(settings.file.parent / file, f"{settings.named(name)} points to")
    else:
        return None
    pem = pem_text(content)
    if fault := fault_of(pem):
        raise settings.wrong(key, f"(not shown) {fault}")
    return pem


def _decoded(settings: Settings, key: str, text: str) -> bytes:
    try:
        return base64.b64decode("".join(text.split()), validate=True)  # over several lines, as Go takes it too
    except (binascii.Error, ValueError):  # ValueError: letters beyond ASCII
        raise settings.wrong(key, "(not shown) is not base64: encode the file with base64 -w0") from None
