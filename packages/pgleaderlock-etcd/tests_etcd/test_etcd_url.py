"""URLs of locks in etcd: what is typed is obeyed, or refused with a reason and without the password."""

import subprocess
from pathlib import Path
from typing import Any

import pytest

from pgleaderlock import open_backend
from pgleaderlock_etcd.url import parse

SECRET = "hunter2-secret"


@pytest.mark.parametrize(
    ("url", "role", "endpoints", "key"),
    [
        ("etcd://localhost/a", None, ["http://localhost:2379"], b"a"),
        ("etcd://h1,h2:1234,h3/locks/a", None, ["http://h1:2379", "http://h2:1234", "http://h3:2379"], b"locks/a"),
        ("etcd://[::1]:99,10.0.0.1/a%2Fb%20c", None, ["http://[::1]:99", "http://10.0.0.1:2379"], b"a/b c"),
        ("etcd://H1//a", None, ["http://h1:2379"], b"/a"),
        ("etcd://h/locks", "billing/scheduler", ["http://h:2379"], b"locks/billing/scheduler"),
        ("etcd://h/locks/", "a", ["http://h:2379"], b"locks/a"),
        ("etcd://h", "a", ["http://h:2379"], b"a"),
        ("etcds://h/a", None, ["https://h:2379"], b"a"),
    ],
)
def test_a_url_names_members_and_a_key(url: str, role: str | None, endpoints: list[str], key: bytes):
    where = parse(url, role)
    assert list(where.endpoints) == endpoints
    assert where.key == key


def test_user_and_password_are_in_the_url_or_options():
    where = parse("etcd://app%40x:p%3Aw%2F@h/a")
    assert (where.user, where.password) == ("app@x", "p:w/")
    assert SECRET not in repr(parse(f"etcd://app:{SECRET}@h/a"))
    given = parse("etcd://app@h/a", password=SECRET)
    assert (given.user, given.password) == ("app", SECRET)


@pytest.mark.parametrize(
    ("url", "options", "reason"),
    [
        ("etcd://h", {}, "the path of the URL is the key"),
        ("etcd://h/", {}, "the path of the URL is the key"),
        ("etcd://h/a/", {}, "do not end with a slash"),
        (f"etcd://h/{'x' * 2000}", {}, "up to 1024 bytes"),
        ("etcd:///a", {}, "host number 1"),
        ("etcd://h1,,h3/a", {}, "host number 2"),
        ("etcd://h:0/a", {}, "host number 1"),
        ("etcd://h:70000/a", {}, "host number 1"),
        (f"etcd://u:{SECRET}@x@h,{SECRET}!/a", {}, "host number 2"),
        ("etcd://h,H:2379/a", {}, "twice"),
        (f"etcd://app:{SECRET}#x@h/a", {}, "%23"),
        (f"etcd://:{SECRET}@h/a", {}, "without a user"),
        ("etcd://app@h/a", {}, "one of them is missing"),
        ("etcd://h/a", {"password": SECRET}, "one of them is missing"),
        (f"etcd://app:{SECRET}@h/a", {"user": "other"}, "both in the URL and an option"),
        ("etcd://h/a?ca=/x", {}, "write etcds://"),
        ("etcd://h/a", {"cert": "/x", "key": "/y"}, "write etcds://"),
        ("etcds://h/a?cert=/x", {}, "both cert= and key="),
        ("etcds://h/a?verify=no", {}, "has ca=, cert= and key="),
        ("etcds://h/a?ca=", {}, "has ca=, cert= and key="),
        ("etcds://h/a?ca=/nonexistent/ca.pem", {}, "ca=/nonexistent/ca.pem"),
        ("etcd://h/a", {"next_after_s": 0}, "next_after_s must be"),
    ],
)
def test_a_wrong_url_is_refused_before_anything_is_connected(url: str, options: dict[str, Any], reason: str):
    with pytest.raises(ValueError, match=reason.replace("%", r"\%")) as refused:
        open_backend(url, **options)
    assert SECRET not in str(refused.value)


def test_an_option_that_does_not_exist_or_is_no_text_is_refused():
    with pytest.raises(TypeError, match=r"etcd:// has no option colour\. It has: user, password"):
        open_backend("etcd://h/a", colour="red")
    with pytest.raises(TypeError, match="user must be a str"):
        open_backend("etcd://h/a", user=1, password="x")


def test_a_key_with_a_passphrase_is_refused_and_not_asked_for(pki: Path, tmp_path: Path):
    locked = tmp_path / "locked.key"
    words = ("openssl", "ec", "-aes256", "-passout", "pass:x", "-in", str(pki / "me.key"), "-out", str(locked))
    subprocess.run(words, check=True, capture_output=True)
    with pytest.raises(ValueError, match="encrypted with a passphrase"):
        open_backend(f"etcds://h/a?cert={pki / 'me.crt'}&key={locked}")


def test_labels_name_members_and_key_without_the_user():
    backend = open_backend(f"etcd://app:{SECRET}@h1,h2/locks/a")
    assert backend.labels == {"etcd": "h1:2379,h2:2379", "key": "locks/a"}
