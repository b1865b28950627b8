"""Finds out what an archive holds, with as few listings as the promise allows.

A list serves an ownership if it was begun after that ownership: what former owners wrote is in it. Names begin with the
minute, so one list tells of all shards, and whoever asks while others wait shares the next list with them.
"""

from __future__ import annotations

import asyncio
import weakref
from collections.abc import Mapping
from dataclasses import dataclass

from leasehold.core.exactly_once.archive_plan import ArchivedRanges, archived_by_shard
from leasehold.core.exactly_once.object_keys import ObjectKey, key_from_text, minute_path
from leasehold.core.model import ShardId
from leasehold.ports import ObjectStore


@dataclass(frozen=True, slots=True, weakref_slot=True, eq=False)
class Listing:
    """What the archive held when listing number `number` was made, from a minute on."""

    number: int
    from_minute: int
    shards: Mapping[ShardId, ArchivedRanges]

    def of(self, shard: ShardId) -> ArchivedRanges:
        """What it says of one shard."""
        return self.shards.get(shard) or ArchivedRanges(self.from_minute, {}, None)


class Listings:
    """The listings of one archive."""

    def __init__(self, store: ObjectStore, prefix: str) -> None:
        self.started = 0
        self._store = store
        self._prefix = prefix
        self._one_at_a_time = asyncio.Lock()
        self._wanted_minutes: list[int] = []
        # A list may be long. It stays only as long as somebody who asked for it is at work.
        self._latest: weakref.ref[Listing] | None = None

    async def newer_than(self, number: int, from_minute: int) -> Listing:
        """A listing from that minute, or an earlier one, on, with a higher number than `number`."""
        self._wanted_minutes.append(from_minute)
        try:
            async with self._one_at_a_time:
                latest = self._latest() if self._latest else None
                if latest is None or latest.number <= number or latest.from_minute > from_minute:
                    latest = await self._list(min(self._wanted_minutes))
                    self._latest = weakref.ref(latest)
                return latest
        finally:
            self._wanted_minutes.remove(from_minute)

    async def _list(self, from_minute: int) -> Listing:
        self.started += 1
        number = self.started
        keys: list[ObjectKey] = []
        offset = minute_path(from_minute, self._prefix)
        async for portion in self._store.list_after(offset, prefix=self._prefix):
            found = (key_from_text(each.key, self._prefix) for each in portion)
            keys.extend(key for key in found if key is not None)
        return Listing(number, from_minute, archived_by_shard(keys, from_minute))
