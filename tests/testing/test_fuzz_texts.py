"""Whatever is written where a name, a time, a connection string or a URL belongs is taken, or refused in our words."""

import pytest
from hypothesis import example
from hypothesis import strategies as st

from pgleaderlock import LockKey, open_backend
from pgleaderlock._base.durations import parse_duration, show_duration
from pgleaderlock.postgres import _dsn
from pgleaderlock.stores import place
from pgleaderlock.stores.nfs import Lock
from pgleaderlock.work.schedule.cron import Cron
from tests.support.fuzzing import SECRET, fuzzed, refused_in_words, texts

pytestmark = pytest.mark.proof

WRONG = (ValueError, TypeError)


@fuzzed(texts("pair:", "bigint:", "named:", "1/2"), examples=40)
@example("pair:" + "9" * 5000 + "/1")
@example(f"postgresql://u:{SECRET}@h/d")
def test_any_text_is_a_key_that_prints_and_parses_back_or_is_refused(text: str) -> None:
    with refused_in_words(*WRONG):
        key = LockKey.parse(text)
        assert LockKey.parse(str(key)) == key


@pytest.mark.parametrize("value", [None, 5, b"pair:1/2", ["pair:1/2"]], ids=repr)
def test_a_key_that_is_no_text_is_refused(value: object) -> None:
    with pytest.raises(TypeError, match="a lock key is written as a str"):
        LockKey.parse(value)  # type: ignore[arg-type]


@fuzzed(texts("a", "/"), examples=30)
@example(f" postgresql://u:{SECRET}@h/d")
def test_any_text_is_a_role_or_is_refused(text: str) -> None:
    with refused_in_words(*WRONG):
        assert LockKey.named(text).name == text


@fuzzed(texts("1", "h", "m", "s", "ms", ".5", " "), examples=40)
def test_any_text_is_a_duration_that_is_shown_and_read_back_or_is_refused(text: str) -> None:
    with refused_in_words(ValueError):
        seconds = parse_duration(text)
        assert parse_duration(show_duration(seconds)) == seconds


@fuzzed(st.lists(texts("*", "*/5", "1-5", "0", "31", "2", "mon#5", "L", ","), max_size=7).map(" ".join), examples=40)
@example("9" * 5000 + " * * * *")
def test_any_text_is_a_cron_expression_or_is_refused(text: str) -> None:
    with refused_in_words(*WRONG):
        Cron(text)


@fuzzed(texts("Europe/Berlin", "/etc/passwd"), examples=20)
def test_any_text_is_a_time_zone_or_is_refused(text: str) -> None:
    with refused_in_words(*WRONG):
        Cron("* * * * *", text)


DSN_PIECES = (
    "host=a,b ",
    "port=",
    "connect_timeout=",
    "options=-cstatement_timeout=",
    "postgresql://a,b/",
    "d?",
    "=1 ",
)


@fuzzed(texts(*DSN_PIECES), examples=75)
@example("host=a,b port=" + "9" * 5000)
@example("9" * 5000 + "://h/d")
@example("host=a,b connect_timeout=--5")
@example("host=a,b connect_timeout=" + "9" * 5000)
@example("host=a,b connect_timeout=５")
@example("host=a options='-c statement_timeout=" + "9" * 400 + "d'")
def test_any_text_is_a_connection_string_or_is_refused_and_its_parts_are_of_use(text: str) -> None:
    with refused_in_words(*WRONG):
        parts = _dsn.check_dsn(text)
        assert _dsn.check_dsn(_dsn.with_defaults(parts, lease_s=15.0))
        assert 0 <= _dsn.connect_s(parts, 15.0) < 1e12
        assert (_dsn.statement_timeout_s(parts) or 1.0) < float("inf")
        assert _dsn.put_first(parts, "b", 5432).keys() >= {"host"} & parts.keys()
        if SECRET not in str({**parts, "password": ""}):
            leaked = SECRET in _dsn.describe(parts)
            assert not leaked


SCHEMES = ["", "memory://", "file:///srv/", "file:", "nfs:///srv/", "nfs:", "k8s://", "postgresql://", "postgres://h/"]


@fuzzed(st.sampled_from([*SCHEMES, "postgresql+lease://"]), texts("://", "a", "%20"), texts("a"), examples=125)
@example("memory://", "[", "")
@example("file://", "[", "")
@example("file:///srv/", "\ud800", "")
@example("file:///srv/", f"postgresql://u:{SECRET}@h/d/", "")
@example("nfs:///srv/", "a\x1b[31m/", "")
@example("postgresql://", "h/d", f"password={SECRET} ")
def test_any_text_is_the_url_of_a_backend_or_is_refused(scheme: str, rest: str, role: str) -> None:
    with refused_in_words(*WRONG):
        open_backend(scheme + rest, role=role or None)


@fuzzed(texts(), examples=20)
def test_any_text_is_an_identity_or_is_refused(identity: str) -> None:
    with refused_in_words(*WRONG):
        open_backend("memory://any", identity=identity)


@fuzzed(texts("/srv/", "a"), texts("|"), examples=30)
def test_any_text_is_the_path_of_a_lock_or_is_refused(path: str, separator: str) -> None:
    with refused_in_words(*WRONG):
        Lock(path, separator=separator)


MOUNT = "22 27 0:21 / {} rw,relatime shared:1 - {} {} rw\n"


@fuzzed(texts("/srv").map(lambda name: "/srv/" + name.replace(" ", "\\040").replace("\n", "\\012")), examples=20)
@example("/srv/\x0b\x1c\x85\u2028\xa0")
def test_mounts_of_any_name_do_not_hide_the_others(tmp_path_factory: pytest.TempPathFactory, name: str) -> None:
    """The kernel writes blanks and line ends as digits; what else Python takes for such is part of the name."""
    mounts = tmp_path_factory.mktemp("mounts") / "mountinfo"
    mounts.write_bytes(
        (MOUNT.format("/", "ext4", "disk") + MOUNT.format(name, "nfs", "host:/" + name)).encode("utf-8", "replace")
    )
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(place, "_MOUNTS", mounts)
        assert place.describe(tmp_path_factory.getbasetemp()) == "local disk (ext4)"
