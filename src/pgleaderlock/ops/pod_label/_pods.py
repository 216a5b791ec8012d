"""What a pod says of the label, and which change follows from that. Pure: nothing here is sent.

Every change carries the resourceVersion of what was read, so the API server refuses it (409) when the pod was changed
since. Together with the comparison of tokens this is why an outdated leader never removes the label of a newer one.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from pgleaderlock._base.pod_labels import LeaderLabel
from pgleaderlock.errors import ConnectionError
from pgleaderlock.stores.kubernetes.api import PodObject

COST_KEY, COST = "controller.kubernetes.io/pod-deletion-cost", "1000"
"""Of the pods of a ReplicaSet, the controller ends those with a lower cost first; without the annotation it is 0."""
_TOKEN_DIGITS = 20  # of a 64-bit number; int() of a long text takes long


@dataclass(frozen=True, slots=True)
class LabelledTerm:
    """A term for which this pod is labelled. Two terms are two objects, also where the store has no tokens."""

    token: int | None
    process: str


@dataclass(frozen=True, slots=True)
class PodSeen:
    """One pod as it was read."""

    name: str
    uid: str
    version: str
    has_label: bool
    token: int | None
    process: str | None
    is_annotated: bool
    cost: str | None = None
    """What it would cost to end this pod, as COST_KEY has it."""

    @property
    def is_bare(self) -> bool:
        """Whether it has neither the label nor an annotation of it."""
        return not self.has_label and not self.is_annotated


def read_pod(content: PodObject, label: LeaderLabel) -> PodSeen:
    """Return what the metadata of a pod say of this label; ConnectionError if they are no metadata."""
    metadata = content.get("metadata")
    if not isinstance(metadata, dict) or not isinstance(metadata.get("name"), str):
        raise ConnectionError("the API server answered with something that is no pod")
    labels, annotations = metadata.get("labels") or {}, metadata.get("annotations") or {}
    if not isinstance(labels, dict) or not isinstance(annotations, dict):
        raise ConnectionError("the API server answered with a pod whose labels are no mapping")
    token, process = annotations.get(label.token_key), annotations.get(label.process_key)
    return PodSeen(
        metadata["name"],
        str(metadata.get("uid", "")),
        str(metadata.get("resourceVersion", "")),
        has_label=labels.get(label.key) == label.value,
        token=_number(token),
        process=process if isinstance(process, str) else None,
        is_annotated=token is not None or process is not None,
        cost=annotations.get(COST_KEY),
    )


def read_pods(content: PodObject, label: LeaderLabel) -> list[PodSeen]:
    """Return the pods of a list."""
    items = content.get("items") or []
    if not isinstance(items, list) or not all(isinstance(item, dict) for item in items):
        raise ConnectionError("the API server answered with something that is no list of pods")
    return [read_pod(item, label) for item in items]


def _number(text: object) -> int | None:
    is_number = isinstance(text, str) and text.isascii() and text.isdecimal() and len(text) <= _TOKEN_DIGITS
    return int(str(text)) if is_number else None


# --- What follows ----------------------------------------------------------------------------------------------------


def is_newer(seen: PodSeen, token: int | None) -> bool:
    """Return whether the pod was labelled in a later term than the one with this token."""
    return seen.token is not None and token is not None and seen.token > token


def is_labelled(seen: PodSeen, term: LabelledTerm) -> bool:
    """Return whether the pod already says what it should in this term."""
    return seen.has_label and (seen.token, seen.process) == (term.token, term.process)


def is_of_earlier_leader(seen: PodSeen, term: LabelledTerm) -> bool:
    """Return whether another pod was labelled in an earlier term than ours, for certain: both have a token."""
    return seen.token is not None and term.token is not None and seen.token < term.token


def is_left_over(seen: PodSeen, own_process: str, lives: Callable[[str], bool]) -> bool:
    """Return whether our pod has a label that no process of it needs, when we start: we do not lead yet.

    A container that was killed starts again in the same pod. Another process of this container may lead, though.
    """
    is_of_another = seen.process not in (None, own_process)
    return not seen.is_bare and not (is_of_another and lives(str(seen.process)))


def labelling(seen: PodSeen, label: LeaderLabel, term: LabelledTerm) -> PodObject:
    """Return the patch that labels this pod, if it is still as it was seen."""
    token = None if term.token is None else str(term.token)
    annotations = {label.token_key: token, label.process_key: term.process}
    # A cost that an operator gave the pod stays.
    return _patch(seen, {label.key: label.value}, annotations | ({COST_KEY: COST} if seen.cost is None else {}))


def unlabelling(seen: PodSeen, label: LeaderLabel) -> PodObject:
    """Return the patch that removes the label and its annotations, if the pod is still as it was seen."""
    labels = {label.key: None} if seen.has_label else {}  # the same key with another value is not ours
    cost = {COST_KEY: None} if seen.cost == COST else {}
    return _patch(seen, labels, {label.token_key: None, label.process_key: None} | cost)


def _patch(seen: PodSeen, labels: Mapping[str, str | None], annotations: Mapping[str, str | None]) -> PodObject:
    return {"metadata": {"resourceVersion": seen.version, "labels": labels, "annotations": annotations}}
