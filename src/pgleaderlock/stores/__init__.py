"""Backends by URL. Each is imported only when a URL names it.

======================= ================================================================
``postgresql://…``      two advisory locks on two sessions, under a lease (``role``)
``postgresql+lease://`` a row, for use behind a transaction pooler (``role``)
``k8s://namespace/name``a Kubernetes Lease; needs ``pgleaderlock[kubernetes]``
``file:///path``        a file, for the processes of one host
``nfs:///path``         a folder on NFS, for several hosts
``memory://name``       a variable, for the tasks and threads of one process
``etcd://hosts/key``    a key of etcd, ``etcds://`` with TLS; the package ``pgleaderlock-etcd``
======================= ================================================================

Any package can add others, as an entry point of the group ``pgleaderlock.stores``: its name is the scheme, and the
function is called with the URL and a :class:`BackendSettings`, and returns a
:class:`~pgleaderlock.stores.base.Backend`.
"""

import importlib
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from importlib.metadata import entry_points
from typing import Any, cast

from pgleaderlock._base.checks import check_address, check_seconds
from pgleaderlock._base.clock import Clock, suspend_aware_clock
from pgleaderlock._base.schemes import is_postgres_scheme, why_no_driver
from pgleaderlock.errors import MissingExtra
from pgleaderlock.stores.base import Backend
from pgleaderlock.stores.times import USUAL_LEASE_S

__all__ = ["BackendFactory", "BackendSettings", "open_backend"]

_GROUP = "pgleaderlock.stores"
_SCHEME = re.compile(r"[a-z][a-z0-9+.-]{0,40}", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class BackendSettings:
    """The settings that are passed to every backend."""

    role: str | None = None
    """The name of the lock in a store with many; None where the URL itself names one."""
    lease_s: float = USUAL_LEASE_S
    identity: str | None = None
    """The candidate's name, unique among all candidates; None for one that the backend generates."""
    clock: Clock = suspend_aware_clock
    options: Mapping[str, Any] = field(default_factory=dict)
    """Options of this backend only."""
    address: str | None = None
    """What :attr:`~pgleaderlock.stores.base.Backend.address` must be; the URL is refused otherwise."""

    def __post_init__(self) -> None:
        check_seconds("lease_s", self.lease_s)

    def own_options(self, scheme: str, known: Sequence[str]) -> Mapping[str, Any]:
        """Return the options; TypeError for one that is not ``known``: what a backend does not use it must refuse."""
        unknown = ", ".join(sorted(set(self.options) - set(known)))
        if unknown:
            raise TypeError(f"{scheme}:// has no option {unknown}. It has: {', '.join(known) or 'none'}")
        return self.options

    def check_no_role(self, scheme: str) -> None:
        """Raise ValueError if a role is named: for a backend whose URL names the lock."""
        if self.role is not None:
            raise ValueError(
                f"{scheme}:// names one lock by itself: two roles would share it, so put the name into the URL"
            )


BackendFactory = Callable[[str, BackendSettings], Backend]
"""A function that is called as ``fn(url, settings)`` and returns the backend of the URL."""

_BUILT_IN = {
    "postgresql": ("pgleaderlock.stores._urls", "open_postgres", None),
    "postgresql+lease": ("pgleaderlock.stores._urls", "open_lease_rows", None),
    "k8s": ("pgleaderlock.stores._urls", "open_kubernetes", "kubernetes"),
    "file": ("pgleaderlock.stores._urls", "open_file", None),
    "nfs": ("pgleaderlock.stores._urls", "open_nfs", None),
    "memory": ("pgleaderlock.stores._urls", "open_memory", None),
}


_PACKAGES = {"etcd": "pgleaderlock-etcd", "etcds": "pgleaderlock-etcd"}
"""The stores of packages of our own, by scheme: what to install where it is not."""


def open_backend(
    url: str,
    *,
    role: str | None = None,
    lease_s: float = USUAL_LEASE_S,
    identity: str | None = None,
    clock: Clock = suspend_aware_clock,
    address: str | None = None,
    **options: Any,
) -> Backend:
    """Return the backend that this URL names, for an :class:`~pgleaderlock.Election`. Nothing is connected yet.

    ``role`` names the lock in a store that has many (PostgreSQL). ``address`` is where clients reach this process while
    it leads, which :func:`.watching.watch_leader` shows to them. ``options`` are the backend's own, such as
    ``witness=False`` or ``password=fn`` for ``postgresql://``, ``listen_dsn=…`` for ``postgresql+lease://``.
    """
    if not isinstance(url, str):
        raise TypeError(f"url must be a str, not {type(url).__name__}")
    check_address(address)
    scheme, separator, rest = url.partition("://")
    if not separator or not _SCHEME.fullmatch(scheme):  # not quoted in the error: it may be a secret
        raise ValueError(f"a backend's url begins with a scheme, as in file:///path: {_known()}")
    scheme = scheme.lower()
    url = f"{scheme}://{rest}"
    backend = _factory(scheme)(url, BackendSettings(role, lease_s, identity, clock, options, address))
    if backend.address != address:
        raise ValueError(f"{scheme}:// has no place for the address of its leader: leave address out")
    backend.make_another = partial(open_backend, url, role=role, address=address, **options)
    return backend


def _factory(scheme: str) -> BackendFactory:
    scheme = "postgresql" if is_postgres_scheme(scheme) else scheme
    if scheme in _BUILT_IN:
        module, name, extra = _BUILT_IN[scheme]
        try:
            if extra is not None:
                importlib.import_module(f"pgleaderlock.stores.{extra}")
        except ModuleNotFoundError as error:
            raise MissingExtra(
                f"{scheme}:// needs the package {error.name}: pip install 'pgleaderlock[{extra}]'"
            ) from error
        return cast("BackendFactory", getattr(importlib.import_module(module), name))
    for entry in entry_points(group=_GROUP, name=scheme):
        try:
            return cast("BackendFactory", entry.load())
        except (ImportError, AttributeError) as error:
            package = entry.dist.name if entry.dist is not None else "an installed package"
            raise MissingExtra(
                f"the backend for {scheme}://, {entry.value} of {package}, cannot be loaded: {error}"
            ) from error
    if scheme in _PACKAGES:
        raise MissingExtra(f"{scheme}:// needs the package {_PACKAGES[scheme]}: pip install {_PACKAGES[scheme]}")
    raise ValueError(f"there is no backend for {scheme}://. {why_no_driver(scheme) or _known()}")


def _known() -> str:
    others = sorted(entry_points(group=_GROUP).names)
    return "known: " + ", ".join(f"{scheme}://" for scheme in [*_BUILT_IN, *others])
