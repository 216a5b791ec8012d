"""What tests of contract share with others."""

import asyncio
from collections.abc import Mapping
from typing import ClassVar

from pgleaderlock.stores.record import Claim, Record, RecordStore


class ToyStore(RecordStore):
    """A dictionary behind the record port, as a third party would write it, in the fewest lines."""

    shelf: ClassVar[dict[str, Record]] = {}

    def __init__(self, name: str) -> None:
        self.name = name

    @property
    def labels(self) -> Mapping[str, object]:
        return {"toy": self.name}

    async def read(self) -> Record | None:
        await asyncio.sleep(0)
        return self.shelf.get(self.name)

    async def write(self, claim: Claim, replacing: Record | None) -> Record | None:
        now = self.shelf.get(self.name)
        if (now and now.version) is not (replacing and replacing.version):
            return None
        record = Record(claim.holder, claim.token, claim.lease_s, object())
        self.shelf[self.name] = record
        return record
