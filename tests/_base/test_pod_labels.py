"""The syntax of a pod label is that of Kubernetes; tests/stores/test_pods_contract.py asks a real server the same."""

import pytest

from pgleaderlock._base.pod_labels import has_role_in_key, label_fault, parse_label


@pytest.mark.parametrize(
    "text",
    [
        "pgleaderlock/leader=billing",
        "leader=yes",
        "leader=",
        "a.b-c.example/x_y.Z=A-1.b_c",
        f"{'a' * 63}={'b' * 63}",
        f"{'a.' * 126}a/x=y",
        "pgleaderlock/{role}=leader",
    ],
)
def test_a_label_of_kubernetes_is_taken(text: str):
    assert label_fault(text) is None


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("leader", "must be KEY=VALUE"),
        ("", "must be KEY=VALUE"),
        (7, "must be KEY=VALUE"),
        ("=x", "must have a key"),
        ("a/=x", "must have a key"),
        ("-a=x", "must have a key"),
        (f"{'a' * 64}=x", "must have a key"),
        ("a=b=c", "must have a value"),
        ("a=-b", "must have a value"),
        ("a=b c", "must have a value"),
        ("a=\u00fc", "must have a value"),
        (f"a={'b' * 64}", "must have a value"),
        ("/a=x", "must have a DNS name"),
        ("A/b=x", "must have a DNS name"),
        ("a/b/c=x", "must have a DNS name"),
        ("a..b/c=x", "must have a DNS name"),
        (f"{'a.' * 127}a/x=y", "must have a DNS name"),
    ],
)
def test_what_kubernetes_refuses_is_refused_with_the_rule(text: object, why: str):
    assert str(label_fault(text)).startswith(why)


def test_an_error_names_the_label_and_never_a_connection_string():
    with pytest.raises(ValueError, match=r"pod label 'a=b c' must have a value of 1 to 63 letters"):
        parse_label("a=b c")
    with pytest.raises(ValueError, match="not shown") as caught:
        parse_label("postgresql://app:s3cret@db/app?a=b")
    assert "s3cret" not in str(caught.value)
    with pytest.raises(TypeError, match="must be a str, not int"):
        parse_label(7)  # type: ignore[arg-type]


def test_a_role_takes_its_place_and_is_checked_there():
    label = parse_label("pgleaderlock/{role}=leader", "billing")
    assert (str(label), label.key, label.value) == ("pgleaderlock/billing=leader", "pgleaderlock/billing", "leader")
    with pytest.raises(ValueError, match="pod label 'x/a@b=leader' must have a key"):
        parse_label("x/{role}=leader", "a@b")
    with pytest.raises(ValueError, match="no role is named here"):
        parse_label("x/{role}=leader")
    assert has_role_in_key("x/{role}=leader")
    assert not has_role_in_key("x/leader={role}")


def test_annotations_are_named_after_the_label_within_the_length_of_a_name():
    label = parse_label("pgleaderlock/leader=billing")
    assert (label.token_key, label.process_key) == ("pgleaderlock/leader-token", "pgleaderlock/leader-process")
    assert parse_label("leader=x").token_key == "leader-token"
    long = [parse_label(f"x/{'a' * 62}{last}=y") for last in "bc"]
    keys = {each.token_key for each in long} | {each.process_key for each in long}
    assert len(keys) == 4
    assert all(label_fault(f"{key}=x") is None for key in keys)
