"""What stands for one process and its sessions is neither pickled nor copied. (A lock of ``nfs`` may be.)"""

import copy
import pickle
from collections.abc import Callable
from typing import Any

import pytest

from pgleaderlock import Election, LeaderGroup, LeaderLock, open_backend, sync

DSN = "postgresql://app:hunter2-must-not-be-seen@db/app"

ONE_OF_EACH: dict[str, Callable[[], Any]] = {
    "LeaderLock": lambda: LeaderLock(DSN, 1, 2),
    "GroupRole": lambda: LeaderGroup(DSN, ["a"])["a"],
    "LeaderGroup": lambda: LeaderGroup(DSN, ["a"]),
    "Election": lambda: Election(open_backend("memory://x")),
    "sync.LeaderLock": lambda: sync.LeaderLock(DSN, 1, 2),
}


@pytest.mark.parametrize("duplicate", [pickle.dumps, copy.copy, copy.deepcopy])
@pytest.mark.parametrize("name", ONE_OF_EACH)
def test_it_is_refused_with_what_to_do_instead(name: str, duplicate: Callable[[Any], object]):
    """Two objects would act on one session, and each take the other's lock for its own."""
    with pytest.raises(TypeError, match=r"cannot be pickled or copied.*create one in the process"):
        duplicate(ONE_OF_EACH[name]())
