"""Is there anything new in a shard? One cheap call tells: at most two records are asked for, and none is kept."""

from __future__ import annotations

from enum import Enum, auto

from leasehold.core.exactly_once.query_offset import ReadStart
from leasehold.core.model import ShardId
from leasehold.core.records.iterators import IteratorKind, IteratorStart, iterator_start
from leasehold.core.records.kpl_message import MAGIC
from leasehold.ports import Page, Stream


class ProbeResult(Enum):
    """What a look at a shard has shown."""

    NOTHING = auto()
    RECORDS = auto()
    END = auto()


class IdleProbe:
    """Looks at what comes after a place in a shard, again and again, without moving from it.

    The first look may be at a place that was read long ago, or within an aggregate of which a part is left. It asks for
    the record that stands there, too: if that does not come back, something may have been trimmed, and a reader should
    find out what. `was_just_read`: none of that can be, because a reader has found the tip right behind the place.
    """

    def __init__(self, stream: Stream, shard: ShardId, start: ReadStart, *, was_just_read: bool) -> None:
        self._stream = stream
        self._shard = shard
        self._start = start
        self._enters_at_record = start.position.is_record and not was_just_read
        self._iterator: str | None = None
        self._is_beyond_start = False
        self.page: Page | None = None

    async def poll(self) -> ProbeResult:
        """Ask once. Errors of the stream are the caller's; after one that blames the iterator, call `renew`."""
        if self._iterator is None:
            self._iterator = await self._stream.iterator(self._shard, self._entry())
            self._is_beyond_start = not self._enters_at_record
        page = await self._stream.get_records(self._iterator, limit=1 if self._is_beyond_start else 2)
        self.page = page
        if self._has_news(page):
            return ProbeResult.RECORDS
        self._iterator = page.next_iterator
        self._is_beyond_start = self._is_beyond_start or bool(page.records)
        return ProbeResult.END if page.next_iterator is None else ProbeResult.NOTHING

    @property
    def iterator(self) -> str | None:
        """One that stands right before what is new; None where a reader had better enter by itself."""
        return self._iterator if self._is_beyond_start else None

    def discard_iterator(self) -> None:
        """The iterator is of no more use."""
        self._iterator = None

    def _entry(self) -> IteratorStart:
        entry = iterator_start(self._start.position, self._start.initial)
        if self._start.position.is_record and not self._enters_at_record:
            return IteratorStart(IteratorKind.AFTER_SEQUENCE_NUMBER, sequence_number=entry.sequence_number)
        return entry

    def _has_news(self, page: Page) -> bool:
        if self._is_beyond_start or not page.records:
            return bool(page.records)
        first = page.records[0]
        is_the_start = first.sequence_number == self._start.position.sequence_number
        # Of an aggregate, a part may be left to read.
        return len(page.records) > 1 or not is_the_start or first.data.startswith(MAGIC)
