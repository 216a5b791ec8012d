"""Lock keys: their edges, their printed form, and the hash of names, which is frozen for ever."""

import copy
import dataclasses
import hashlib
import pickle
import re
from typing import Any

import click
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from pgleaderlock.cli.options import LockName
from pgleaderlock.ops.config.model import RoleConfig
from pgleaderlock.postgres.keys import LockKey

INT4_MIN, INT4_MAX = -(2**31), 2**31 - 1
INT8_MIN, INT8_MAX = -(2**63), 2**63 - 1

int4 = st.integers(INT4_MIN, INT4_MAX)
int8 = st.integers(INT8_MIN, INT8_MAX)
names = st.from_regex(r"\A[A-Za-z0-9][A-Za-z0-9._/:@+-]{0,199}\Z").filter(
    lambda name: not name.startswith(("pair:", "bigint:", "named:"))
)
keys = st.builds(LockKey.pair, int4, int4) | st.builds(LockKey.bigint, int8) | st.builds(LockKey.named, names)

properties = settings(deadline=None, max_examples=60)


# --- The numbers -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("key1", "key2"), [(0, 0), (1, 100), (INT4_MIN, INT4_MAX), (INT4_MAX, INT4_MIN), (-1, -1)], ids=str
)
def test_a_pair_takes_every_number_of_32_bits(key1: int, key2: int) -> None:
    key = LockKey.pair(key1, key2)
    assert (key.space, key.numbers, key.name) == ("pair", (key1, key2), None)


@pytest.mark.parametrize("number", [INT4_MAX + 1, INT4_MIN - 1, INT8_MAX, 2**64, -(10**40)])
def test_a_pair_refuses_what_32_bits_cannot_hold_and_says_which_key(number: int) -> None:
    with pytest.raises(ValueError, match=rf"^key1 must be between {INT4_MIN} and {INT4_MAX}, got {number}$"):
        LockKey.pair(number, 1)
    with pytest.raises(ValueError, match=r"^key2 "):
        LockKey.pair(1, number)


@pytest.mark.parametrize("number", [0, 1, -1, INT8_MIN, INT8_MAX, INT4_MAX + 1])
def test_a_bigint_takes_every_number_of_64_bits(number: int) -> None:
    key = LockKey.bigint(number)
    assert (key.space, key.numbers, key.name) == ("bigint", (number,), None)


@pytest.mark.parametrize("number", [INT8_MAX + 1, INT8_MIN - 1, 2**64])
def test_a_bigint_refuses_what_64_bits_cannot_hold(number: int) -> None:
    with pytest.raises(ValueError, match=rf"^key must be between {INT8_MIN} and {INT8_MAX}, got {number}$"):
        LockKey.bigint(number)


def test_a_number_too_long_to_print_is_refused_by_name_too() -> None:
    """Python refuses to print an int of more than 4,300 digits; that message would name neither key nor range."""
    with pytest.raises(ValueError, match=r"^key1 must be between"):
        LockKey.pair(10**5000, 1)


@pytest.mark.parametrize("value", [True, False, "1", 1.0, None, b"1", [1], 1j], ids=repr)
def test_what_is_not_an_int_is_refused_bool_included(value: Any) -> None:
    kind = type(value).__name__
    with pytest.raises(TypeError, match=rf"^key1 must be an int, not {kind}$"):
        LockKey.pair(value, 1)
    with pytest.raises(TypeError, match=rf"^key2 must be an int, not {kind}$"):
        LockKey.pair(1, value)
    with pytest.raises(TypeError, match=rf"^key must be an int, not {kind}$"):
        LockKey.bigint(value)


def test_a_pair_and_a_bigint_are_never_the_same_lock() -> None:
    """PostgreSQL keeps two spaces; the same bits in both are two locks."""
    assert LockKey.pair(0, 1) != LockKey.bigint(1)
    assert len({LockKey.pair(0, 1), LockKey.bigint(1), LockKey.pair(1, 0)}) == 3


# --- Built by hand ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("numbers", [(), (1,), (1, 2, 3)], ids=str)
def test_a_pair_of_not_two_is_refused(numbers: tuple[int, ...]) -> None:
    with pytest.raises(ValueError, match="exactly two numbers"):
        LockKey("pair", numbers)


@pytest.mark.parametrize("numbers", [(), (1, 2)], ids=str)
def test_a_bigint_of_not_one_is_refused(numbers: tuple[int, ...]) -> None:
    with pytest.raises(ValueError, match="exactly one number"):
        LockKey("bigint", numbers)


@pytest.mark.parametrize("space", ["", "named", "PAIR", "int4", None, 0])
def test_an_unknown_space_is_refused(space: Any) -> None:
    with pytest.raises(ValueError, match="space must be 'pair' or 'bigint'"):
        LockKey(space, (1, 2))


@pytest.mark.parametrize(("space", "numbers"), [("pair", (True, 1)), ("pair", ("1", "2")), ("bigint", (None,))])
def test_numbers_of_the_wrong_type_are_refused_here_too(space: Any, numbers: Any) -> None:
    with pytest.raises(TypeError, match="must be an int"):
        LockKey(space, numbers)


@pytest.mark.parametrize(("space", "numbers"), [("pair", (2**31, 1)), ("bigint", (2**63,))])
def test_numbers_out_of_range_are_refused_here_too(space: Any, numbers: Any) -> None:
    with pytest.raises(ValueError, match="must be between"):
        LockKey(space, numbers)


@pytest.mark.parametrize(("space", "numbers"), [("pair", [1, 2]), ("bigint", [7])])
def test_numbers_in_a_list_are_refused_or_frozen_but_never_kept_as_a_list(space: Any, numbers: Any) -> None:
    """A frozen key around a list could be changed from outside, and could not be hashed."""
    try:
        key = LockKey(space, numbers)
    except TypeError:
        return
    assert hash(key) == hash(LockKey(space, tuple(numbers)))


@pytest.mark.parametrize(("space", "numbers"), [("pair", (1, 2)), ("bigint", (7,))])
def test_a_name_that_does_not_hash_to_the_number_is_refused(space: Any, numbers: Any) -> None:
    """It would print as a lock that it is not."""
    with pytest.raises(ValueError, match="name"):
        LockKey(space, numbers, "billing/scheduler")


def test_a_key_cannot_be_changed() -> None:
    key = LockKey.pair(1, 2)
    with pytest.raises(dataclasses.FrozenInstanceError):
        key.numbers = (3, 4)  # type: ignore[misc]


# --- Names -----------------------------------------------------------------------------------------------------

FROZEN = {
    # Worked out with sha256sum, outside of Python. These numbers are a protocol between processes of every version:
    # a change of one of them makes two leaders during an upgrade. There is no good reason to change this table.
    "a": 0x5970A479A3CDA9AF,
    "billing/scheduler": 0xA02D65995DC1FF7B - 2**64,
    "Z9._/:@+-": 0x160CE9C9BC849E4B,
}


@pytest.mark.parametrize("name", FROZEN)
def test_the_number_of_a_name_never_changes(name: str) -> None:
    assert LockKey.named(name).numbers == (FROZEN[name],)


def test_the_numbers_of_names_never_change_in_decimal_either() -> None:
    assert LockKey.named("a").numbers == (6444831909113342383,)
    assert LockKey.named("billing/scheduler").numbers == (-6904750944311705733,)
    assert LockKey.named("demo").numbers == (-8890261513052664415,)


@properties
@given(name=names)
def test_a_name_is_the_first_64_bits_of_its_sha_256_signed(name: str) -> None:
    digest = hashlib.sha256(b"pgleaderlock/role/1/" + name.encode("ascii")).hexdigest()
    unsigned = int(digest[:16], 16)
    expected = unsigned - 2**64 if unsigned >= 2**63 else unsigned
    key = LockKey.named(name)
    assert (key.space, key.numbers, key.name) == ("bigint", (expected,), name)


@pytest.mark.parametrize("name", ["a", "0", "A" * 200, "a.b_c/d:e@f+g-h", "9-9"], ids=lambda name: name[:20])
def test_a_usable_name_is_used(name: str) -> None:
    assert LockKey.named(name).name == name


@pytest.mark.parametrize(
    "name",
    [
        "",
        " ",
        "A" * 201,
        "two words",
        " leading",
        "trailing ",
        "newline\n",  # a regular expression's $ would let this one through
        "\nnewline",
        "new\nline",
        "tab\t",
        "nul\x00",
        "/slash-first",
        "-dash-first",
        ".dot-first",
        "_underscore-first",
        "bïlling",
        "bi\u200blling",  # a zero-width space: looks like its neighbour, hashes apart
        "\u0430dmin",  # a Cyrillic letter that looks like "a"
        "\u0661",  # an Arabic-Indic digit, which \d would take
        "\uff21",  # a full-width "A"
        "K\u212a",  # the Kelvin sign, which lower() turns into "k"
        "emoji😀",
        "semi;colon",
        "quote'",
        'double"quote',
        "back\\slash",
        "star*",
        "percent%",
        "comma,",
        "equals=",
    ],
    ids=ascii,
)
def test_an_unusable_name_is_refused_and_shown(name: str) -> None:
    with pytest.raises(ValueError, match=re.escape(repr(name))):
        LockKey.named(name)


@pytest.mark.parametrize("name", [None, 1, True, b"bytes", ["list"]], ids=repr)
def test_a_name_that_is_not_a_str_is_refused(name: Any) -> None:
    with pytest.raises(TypeError, match=rf"a role name must be a str, not {type(name).__name__}"):
        LockKey.named(name)


def test_names_that_differ_in_case_only_are_different_locks() -> None:
    assert LockKey.named("Billing") != LockKey.named("billing")


# --- Equal, printed, parsed ------------------------------------------------------------------------------------


@properties
@given(name=names)
def test_a_named_key_and_its_bigint_are_the_same_lock(name: str) -> None:
    named = LockKey.named(name)
    number = LockKey.bigint(named.numbers[0])
    assert named == number
    assert hash(named) == hash(number)
    assert str(named) == str(number)
    assert len({named, number}) == 1


@properties
@given(key=keys)
@example(key=LockKey.pair(INT4_MIN, INT4_MAX))
@example(key=LockKey.bigint(INT8_MIN))
@example(key=LockKey.bigint(INT8_MAX))
def test_the_printed_form_reads_back_as_the_same_lock(key: LockKey) -> None:
    assert LockKey.parse(str(key)) == key
    assert str(LockKey.parse(str(key))) == str(key)


@properties
@given(key=keys)
def test_the_repr_is_code_that_makes_the_key_again_name_included(key: LockKey) -> None:
    again = eval(repr(key), {"LockKey": LockKey})
    assert again == key
    assert again.name == key.name


@properties
@given(key=keys)
def test_a_key_survives_pickling_and_copying(key: LockKey) -> None:
    for again in (pickle.loads(pickle.dumps(key)), copy.deepcopy(key)):
        assert again == key
        assert again.name == key.name


def test_the_printed_forms_are_these() -> None:
    assert str(LockKey.pair(1, -100)) == "pair:1/-100"
    assert str(LockKey.bigint(-7)) == "bigint:-7"
    assert str(LockKey.named("a")) == "bigint:6444831909113342383"
    assert repr(LockKey.pair(1, -100)) == "LockKey.pair(1, -100)"
    assert repr(LockKey.bigint(-7)) == "LockKey.bigint(-7)"
    assert repr(LockKey.named("billing/scheduler")) == "LockKey.named('billing/scheduler')"


@properties
@given(name=names)
def test_a_name_can_be_written_too(name: str) -> None:
    assert LockKey.parse(f"named:{name}").name == name


@pytest.mark.parametrize(
    "text",
    [
        "",
        "7",
        "pair:",
        "pair:1",
        "pair:1/",
        "pair:1/2/3",
        "pair:1,2",
        "pair: 1/2",
        "pair:1/2 ",
        "pair:1/2\n",
        "pair:+1/2",
        "pair:1.0/2",
        "pair:\u0661/2",
        "pair:2147483648/1",
        "PAIR:1/2",
        "bigint:",
        "bigint:1/2",
        "bigint:0x",
        "bigint:0xg",
        "bigint:0b1",
        "bigint:0x_1",
        "bigint:_1",
        "bigint:1_",
        "bigint:1__0",
        "bigint:0x8000000000000000",
        "bigint:0x" + "f" * 5000,
        "bigint:9223372036854775808",
        "bigint:7\n",
        "bigint:" + "9" * 5000,
        "named:",
        "named:two words",
        "named:newline\n",
        "role:billing",
    ],
    ids=lambda text: ascii(text)[:24],
)
def test_what_is_not_a_printed_key_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"\w"):
        LockKey.parse(text)


def written(number: int) -> st.SearchStrategy[str]:
    """A number as people and programs write it: decimal or hex, in groups or not."""
    sign, digits = ("-" if number < 0 else ""), abs(number)
    forms = [
        f"{sign}{digits}",
        f"{sign}{digits:_}",
        f"{sign}0x{digits:x}",
        f"{sign}0x{digits:X}",
        f"{sign}0x{digits:_x}",
    ]
    return st.sampled_from([*forms, f"{sign}0{digits}", f"{sign}0X{digits:016_X}"])


@st.composite
def written_keys(draw: st.DrawFn) -> tuple[LockKey, str]:
    """A key, and one of the ways to write it."""
    key = draw(keys)
    forms = [str(key), f"{key.space}:{'/'.join(draw(written(number)) for number in key.numbers)}"]
    return key, draw(st.sampled_from(forms + ([] if key.name is None else [f"named:{key.name}"])))


@properties
@given(pair=written_keys())
@example(pair=(LockKey.bigint(0x464F524745_0001), "bigint:0x464F524745_0001"))
@example(pair=(LockKey.bigint(INT8_MIN), "bigint:-0x8000_0000_0000_0000"))
def test_every_form_of_a_key_is_read_as_that_lock_by_the_library_the_shell_and_the_configuration(
    pair: tuple[LockKey, str],
) -> None:
    key, text = pair
    assert LockKey.parse(text) == key
    assert LockName(key=text).choose() == key
    assert RoleConfig.model_validate({"name": "x", "key": text}).lock_key == key


@pytest.mark.parametrize("name", ["pair:1/100", "bigint:7", "bigint:0x464F524745_0001", "named:billing", "bigint:x"])
def test_a_printed_key_is_no_role_name_since_it_would_be_another_lock(name: str) -> None:
    with pytest.raises(ValueError, match="is a lock key, not a role name: pass it as the key"):
        LockKey.named(name)
    with pytest.raises(click.UsageError, match="--key"):
        LockName(role=name).choose()
    with pytest.raises(ValueError, match="begin a key"):
        RoleConfig.model_validate({"name": name})


@pytest.mark.parametrize(
    ("key", "labels", "described"),
    [
        (LockKey.pair(1, 100), {"role": "r", "key1": 1, "key2": 100}, "r (pair:1/100)"),
        (LockKey.bigint(7), {"role": "r", "key": "bigint:7"}, "r (bigint:7)"),
        (LockKey.named("a"), {"role": "r", "key": "bigint:6444831909113342383"}, "r (bigint:6444831909113342383)"),
    ],
)
def test_a_role_with_a_key_of_its_own_is_named_by_both(key: LockKey, labels: dict[str, Any], described: str) -> None:
    named = key.for_role("r")
    assert list(named.labels.items()) == list(labels.items())
    assert (named.described, named) == (described, key)
    assert eval(repr(named), {"LockKey": LockKey}).role == "r"
    with pytest.raises(ValueError, match="not usable"):
        key.for_role("two words")


@pytest.mark.parametrize("value", [None, 7, b"pair:1/2"], ids=repr)
def test_only_a_str_can_be_parsed(value: Any) -> None:
    with pytest.raises(TypeError):
        LockKey.parse(value)
