"""Certificates: checks of PEM texts, and the TLS context of the connection to the API server.

No part of a key appears in any message.
"""

import ssl
import tempfile
from pathlib import Path

from pgleaderlock.errors import ConnectionError
from pgleaderlock.stores.kubernetes.cluster import Cluster
from pgleaderlock.stores.kubernetes.credentials import Credential

__all__ = ["authority_fault", "certificate_fault", "key_fault", "pem_text", "ssl_context"]


def pem_text(content: bytes) -> str:
    """Return the PEM in a file. Comments between certificates may be in any encoding; Go skips them too."""
    return content.decode("ascii", "ignore")


def authority_fault(pem: str) -> str | None:
    """Return why this is no certificate authority, as the end of a sentence; None when it is one."""
    try:
        ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT).load_verify_locations(cadata=pem)
    except (ssl.SSLError, ValueError):
        return "holds no certificate that can be read: it should be PEM, beginning with -----BEGIN CERTIFICATE-----"
    return None


def certificate_fault(pem: str) -> str | None:
    """Return why this is no client certificate; None when it is one. The first connection checks it with its key."""
    if "CERTIFICATE-----" not in pem:
        return "holds no certificate: it should be PEM, beginning with -----BEGIN CERTIFICATE-----"
    return None


def key_fault(pem: str) -> str | None:
    """Return why this is no key that can be used unattended; None when it is one."""
    if "PRIVATE KEY-----" not in pem:
        return "holds no key: it should be PEM, beginning with -----BEGIN PRIVATE KEY----- or the like"
    if "ENCRYPTED" in pem:
        return "is encrypted with a passphrase, which cannot be asked for here: store the key without one"
    return None


def ssl_context(cluster: Cluster, credential: Credential) -> ssl.SSLContext:
    """Return the TLS context for this server and credential; ConnectionError when the certificates cannot be used."""
    try:
        authority = None if cluster.authority is None else pem_text(cluster.authority.encode("utf-8", "replace"))
        if authority is not None and not authority.strip():
            raise ValueError("the certificate authority is empty")  # else OpenSSL uses the system's  # noqa: TRY301
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
    # OpenSSL reads a key from files only; the folder is private and is removed after this call.
    with tempfile.TemporaryDirectory() as folder:
        certificate_file, key_file = Path(folder, "certificate"), Path(folder, "key")
        certificate_file.write_bytes(certificate.encode("ascii", "ignore"))
        key_file.write_bytes(key.encode("ascii", "ignore"))
        context.load_cert_chain(certificate_file, key_file, password=_no_passphrase)


def _no_passphrase() -> str:
    """Raise ValueError: without this callback, OpenSSL would ask on the terminal and wait there without end."""
    raise ValueError("the client's key is encrypted with a passphrase, which cannot be asked for here")
