"""From a URL to a backend: the built-in ones, third-party ones, and what cannot be had."""

from importlib.metadata import EntryPoint, EntryPoints
from pathlib import Path
from typing import Any

import pytest

from pgleaderlock import open_backend, stores
from pgleaderlock.errors import MissingExtra
from pgleaderlock.stores.record import RecordBackend
from tests.support.missing_packages import without_packages


@pytest.mark.parametrize(
    ("url", "settings", "labels"),
    [
        ("postgresql://h/d", {"role": "x"}, {"role": "x", "db": "d"}),
        ("postgres://h/d", {"role": "x", "witness": False}, {"role": "x", "db": "d"}),
        ("postgresql+lease://h/d", {"role": "x", "poll_s": 3.0}, {"role": "x", "db": "d"}),
        ("memory://a/b%20c", {}, {"memory": "a/b c"}),
    ],
)
def test_a_backend_is_named_by_its_url(url: str, settings: dict[str, Any], labels: dict[str, Any]):
    assert dict(open_backend(url, **settings).labels).items() >= labels.items()


def test_a_file_is_named_by_its_path(tmp_path: Path):
    backend = open_backend(f"file://{tmp_path}/lock", lease_s=3.0, identity="me")
    assert backend.labels == {"file": f"{tmp_path}/lock"}
    assert isinstance(backend, RecordBackend)
    assert backend.identity == "me"


def test_a_lease_of_kubernetes_is_named_by_its_place(tmp_path: Path):
    (tmp_path / "config").write_text(
        "clusters: [{name: c, cluster: {server: 'http://127.0.0.1:1'}}]\n"
        "contexts: [{name: c, context: {cluster: c}}]\ncurrent-context: c\n"
    )
    backend = open_backend("k8s://jobs/worker", environ={"KUBECONFIG": str(tmp_path / "config")})
    assert "worker" in str(dict(backend.labels))


@pytest.mark.parametrize(
    ("url", "settings", "complaint"),
    [
        ("nope://x", {}, "no backend for nope://. known: postgresql://"),
        ("just-words", {}, "begins with a scheme"),
        ("postgresql://h/d", {}, "name one with role="),
        ("memory://", {}, "needs a name"),
        ("memory://x", {"identity": ""}, "an empty one marks a free lock"),
        ("memory://x", {"lease_s": 0}, "lease_s"),
    ],
)
def test_error_in_a_url_is_reported_before_any_connection_is_opened(url: str, settings: dict[str, Any], complaint: str):
    with pytest.raises(ValueError, match=complaint):
        open_backend(url, **settings)


def test_a_connection_string_in_place_of_a_url_is_not_quoted():
    with pytest.raises(ValueError, match="begins with a scheme") as raised:
        open_backend("host=db password=hunter2 oauth_issuer=https://issuer", role="r")
    assert "hunter2" not in str(raised.value)


def test_a_scheme_may_be_written_in_capitals(tmp_path: Path):
    assert open_backend(f"FILE://{tmp_path}/lock").labels == {"file": f"{tmp_path}/lock"}


@pytest.mark.parametrize("value", ["tests.stores.test_contract:nothing", "no_such_module:open"])
def test_an_entry_point_that_cannot_be_loaded_is_named(monkeypatch: pytest.MonkeyPatch, value: str):
    found = EntryPoints([EntryPoint("toy", value, "pgleaderlock.stores")])
    monkeypatch.setattr(stores, "entry_points", found.select)
    with pytest.raises(MissingExtra, match=f"backend for toy://, {value} of an installed package, cannot be loaded"):
        open_backend("toy://x")


@pytest.mark.parametrize("options", [{"poll_s": 0}, {"poll_s": -1}, {"schema": "a b;c"}, {"schema": ""}])
def test_options_of_lease_rows_are_checked(options: dict[str, Any]):
    with pytest.raises(ValueError, match=r"poll_s|schema"):
        open_backend("postgresql+lease://h/d", role="x", **options)


def test_a_url_is_a_text():
    with pytest.raises(TypeError, match="url must be a str"):
        open_backend(Path("/x"))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("url", "role", "known"),
    [
        ("memory://x", None, "It has: none"),
        ("file:///tmp/x", None, "It has: none"),
        ("k8s://a/b", None, "It has: client, request_timeout_s"),
        ("postgresql://h/d", "x", "It has: settle_s, witness"),
        ("postgresql+lease://h/d", "x", "It has: schema, schema_owner, listen_dsn, password, poll_s"),
    ],
)
def test_an_option_that_a_backend_does_not_know_is_refused_with_those_that_it_does(
    url: str, role: str | None, known: str
):
    with pytest.raises(
        TypeError, match=f"{url.partition('//')[0]}// has no option colour. {known}".replace("+", r"\+")
    ):
        open_backend(url, role=role, colour="red")


def test_third_party_backend_is_found_by_its_entry_point(monkeypatch: pytest.MonkeyPatch):
    found = EntryPoints([EntryPoint("toy", "tests.stores.test_contract:open_toy", "pgleaderlock.stores")])
    monkeypatch.setattr(stores, "entry_points", found.select)
    assert open_backend("toy://x").labels == {"toy": "toy://x"}
    with pytest.raises(ValueError, match="toy://"):
        open_backend("nope://x")


@pytest.mark.parametrize("scheme", ["etcd", "etcds"])
def test_a_store_of_a_package_of_ours_that_is_not_installed_says_which_package(
    scheme: str, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(stores, "entry_points", EntryPoints([]).select)
    with pytest.raises(MissingExtra, match=f"{scheme}:// needs .*: pip install pgleaderlock-etcd$"):
        open_backend(f"{scheme}://etcd-1/locks/a")


def test_a_package_that_is_missing_is_named_with_how_to_install_it(tmp_path: Path):
    (tmp_path / "config").write_text(
        "clusters: [{name: c, cluster: {server: 'http://127.0.0.1:1'}}]\n"
        "contexts: [{name: c, context: {cluster: c}}]\ncurrent-context: c\n"
    )
    wanted = r"httpx.*pip install 'pgleaderlock\[kubernetes\]'"
    anew = ("pgleaderlock.stores.kubernetes",)
    with without_packages("httpx", imported_anew=anew), pytest.raises(MissingExtra, match=wanted):
        open_backend("k8s://jobs/worker", environ={"KUBECONFIG": str(tmp_path / "config")})
