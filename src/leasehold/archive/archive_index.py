"""What an archive has of each shard, by the names of its objects. Listed when it is needed, and then kept."""

from __future__ import annotations

import asyncio
from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Final

from leasehold.archive.division import require_undivided
from leasehold.archive.reading import MINUTE_MS, TimeSpan, list_objects
from leasehold.archive.shard_rows import ArchiveStore, ShardObjects
from leasehold.archive.verification import has_archive, require_same_stream, stored_stream
from leasehold.core.exactly_once.archive_plan import SLACK_MINUTES
from leasehold.core.exactly_once.archive_reading import parts_to_read, unsettled_from
from leasehold.core.model import ShardId
from leasehold.core.shards.archived_shards import ArchivedShard
from leasehold.errors import ConfigError

# A listing is made again if reading comes to its end, but not more often than this.
NEWEST_MS: Final = 10_000


@dataclass(frozen=True)
class ShardIndex:
    """The objects of one shard. Positions are sequence numbers, because reading begins and ends at whole records."""

    shard: ShardId
    objects: ShardObjects

    @cached_property
    def first(self) -> int:
        """The sequence number of the first archived record."""
        return min(key.range.first.number for key in self.objects)

    @cached_property
    def last(self) -> int:
        """The sequence number of the last archived record."""
        return max(key.range.last.number for key in self.objects)

    @cached_property
    def settled_before(self) -> int:
        """The sequence number before which the archive has no gap, from its first record on."""
        unsettled = unsettled_from(self.objects)
        assert unsettled is not None
        return unsettled.number

    @cached_property
    def _ends(self) -> Sequence[int]:
        """The last sequence numbers of the objects, in order."""
        return sorted(part.key.range.last.number for part in parts_to_read(self.objects))

    def has_next_settled(self, number: int) -> bool:
        """Whether the archive has this record, and surely the next one."""
        index = bisect_right(self._ends, number)
        return self.first <= number and index < len(self._ends) and self._ends[index] < self.settled_before

    def has_new(self, earlier: ShardIndex, first: int, before: int | None) -> bool:
        """Whether an object with records from `first` on and before `before` is not in an earlier listing."""
        return any(
            key.range.last.number >= first and (before is None or key.range.first.number < before)
            for key in self.objects.keys() - earlier.objects.keys()
        )

    def first_from(self, from_ms: int | None) -> int | None:
        """The first sequence number of the objects with records from a time on. None if there are none."""
        minute = 0 if from_ms is None else from_ms // MINUTE_MS
        return min(
            (key.range.first.number for key in self.objects if key.last_minute >= minute), default=None
        )


class ArchiveIndex:
    """The shards of one archive."""

    def __init__(self, store: ArchiveStore, stream: str | None = None) -> None:
        self.store = store
        self._stream = stream  # that the archive must be of; None: not checked
        self._from_minute: int | None = None
        self._listed_ms = 0
        self._shards: Mapping[ShardId, ShardIndex] = {}
        self._listing = asyncio.Lock()  # shards that begin together share one listing

    def known(self, shard: ShardId) -> ShardIndex | None:
        """What is known of a shard without a listing."""
        return self._shards.get(shard)

    async def get(self, shard: ShardId, from_ms: int | None = None) -> ShardIndex | None:
        """What the archive has of a shard, at least from this time on."""
        await self._list(from_ms)
        return self._shards.get(shard)

    async def get_newest(self, shard: ShardId, *, max_age_ms: int = NEWEST_MS) -> ShardIndex | None:
        """What the archive has of a shard now."""
        needed_ms = self.store.clock.now_ms() - max_age_ms
        async with self._listing:
            if self._from_minute is None or self._listed_ms <= needed_ms:
                await self._list_from(self._from_minute or 0)
        return self._shards.get(shard)

    async def shards(self, from_ms: int | None = None) -> Sequence[ArchivedShard]:
        """All shards with records from this time on."""
        await self._list(from_ms)
        found = [each for each in self._shards.values() if each.first_from(from_ms) is not None]
        return [ArchivedShard(each.shard, each.first, each.last) for each in found]

    async def _list(self, from_ms: int | None) -> None:
        minute = max(0, (from_ms or 0) // MINUTE_MS - SLACK_MINUTES)
        if self._reaches(minute):
            return
        async with self._listing:
            if not self._reaches(minute):
                await self._list_from(minute)

    def _reaches(self, minute: int) -> bool:
        return self._from_minute is not None and self._from_minute <= minute

    async def _list_from(self, minute: int) -> None:
        began_ms = self.store.clock.now_ms()
        await self._require_archive()
        found = await list_objects(self.store, TimeSpan(minute * MINUTE_MS))
        await require_undivided(self.store.objects, self.store.prefix, purpose="as history of the stream")
        self._shards = {shard: ShardIndex(shard, objects) for shard, objects in found.items()}
        self._from_minute, self._listed_ms = minute, began_ms

    async def _require_archive(self) -> None:
        """Refuse a place without an archive, and the archive of another stream: its shards have the same ids."""
        if self._stream is None:
            return
        found = await stored_stream(self.store.objects, self.store.prefix)
        if found is None and not await has_archive(self.store.objects, self.store.prefix):
            below = f" below prefix {self.store.prefix!r}" if self.store.prefix else ""
            raise ConfigError(
                f"there is no archive at the place that `archive` names{below}, so all older records would be missing: "
                "check the URL and the prefix, or start the writer of the archive first"
            )
        require_same_stream(found, self._stream)
        self._stream = None
