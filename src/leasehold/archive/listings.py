"""Lists the objects of an archive, with as few listings as possible.

A listing is valid for a lease session if it started after the session began: it then contains everything that earlier
owners wrote. Object keys begin with the minute, so one listing covers all shards. Callers that wait at the same time
share the next listing.
"""

from __future__ import annotations

import asyncio
import weakref
from collections.abc import Mapping
from dataclasses import dataclass

from leasehold.core.exactly_once.archive_plan import ArchivedRanges, archived_by_shard
from leasehold.core.exactly_once.object_keys import Layout, ObjectKey, key_from_text, minute_path
from leasehold.core.model import ShardId
from leasehold.ports import ObjectStore


@dataclass(frozen=True, slots=True, weakref_slot=True, eq=False)
class Listing:
    """The contents of the archive from a minute on, as listing number `number` found them."""

    number: int
    from_minute: int
    shards: Mapping[ShardId, ArchivedRanges]

    def of(self, shard: ShardId) -> ArchivedRanges:
        """The archived ranges of one shard."""
        return self.shards.get(shard) or ArchivedRanges(self.from_minute, {}, None)


class Listings:
    """Makes and shares the listings of one archive."""

    def __init__(self, store: ObjectStore, prefix: str, layout: Layout = Layout.MINUTE) -> None:
        self.started = 0
        self._store = store
        self._prefix = prefix
        self._layout = layout
        self._one_at_a_time = asyncio.Lock()
        self._wanted_minutes: list[int] = []
        # A listing may be large. It is kept only while a caller still uses it.
        self._latest: weakref.ref[Listing] | None = None

    def since_now(self) -> ListingsSince:
        """Return a view of the listings that start after this call."""
        return ListingsSince(self, self.started)

    async def newer_than(self, number: int, from_minute: int) -> Listing:
        """Return a listing with a higher number than `number` that begins at `from_minute` or earlier."""
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
        offset = minute_path(from_minute, self._prefix, self._layout)
        async for page in self._store.list_after(offset, prefix=self._prefix):
            found = (key_from_text(each.key, self._prefix) for each in page)
            keys.extend(key for key in found if key is not None)
        return Listing(number, from_minute, archived_by_shard(keys, from_minute))


class ListingsSince:
    """The listings that started after this object was made. Keeps the last one alive for the next range."""

    def __init__(self, listings: Listings, number: int) -> None:
        self._listings = listings
        self._number = number
        self._last: Listing | None = None

    async def from_minute(self, minute: int) -> Listing:
        """Return a listing that begins at `minute` or earlier."""
        self._last = await self._listings.newer_than(self._number, minute)
        return self._last
