"""The label that the leader's pod carries in Kubernetes: how it is written, and the annotations beside it.

``{role}`` in a label stands for the name of the role, for a configuration that has several.
"""

import hashlib
import re
from dataclasses import dataclass

from pgleaderlock._base.checks import quoted

ROLE = "{role}"
_NAME = re.compile(r"[A-Za-z0-9]([A-Za-z0-9._-]{0,61}[A-Za-z0-9])?", re.ASCII)
_PREFIX = re.compile(r"[a-z0-9]([a-z0-9-]*[a-z0-9])?(\.[a-z0-9]([a-z0-9-]*[a-z0-9])?)*", re.ASCII)
_LONGEST_PREFIX = 253
_LONGEST_NAME = 63
_DIGEST = 8


@dataclass(frozen=True, slots=True)
class LeaderLabel:
    """A label, as ``KEY=VALUE`` names it."""

    key: str
    value: str

    def __str__(self) -> str:
        return f"{self.key}={self.value}"

    @property
    def token_key(self) -> str:
        """The annotation that has the fencing token of the term for which the pod was labelled."""
        return self._annotation("token")

    @property
    def process_key(self) -> str:
        """The annotation that names the process of the pod which set the label."""
        return self._annotation("process")

    def _annotation(self, suffix: str) -> str:
        """Return a name derived from the label's, so that one pod may carry the labels of several roles."""
        prefix, slash, name = self.key.rpartition("/")
        room = _LONGEST_NAME - len("-process")  # the same cut for both annotations
        if len(name) > room:
            digest = hashlib.sha256(name.encode()).hexdigest()[:_DIGEST]
            name = f"{name[: room - _DIGEST - 1]}-{digest}"
        return f"{prefix}{slash}{name}-{suffix}"


def label_fault(text: object) -> str | None:
    """Return why this is no label, in words that follow its name; None when it is one. ``{role}`` may be in it."""
    if not isinstance(text, str) or "=" not in text:
        return "must be KEY=VALUE, such as pgleaderlock/leader=billing"
    key, _, value = text.replace(ROLE, "r").partition("=")
    prefix, slash, name = key.rpartition("/")
    if slash and (len(prefix) > _LONGEST_PREFIX or not _PREFIX.fullmatch(prefix)):
        return "must have a DNS name in lower case before the /, of at most 253 characters"
    if not _NAME.fullmatch(name):
        return f"must have a key of {_NAME_RULE}, after an optional prefix and /"
    if value and not _NAME.fullmatch(value):
        return f"must have a value of {_NAME_RULE}, or an empty one"
    return None


_NAME_RULE = "1 to 63 letters, digits, '-', '_' and '.', with a letter or digit at both ends"


def parse_label(text: str, role: str | None = None) -> LeaderLabel:
    """Return the label, of that role where it names ``{role}``; ValueError for one that Kubernetes refuses."""
    if not isinstance(text, str):
        raise TypeError(f"the pod label must be a str, not {type(text).__name__}")
    whole = text if role is None else text.replace(ROLE, role)
    fault = label_fault(whole)
    if fault is None and ROLE in whole:
        fault = "has {role} in it, and no role is named here"
    if fault is not None:
        raise ValueError(f"pod label {quoted(whole)} {fault}")
    key, _, value = whole.partition("=")
    return LeaderLabel(key, value)


def has_role_in_key(text: str) -> bool:
    """Return whether each role has a key of its own: a pod carries one value for each key."""
    return ROLE in text.partition("=")[0]
