"""Where the API server is and how to speak to it: from inside a pod, or from a kubeconfig file.

A setting that we do not understand and that changes who we are or whom we trust is refused by name, never ignored.
Environment variables for proxies are not read, so that a lease depends on nothing that its configuration does not say;
a kubeconfig's ``proxy-url`` is.
"""

import base64
import binascii
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from typing import Any

from pgleaderlock.backends.kubernetes.credentials import (
    Credential,
    CredentialSource,
    ExecPlugin,
    FixedCredential,
    TokenFile,
)

__all__ = ["SERVICE_ACCOUNT", "Cluster", "find_cluster", "in_cluster", "read_kubeconfig"]

SERVICE_ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")
"""Where a pod finds its token, its namespace and the certificate authority of its API server."""

_EXEC_VERSIONS = ("client.authentication.k8s.io/v1", "client.authentication.k8s.io/v1beta1")
_USER_KEYS = {
    "token", "tokenFile", "client-certificate", "client-certificate-data", "client-key", "client-key-data", "exec",
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Cluster:
    """One API server, and us in its eyes."""

    server: str
    credentials: CredentialSource = field(default=FixedCredential(Credential()), repr=False)
    authority: str | None = field(default=None, repr=False)
    """Certificates to trust, as PEM; None for those of the system."""
    verify: bool = True
    server_name: str | None = None
    """The name to expect in the server's certificate, where it is not the one in the address."""
    proxy: str | None = field(default=None, repr=False)
    namespace: str | None = None
    """What the configuration says that one works in, if it says so."""


def find_cluster(environ: Mapping[str, str], service_account: Path = SERVICE_ACCOUNT) -> Cluster:
    """Return the cluster of $KUBECONFIG, else the one that this pod runs in, else the one of ``~/.kube/config``."""
    explicit = environ.get("KUBECONFIG")
    if environ.get("KUBERNETES_SERVICE_HOST") and not explicit:
        return in_cluster(environ, service_account)
    named = explicit or str(Path(environ.get("HOME") or Path.home()) / ".kube" / "config")
    paths = [Path(part) for part in named.split(os.pathsep) if part]
    if not any(path.exists() for path in paths):
        raise ValueError(
            "found no Kubernetes to talk to: KUBERNETES_SERVICE_HOST is not set, so this is no pod, and there is no "
            f"kubeconfig at {named}. Set KUBECONFIG, or pass a client"
        )
    return read_kubeconfig(*paths)


def in_cluster(environ: Mapping[str, str], service_account: Path = SERVICE_ACCOUNT) -> Cluster:
    """Return the cluster that this pod runs in."""
    host, port = environ["KUBERNETES_SERVICE_HOST"], environ.get("KUBERNETES_SERVICE_PORT") or "443"
    namespace = service_account / "namespace"
    return Cluster(
        server=f"https://{f'[{host}]' if ':' in host else host}:{port}",
        credentials=TokenFile(service_account / "token"),
        authority=_read(service_account / "ca.crt"),
        namespace=_read(namespace).strip() or None if namespace.exists() else None,
    )


def read_kubeconfig(*paths: Path) -> Cluster:
    """Return the cluster of the current context. Of several files, the first that knows a name is believed."""
    merged = _Merged(*(path for path in paths if path.exists()))
    if not merged.current:
        raise ValueError(f"{merged.where} names no current-context: run kubectl config use-context")
    context, _ = merged.find("contexts", "context", merged.current)
    cluster, folder = merged.find("clusters", "cluster", str(context.get("cluster")))
    user, user_folder = merged.find("users", "user", str(context.get("user"))) if "user" in context else ({}, folder)
    server = cluster.get("server")
    if not isinstance(server, str) or not server.startswith(("https://", "http://")):
        raise ValueError(f"{merged.where}: cluster {context.get('cluster')!r} has no server to connect to")
    if "@" in server:  # every error names the server
        raise ValueError(
            f"{merged.where}: the server of cluster {context.get('cluster')!r} (not shown) has a user name in it: name "
            "the user under users instead"
        )
    return Cluster(
        server=server.rstrip("/"),
        credentials=_credentials(user, user_folder, cluster, str(context.get("user"))),
        authority=_inline_or_file(cluster, "certificate-authority", folder),
        verify=not cluster.get("insecure-skip-tls-verify", False),
        server_name=cluster.get("tls-server-name"),
        proxy=cluster.get("proxy-url"),
        namespace=context.get("namespace"),
    )


class _Merged:
    """The kubeconfig files, and which of them each entry came from: paths in it are relative to that."""

    def __init__(self, *paths: Path) -> None:
        self.where = os.pathsep.join(map(str, paths))
        self._files = [(path.parent, _load_yaml(path)) for path in paths]
        self.current = next(
            (content["current-context"] for _, content in self._files if content.get("current-context")), None
        )

    def find(self, section: str, kind: str, name: str) -> tuple[dict[str, Any], Path]:
        for folder, content in self._files:
            for entry in content.get(section) or []:
                if isinstance(entry, dict) and entry.get("name") == name:
                    body = entry.get(kind) or {}
                    if not isinstance(body, dict):
                        raise ValueError(f"{self.where}: the {kind} {name!r} is not a mapping")
                    return body, folder
        raise ValueError(f"{self.where} has no {kind} {name!r}, which its context {self.current!r} needs")


def _load_yaml(path: Path) -> dict[str, Any]:
    try:
        yaml: Any = import_module("yaml")  # late, because no pod needs it; by name, because it has no types
    except ImportError as error:  # pragma: no cover - the tests have it
        raise ImportError('reading a kubeconfig needs PyYAML: pip install "pgleaderlock[kubernetes]"') from error
    try:
        content = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        raise ValueError(f"cannot read the kubeconfig {path}: {error}") from error
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)  # the text around it may be a key
        place = f", line {mark.line + 1}" if mark else ""
        raise ValueError(f"the kubeconfig {path} is not YAML{place}") from None
    if not isinstance(content, dict):
        raise ValueError(f"the kubeconfig {path} is not a mapping")  # noqa: TRY004 - a wrong value of a setting
    return content


def _credentials(user: Mapping[str, Any], folder: Path, cluster: Mapping[str, Any], name: str) -> CredentialSource:
    foreign = sorted(set(user) - _USER_KEYS)
    if foreign:
        raise ValueError(f"user {name!r} of the kubeconfig uses {', '.join(foreign)}, which is not supported")
    if "exec" in user:
        return _plugin(user["exec"], folder, cluster)
    certificate = _inline_or_file(user, "client-certificate", folder)
    key = _inline_or_file(user, "client-key", folder)
    if (certificate is None) != (key is None):
        raise ValueError(f"user {name!r} of the kubeconfig has a client certificate or a key, but not both")
    base = Credential(user.get("token"), certificate, key)
    if "tokenFile" in user:  # which wins over a token, as kubectl has it
        return TokenFile(folder / user["tokenFile"], base)
    return FixedCredential(base)


def _plugin(settings: Mapping[str, Any], folder: Path, cluster: Mapping[str, Any]) -> ExecPlugin:
    version, command = settings.get("apiVersion"), settings.get("command")
    if version not in _EXEC_VERSIONS:
        raise ValueError(f"the kubeconfig's exec plug-in speaks {version!r}; supported are {', '.join(_EXEC_VERSIONS)}")
    if not command:
        raise ValueError("the kubeconfig's exec plug-in names no command")
    if settings.get("interactiveMode") == "Always":
        raise ValueError(f"the exec plug-in {command!r} wants to ask a person (interactiveMode Always): nobody is here")
    if os.sep in command:  # as kubectl reads it: a path is relative to the file, a bare name is looked up
        command = str(folder / command)
    return ExecPlugin(
        [command, *(settings.get("args") or [])],
        version,
        environment={pair["name"]: pair["value"] for pair in settings.get("env") or []},
        cluster=_cluster_info(cluster, folder) if settings.get("provideClusterInfo") else None,
    )


def _cluster_info(cluster: Mapping[str, Any], folder: Path) -> dict[str, Any]:
    info: dict[str, Any] = {"server": cluster.get("server")}
    for name in ("tls-server-name", "insecure-skip-tls-verify", "proxy-url"):
        if name in cluster:
            info[name] = cluster[name]
    if authority := _inline_or_file(cluster, "certificate-authority", folder):
        info["certificate-authority-data"] = base64.b64encode(authority.encode()).decode()
    return info


def _inline_or_file(entry: Mapping[str, Any], name: str, folder: Path) -> str | None:
    """Return what is given as base64 under ``name``-data, or else in the file that ``name`` points to."""
    if inline := entry.get(f"{name}-data"):
        try:
            return base64.b64decode(inline, validate=True).decode()
        except (binascii.Error, UnicodeDecodeError, TypeError):
            raise ValueError(f"{name}-data of the kubeconfig is not base64") from None
    return _read(folder / entry[name]) if entry.get(name) else None


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ValueError(f"cannot read {path}, which the Kubernetes configuration names: {error}") from error
