"""Words of a command line and files of a configuration, whatever they are: done, or refused with exit code 2."""

import contextlib
import io
import tempfile
from pathlib import Path

import pytest
from hypothesis import example
from hypothesis import strategies as st

from pgleaderlock.cli.commands import invoke
from pgleaderlock.stores.file import _record as _file_record
from tests.support.fuzzing import SECRET, damaged, fuzzed, texts

pytestmark = pytest.mark.proof

EXAMPLE = (Path(__file__).parents[2] / "examples" / "pgleaderlock.toml").read_bytes()
VARIABLES = ("PG_DSN", "PGLEADERLOCK_URL", "PGLEADERLOCK_CONFIG")


@pytest.fixture(autouse=True)
def _no_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in VARIABLES:
        monkeypatch.delenv(name, raising=False)


def check(arguments: list[str], *codes: int) -> str:
    """It ends with a documented code, and says so in words that a terminal shows and does not obey."""
    output = io.StringIO()
    with contextlib.redirect_stdout(output), contextlib.redirect_stderr(output):
        code = invoke(arguments)
    said = output.getvalue()
    assert code in codes, said
    assert all(character.isprintable() or character == "\n" for character in said), ascii(said)
    assert "Traceback" not in said
    leaked = SECRET in said
    assert not leaked
    return said


COMMANDS = ["status", "acquire", "run", "history", "audit", "ticks", "step-down", "doctor"]
FLAGS = [
    "--role",
    "--key",
    "--lock",
    "--since",
    "--limit",
    "--lease",
    "--health-interval",
    "--schema",
    "--url",
    "--dsn",
]
WORDS = st.lists(
    st.tuples(st.sampled_from(FLAGS), texts("1", "a", "5s", "memory://a", "pair:1/2")), min_size=1, max_size=3
)


@fuzzed(st.sampled_from(COMMANDS), WORDS, examples=40)
@example("status", [("--key", f"postgresql://u:{SECRET}@h/d")])
@example("history", [("--since", "\x1b[31m")])
@example("acquire", [("--lease", f"postgresql://u:{SECRET}@h/d")])
@example("status", [("--url", "file:///srv/\ud800")])
def test_any_words_are_refused_as_wrong_usage(command: str, words: list[tuple[str, str]]) -> None:
    """A flag that no command has is among them, so that none of them is ever done."""
    arguments = [word for flag, text in words for word in (flag, text)]
    check([command, *arguments, "--url", "nothing://"], 2)


# A store that is really called like that is shown by its name.
NAMES = texts("a", "%20", "lock").filter(lambda name: SECRET not in name)


@fuzzed(st.sampled_from(["memory://", "file://{}/", "nfs://{}/", "{}/"]), NAMES, examples=20)
@example("file://{}/", "\x1b]0;owned\x07a/b")
def test_any_url_of_a_store_on_this_host_is_looked_at_or_refused(place: str, name: str) -> None:
    with tempfile.TemporaryDirectory() as folder:
        check(["status", "--url", place.format(folder) + name], 0, 2, 3)


DEEP = [b"a = " + b"[" * 5000, b"[" + b"a." * 5000 + b"b]", b"a" * 200_000, b"x = " + b"9" * 6000, b"\xff\xfe", b"\0"]
KEYS = [
    "[cluster.leader_election]",
    "backend = ",
    "roles = ",
    "[metrics]",
    "port = ",
    "[[alerts]]",
    "name = ",
    "about = ",
]
TOML = st.lists(st.sampled_from([*KEYS, "{", "[", "=", "\n"]) | texts("'a'", "5", '"5s"'), max_size=8)


@fuzzed(
    st.sampled_from(DEEP)
    | TOML.map(lambda parts: "\n".join(parts).encode("utf-8", "surrogatepass"))
    | damaged(b'{"a": 1}').map(lambda text: EXAMPLE + text)
    | st.integers(0, len(EXAMPLE)).map(lambda end: EXAMPLE[:end] + b"\x1b[31m"),
    examples=30,
)
@example(DEEP[1])
def test_any_configuration_is_taken_or_refused_as_wrong_usage(content: bytes) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "node.toml")
        path.write_bytes(content)
        check(["config", "check", "--config", str(path)], 0, 2)


@fuzzed(NAMES, examples=20)
@example("x" * 70_000)
def test_a_holder_of_any_name_is_shown(name: str) -> None:
    """A file's record may come from any program."""
    encoded = _file_record.encode(_file_record.Entry(name or "x", 7, 15.0, name, None))
    is_read = len(encoded) <= 65536
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "lock")
        for written in (path, path.with_name("lock.live.7")):
            written.write_bytes(encoded)
        said = check(["status", "--url", f"file://{path}"], 0 if is_read else 3)
        assert ("is held by" if is_read else "far too large") in said
