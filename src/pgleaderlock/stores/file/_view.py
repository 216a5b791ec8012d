"""Read access to the files: which term is the newest, who holds it, and whether its holder has died.

The newest term is the greatest number that has a file, or that the record names. The record may be outdated: the
newest term's holder has yet to replace it, or a process that was frozen replaced it too late. Then the term's own file
counts.
"""

from dataclasses import dataclass

from pgleaderlock.errors import ConnectionError
from pgleaderlock.stores import place
from pgleaderlock.stores.file._folder import Folder, Live
from pgleaderlock.stores.file._record import COUNTED_BY_NAME, Entry, decode, digest_of
from pgleaderlock.stores.record import Record

_UNREADABLE = "(unreadable)"


@dataclass(frozen=True, slots=True)
class Version:
    """The state of the files from which a record was read."""

    term: int
    digest: str | None
    """Of the text of the record; None where there was none."""


def record_of(entry: Entry, text: bytes) -> Record:
    """Return the record that other candidates read from the text that we wrote."""
    version = Version(entry.token, digest_of(text))
    return Record(entry.holder, entry.token, entry.lease_s, version, since=entry.acquire_time, address=entry.address)


class View:
    """The current state of a lock's files. ``lease_s`` is the lease duration of a record that cannot be read."""

    def __init__(self, folder: Folder, lease_s: float) -> None:
        self._folder = folder
        self._lease_s = lease_s

    def look(self, ours: Live | None, identity: str | None) -> Record | None:
        """Return the newest term as a record.

        Its holder equals our identity only if we hold the term: if another process uses the same identity, its process
        id is added to the name, so that we do not take its term for ours.
        """
        text, published = self.published()
        terms = self._folder.terms()  # after the record: a term that began in between shows here
        if text is None and not terms:
            return None
        if published is None and not terms and text is not None and _is_foreign(text):
            raise ConnectionError(
                f"{self._folder.path} is not a lock file, but another program's file: choose another path, or remove it"
            )
        term = max([*terms[-1:], 0 if published is None else published.token])
        entry = published if published is not None and published.token == term else self._claimed(term)
        version = Version(term, None if text is None else digest_of(text))
        if entry is None:
            return Record(_UNREADABLE, term, self._lease_s, version)
        holder = entry.holder
        if holder and holder == identity and not self._is_held(ours, term):
            holder = f"{holder} (pid {entry.pid} on {entry.host})"
        return Record(holder, term, entry.lease_s, version, entry.acquire_time or None, entry.address)

    def published(self) -> tuple[bytes | None, Entry | None]:
        """Return the text of the record and its entry; each is None where there is none, or it cannot be read.

        A far number in it counts only if that term has a file: otherwise a forged last number would stop the election.
        """
        text = self._folder.read(self._folder.path)
        entry = None if text is None else decode(text)
        if entry is not None and entry.token > COUNTED_BY_NAME and entry.token not in self._folder.terms():
            entry = None
        return text, entry

    def is_newest(self, live: Live) -> bool:
        """Whether no later term has a file, and this term's file was not removed or replaced."""
        return self._folder.terms()[-1:] == [live.token] and self._folder.is_in_place(live)

    def is_abandoned(self, record: Record) -> bool:
        """Whether the kernel knows that every process has died that could act as leader by this record.

        Besides the newest term's holder, these are the holders of all terms from the one that the record names on: a
        candidate may have made a later term's file and died before the term counted, while the last leader went on.
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
            return False  # unknown: wait for the end of the lease

    def _is_over(self, term: int) -> bool:
        entry = self._claimed(term)
        return entry is not None and _is_of_this_boot(entry) and self._folder.is_free(term)

    def _claimed(self, term: int) -> Entry | None:
        text = self._folder.read(self._folder.live_path(term))
        return None if text is None else decode(text)

    def _is_held(self, ours: Live | None, term: int) -> bool:
        return ours is not None and ours.token == term and self._folder.is_in_place(ours)


def _is_foreign(text: bytes) -> bool:
    """Whether this was never a record: a record begins with a brace, a damaged one may be empty or zeros."""
    return bool(text.strip(b"\0 \n")) and not text.startswith(b"{")


def _is_of_this_boot(entry: Entry) -> bool:
    return entry.boot_id is not None and entry.boot_id == place.boot_id()
