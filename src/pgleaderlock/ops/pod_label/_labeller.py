"""The task that keeps the label of one pod as its election has it. It fails and waits alone: no election notices.

While this process leads, it looks at the labelled pods once in each renewal interval, with one cheap request: a list
from the API server's memory, or a GET of its own pod where it may not list. It writes only what is not as it should be.
While it follows, it sends nothing once its own pod is without the label.
"""

import asyncio
import contextlib
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from typing import Any, TypeVar

from pgleaderlock._base.pod_labels import LeaderLabel
from pgleaderlock._logging import NDLogger
from pgleaderlock.errors import ConnectionError
from pgleaderlock.ops._rare_log import RareLog
from pgleaderlock.ops.pod_label import _pods
from pgleaderlock.ops.pod_label._own_pod import OwnPod
from pgleaderlock.ops.pod_label._pods import LabelledTerm, PodSeen
from pgleaderlock.ops.pod_label._process import lives
from pgleaderlock.stores.kubernetes.api import ApiError, PodObject

_FORBIDDEN, _NOT_FOUND, _CONFLICT = 403, 404, 409
_TRIES = 5  # of one change, while other clients change the same pod
_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 0.25, 10.0
_FORBIDDEN_FOR_S = 60.0  # an operator may add the permission meanwhile

_Decide = Callable[[PodSeen], PodObject | None]
T = TypeVar("T")


class _ToldError(Exception):
    """There is news of the election: what was begun is left."""


@dataclass(slots=True)
class Labeller:
    """Labels one pod in the terms that it is given, and removes the label between them."""

    label: LeaderLabel
    pod: OwnPod
    process: str
    check_s: float
    leads: Callable[[], bool]
    logger: NDLogger
    rare: RareLog
    _term: LabelledTerm | None = None
    _last: LabelledTerm | None = None
    """The last term of this process; None before its first: then the label is that of an earlier process."""
    _seen: PodSeen | None = None
    """Our pod as it was read or written last; None while that is unknown."""
    _uid: str | None = None
    _is_withdrawn: bool = False
    """Whether our pod is without a label of ours since the end of the last term."""
    _is_leaving: bool = False
    _may_list_from: float = 0.0
    _has_logged_list: bool = False
    _failures: int = 0
    _news: asyncio.Event = field(default_factory=asyncio.Event)

    # --- What the election says ----------------------------------------------------------------------------------

    def follow(self, term: LabelledTerm | None) -> None:
        """Label the pod in this term from now on; None: remove the label."""
        if term is None and self._term is None:
            return
        self._term, self._last, self._is_withdrawn = term, term or self._term, False
        self._news.set()

    def leave(self) -> None:
        """End :meth:`run` as soon as the pod is without our label."""
        self._is_leaving = True
        self._news.set()

    @property
    def _is_over(self) -> bool:
        return self._is_leaving and self._is_withdrawn

    # --- The task ------------------------------------------------------------------------------------------------

    async def run(self) -> None:
        """Keep the label right until :meth:`leave`."""
        while not self._is_over:
            self._news.clear()
            pause_s = await self._attempt()
            if not self._is_over:
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(pause_s):
                        await self._news.wait()

    async def _attempt(self) -> float | None:
        """Bring the pod to what it should be; return after how long to look again, None for only when told."""
        try:
            await self._settle()
        except _ToldError:
            return None
        except Exception as error:  # noqa: BLE001 - of any kind, also of a user's client: an election must not notice
            self._seen = None
            self._failures += 1
            self.rare.warning("pod_label_failed", error=error)
            return min(_LONGEST_PAUSE_S, _FIRST_PAUSE_S * 2.0 ** min(self._failures - 1, 10))
        self._failures = 0
        return None if self._term is None else self.check_s

    async def _settle(self) -> None:
        term = self._term
        if term is None:
            if not self._is_withdrawn:
                await self._unlabel_own()
        elif self._seen is None or not _pods.is_labelled(self._seen, term):
            await self._label_own(term)
            await self._unlabel_others(await self._unless_told(self._labelled_pods(cached=False)), term)
        else:
            await self._check(term)

    async def _unless_told(self, call: Coroutine[Any, Any, T]) -> T:
        """Return the result, unless there is news: removing our own label must not wait for a slow list."""
        task, news = asyncio.ensure_future(call), asyncio.ensure_future(self._news.wait())
        try:
            await asyncio.wait({task, news}, return_when=asyncio.FIRST_COMPLETED)
            if not task.done():
                raise _ToldError
            return task.result()
        finally:
            task.cancel()
            news.cancel()
            await asyncio.wait({task, news})

    # --- Our own pod ---------------------------------------------------------------------------------------------

    async def _label_own(self, term: LabelledTerm) -> None:
        if await self._change_own(lambda seen: self._labelling(seen, term)):
            self.logger.info("pod_labelled", token=term.token)
        if self._seen is not None and not _pods.is_labelled(self._seen, term):
            self._seen = None  # the next look reads it again: a newer label may be gone by then

    def _labelling(self, seen: PodSeen, term: LabelledTerm) -> PodObject | None:
        if _pods.is_labelled(seen, term) or self._term is not term or not self.leads():
            return None
        if _pods.is_newer(seen, term.token):  # of another process in our pod
            self._note_other(seen, term)
            return None
        return _pods.labelling(seen, self.label, term)

    async def _unlabel_own(self) -> None:
        if await self._change_own(self._unlabelling):
            self.logger.info("pod_unlabelled", is_left_over=self._last is None)
        self._is_withdrawn = self._term is None

    def _unlabelling(self, seen: PodSeen) -> PodObject | None:
        last = self._last
        if last is None or last.token is None or seen.token is None:
            is_ours = _pods.is_left_over(seen, self.process, lives)
        else:
            is_ours = not _pods.is_newer(seen, last.token)
        return _pods.unlabelling(seen, self.label) if is_ours else None

    async def _change_own(self, decide: _Decide) -> bool:
        seen, self._seen = self._seen, None  # unknown until there is an answer
        self._seen, is_changed = await self._change(self.pod.name, seen, decide)
        return is_changed

    # --- Any pod -------------------------------------------------------------------------------------------------

    async def _change(self, name: str, seen: PodSeen | None, decide: _Decide) -> tuple[PodSeen, bool]:
        """Send the change that follows from a pod as it is; return the pod, and whether there was a change.

        Where it was changed since it was seen, it is read and decided on again.
        """
        for _ in range(_TRIES):
            seen = seen or await self._read(name)
            change = decide(seen)
            if change is None:
                return seen, False
            try:
                return _pods.read_pod(await self.pod.client.patch(self.pod.namespace, name, change), self.label), True
            except ApiError as error:
                if error.status != _CONFLICT:
                    raise
                seen = None
        raise ConnectionError(f"pod {self.pod.namespace}/{name} was modified concurrently, {_TRIES} times in a row")

    async def _read(self, name: str) -> PodSeen:
        try:
            seen = _pods.read_pod(await self.pod.client.get(self.pod.namespace, name), self.label)
        except ApiError as error:
            if error.status != _NOT_FOUND or name != self.pod.name:
                raise
            raise ConnectionError(
                f"there is no pod {self.pod.namespace}/{name}: set POD_NAME from metadata.name and POD_NAMESPACE from "
                "metadata.namespace (downward API); with hostNetwork the host name is that of the node"
            ) from error
        if name == self.pod.name:
            self._check_uid(seen)
        return seen

    def _check_uid(self, seen: PodSeen) -> None:
        if self._uid not in (None, seen.uid):
            raise ConnectionError(
                f"pod {self.pod.namespace}/{seen.name} was deleted and created again: it is that of another process "
                "now, so this process does not label it"
            )
        self._uid = seen.uid

    # --- The other pods ------------------------------------------------------------------------------------------

    async def _check(self, term: LabelledTerm) -> None:
        """Look once: at all labelled pods, ours among them, or where that is forbidden at ours alone."""
        pods = await self._unless_told(self._labelled_pods(cached=True))
        self._seen = next((each for each in pods if each.name == self.pod.name), None)
        await self._label_own(term)
        await self._unlabel_others(pods, term)

    async def _labelled_pods(self, *, cached: bool) -> list[PodSeen]:
        """List the pods that carry the label; none while we may not."""
        now = asyncio.get_running_loop().time()
        if now < self._may_list_from:
            return []
        try:
            content = await self.pod.client.list(self.pod.namespace, str(self.label), cached=cached)
        except ApiError as error:
            if error.status != _FORBIDDEN:
                raise
            self._may_list_from = now + _FORBIDDEN_FOR_S
            if not self._has_logged_list:
                self._has_logged_list = True
                self.logger.warning("pod_list_forbidden", error=error)
            return []
        return _pods.read_pods(content, self.label)

    async def _unlabel_others(self, pods: list[PodSeen], term: LabelledTerm) -> None:
        """Remove the label from the other pods whose term was earlier than ours."""
        for seen in pods:
            if seen.name == self.pod.name:
                continue
            if _pods.is_of_earlier_leader(seen, term):
                await self._unless_told(self._unlabel_other(seen, term))
            elif self._term is term and self.leads():
                self._note_other(seen, term)

    async def _unlabel_other(self, seen: PodSeen, term: LabelledTerm) -> None:
        def decide(seen: PodSeen) -> PodObject | None:
            return _pods.unlabelling(seen, self.label) if _pods.is_of_earlier_leader(seen, term) else None

        try:
            _, is_changed = await self._change(seen.name, seen, decide)
        except ApiError as error:
            if error.status != _NOT_FOUND:  # deleted meanwhile: its label is gone too
                raise
        else:
            if is_changed:
                self.logger.warning("earlier_label_removed", labelled_pod=seen.name, its_token=seen.token)

    def _note_other(self, seen: PodSeen, term: LabelledTerm) -> None:
        self.rare.warning("other_label_found", labelled_pod=seen.name, its_token=seen.token, token=term.token)
