"""``--pod-label``: the leader's pod carries a label in Kubernetes. For every command that takes part in an election."""

from typing import TYPE_CHECKING

from pgleaderlock._base.pod_labels import parse_label
from pgleaderlock.cli.options import wrong_usage
from pgleaderlock.engine.election import Election

if TYPE_CHECKING:
    from pgleaderlock.ops.pod_label import PodLabel


def find_pod(label: str | None, role: str | None, *, named: str) -> "PodLabel | None":
    """Return the label of the pod of this process; None without one. Wrong usage if this is no pod.

    ``named`` is the option or key that gave it. Call it before anything is started.
    """
    if label is None:
        return None
    from pgleaderlock.ops.pod_label import PodLabel  # noqa: PLC0415 - only where it is used

    with wrong_usage(said=f"{named}: {{}}"):
        return PodLabel(str(parse_label(label, role)))


def label_pod(election: Election, pod: "PodLabel | None") -> Election:
    """Return the election, whose terms label the pod from now on."""
    if pod is not None:
        pod.watch(election)
    return election
