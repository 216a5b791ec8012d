"""What the files say, to whoever only looks: which term is the newest, whose it is, and whether anybody is left in it.

The newest term is the greatest number that has a file, or that the record speaks of. The record may lag behind: the
newest term's holder has yet to replace it, or a thawed process replaced it too late. Then the term's own file speaks.
"""

from dataclasses import dataclass

from pgleaderlock._files import place
from pgleaderlock.backends._file_folder import Folder, Live
from pgleaderlock.backends._file_record import COUNTED_BY_NAME, Entry, decode, digest_of
from pgleaderlock.backends.record import Record
from pgleaderlock.errors import ConnectionError

__all__ = ["Version", "View", "record_of"]

_UNREADABLE = "(unreadable)"


@dataclass(frozen=True, slots=True)
class Version:
    """Which state of the files a record was read from."""

    term: int
    digest: str | None
    """Of the text of the record; None where there was none."""


def record_of(entry: Entry, text: bytes) -> Record:
    """Return what we wrote as others read it."""
    version = Version(entry.token, digest_of(text))
    return Record(entry.holder, entry.token, entry.lease_s, version, since=entry.acquire_time)


class View:
    """The files of one lock, as they are now. ``lease_s`` is how long something unreadable is waited out."""

    def __init__(self, folder: Folder, lease_s: float) -> None:
        self._folder = folder
        self._lease_s = lease_s

    def look(self, ours: Live | None, identity: str | None) -> Record | None:
        """Return what the newest term is.

        Its holder goes by our name only if the term is really ours: the same name in another process's record is shown
        with that process's number, and so taken for another's, as it is.
        """
        text, published = self.published()
        terms = self._folder.terms()  # after the record: a term that began in between shows here
        if text is None and not terms:
            return None
        if published is None and not terms and text is not None and _is_somebody_elses(text):
            raise ConnectionError(
                f"{self._folder.path} is not a lock file, it is something else: choose another path, or remove it"
            )
        term = max([*terms[-1:], 0 if published is None else published.token])
        entry = published if published is not None and published.token == term else self._claimed(term)
        version = Version(term, None if text is None else digest_of(text))
        if entry is None:
            return Record(_UNREADABLE, term, self._lease_s, version)
        holder = entry.holder
        if holder and holder == identity and not self._is_held(ours, term):
            holder = f"{holder} (pid {entry.pid} on {entry.host})"
        return Record(holder, term, entry.lease_s, version, since=entry.acquire_time or None)

    def published(self) -> tuple[bytes | None, Entry | None]:
        """Return the text of the record and what it means: None where there is none, or it cannot be read.

        A far number in it counts only if that is a term: else it would end all elections, if it is the last one.
        """
        text = self._folder.read(self._folder.path)
        entry = None if text is None else decode(text)
        if entry is not None and entry.token > COUNTED_BY_NAME and entry.token not in self._folder.terms():
            entry = None
        return text, entry

    def is_newest(self, live: Live) -> bool:
        """Whether no later term has a file, and this one's is still in its place."""
        return self._folder.terms()[-1:] == [live.token] and self._folder.is_in_place(live)

    def is_abandoned(self, record: Record) -> bool:
        """Whether the kernel knows that nobody is left who could believe in this record.

        Beside the newest term, that is everybody from the one that the record speaks of: between them, the file of a
        term may have been made by somebody who died before it counted, while the last leader went on.
        """
        try:
            text, published = self.published()
            if record.version != Version(record.token, None if text is None else digest_of(text)):
                return False
            if text is not None and (published is None or not _is_of_this_boot(published)):
                return False
            oldest = 0 if published is None else published.token
            terms = [term for term in self._folder.terms() if term >= oldest]
            return terms[-1:] == [record.token] and all(map(self._is_over, terms))
        except ConnectionError:
            return False  # it cannot be told, and the lease will

    def _is_over(self, term: int) -> bool:
        entry = self._claimed(term)
        return entry is not None and _is_of_this_boot(entry) and self._folder.is_free(term)

    def _claimed(self, term: int) -> Entry | None:
        text = self._folder.read(self._folder.live_path(term))
        return None if text is None else decode(text)

    def _is_held(self, ours: Live | None, term: int) -> bool:
        return ours is not None and ours.token == term and self._folder.is_in_place(ours)


def _is_somebody_elses(text: bytes) -> bool:
    """Whether this was never a record: one begins with a brace, and a damaged disk leaves nothing, or zeros."""
    return bool(text.strip(b"\0 \n")) and not text.startswith(b"{")


def _is_of_this_boot(entry: Entry) -> bool:
    return entry.boot_id is not None and entry.boot_id == place.boot_id()
