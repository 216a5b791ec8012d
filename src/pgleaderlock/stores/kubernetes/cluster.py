"""One API server and our credentials for it: the result of every kind of configuration."""

from dataclasses import dataclass, field

from pgleaderlock.stores.kubernetes.credentials import Credential, CredentialSource, FixedCredential

__all__ = ["Cluster"]


@dataclass(frozen=True, slots=True)
class Cluster:
    """One API server, and our credentials for it."""

    server: str
    credentials: CredentialSource = field(default=FixedCredential(Credential()), repr=False)
    authority: str | None = field(default=None, repr=False)
    """Certificates to trust, as PEM; None for those of the system."""
    verify: bool = True
    server_name: str | None = None
    """The name to expect in the server's certificate, where it is not the one in the address."""
    proxy: str | None = field(default=None, repr=False)
    namespace: str | None = None
    """The namespace of the configuration; None when it names none."""
