"""One API server, and us in its eyes: what every way to configure it comes down to."""

from dataclasses import dataclass, field

from pgleaderlock.backends.kubernetes.credentials import Credential, CredentialSource, FixedCredential

__all__ = ["Cluster"]


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
