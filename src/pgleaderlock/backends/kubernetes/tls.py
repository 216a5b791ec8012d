"""Certificates: whether a text holds what it should, and the context in which the server is spoken to.

Nothing of a key is part of any message.
"""

import ssl
import tempfile
from pathlib import Path

from pgleaderlock.backends.kubernetes.cluster import Cluster
from pgleaderlock.backends.kubernetes.credentials import Credential
from pgleaderlock.errors import ConnectionError

__all__ = ["authority_fault", "certificate_fault", "key_fault", "pem_text", "ssl_context"]


def pem_text(content: bytes) -> str:
    """Return the PEM in a file. Between certificates there may be comments in any encoding, which Go skips too."""
    return content.decode("ascii", "ignore")


def authority_fault(pem: str) -> str | None:
    """Say why nobody can be trusted by this; None when somebody can."""
    try:
        ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT).load_verify_locations(cadata=pem)
    except (ssl.SSLError, ValueError):
        return "holds no certificate that can be read: it should be PEM, beginning with -----BEGIN CERTIFICATE-----"
    return None


def certificate_fault(pem: str) -> str | None:
    """Say why this is no client certificate. Whether it fits its key is seen with the first connection."""
    if "CERTIFICATE-----" not in pem:
        return "holds no certificate: it should be PEM, beginning with -----BEGIN CERTIFICATE-----"
    return None


def key_fault(pem: str) -> str | None:
    """Say why this is no key that can be used without a person."""
    if "PRIVATE KEY-----" not in pem:
        return "holds no key: it should be PEM, beginning with -----BEGIN PRIVATE KEY----- or the like"
    if "ENCRYPTED" in pem:
        return "is under a passphrase, which nobody is here to type: store the key without one"
    return None


def ssl_context(cluster: Cluster, credential: Credential) -> ssl.SSLContext:
    """Return how to speak to this server as this user; ConnectionError when the certificates are of no use."""
    try:
        authority = None if cluster.authority is None else pem_text(cluster.authority.encode("utf-8", "replace"))
        if authority is not None and not authority.strip():
            raise ValueError("the certificate authority is empty")  # which OpenSSL takes for that of the system  # noqa: TRY301
        context = ssl.create_default_context(cadata=authority)
        if not cluster.verify:
            context.check_hostname = False
            context.verify_mode = ssl.CERT_NONE
        if credential.certificate is not None and credential.key is not None:
            _show_certificate(context, credential.certificate, credential.key)
    except (OSError, ValueError) as error:  # of which SSLError is one
        raise ConnectionError(
            f"the certificates of the Kubernetes configuration for {cluster.server} cannot be used: {error}"
        ) from error
    return context


def _show_certificate(context: ssl.SSLContext, certificate: str, key: str) -> None:
    # OpenSSL reads a key from files only; the folder is ours alone and lasts for this call.
    with tempfile.TemporaryDirectory() as folder:
        certificate_file, key_file = Path(folder, "certificate"), Path(folder, "key")
        certificate_file.write_bytes(certificate.encode("ascii", "ignore"))
        key_file.write_bytes(key.encode("ascii", "ignore"))
        context.load_cert_chain(certificate_file, key_file, password=_no_passphrase)


def _no_passphrase() -> str:
    """Without this, OpenSSL asks on the terminal, and waits there for ever."""
    raise ValueError("the client's key is under a passphrase, which nobody is here to type")
