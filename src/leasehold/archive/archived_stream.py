"""A stream whose older records come from its archive: history first, then the stream, with no gap and nothing twice.

Positions in the archive are positions in the shard. So leases, checkpoints and pins do not know where a record was
read. The stream is asked first: the archive has only to give what the stream no longer holds, and, once reading is in
the archive, everything up to its last gap-free position. There, reading continues in the stream *at* the last record.
If that record comes back, nothing is missing. If it was trimmed, the archive is read on, up to the oldest record that
the stream holds. If the archive ends before that, records may be missing, and the reader reports a gap as it would
without an archive.

An iterator in the archive is a text that any process can continue with, as an iterator of Kinesis is.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, cast

import orjson

from leasehold.archive.archive_index import ArchiveIndex, ShardIndex
from leasehold.archive.history_pages import HistoryPages, PagePosition
from leasehold.core.model import Shard, ShardId, StreamIdentifier
from leasehold.core.record import Record
from leasehold.core.records.iterators import IteratorKind, IteratorStart
from leasehold.core.shards.archived_shards import ArchivedShard
from leasehold.core.shards.lease_creation import ShardFilter
from leasehold.errors import IteratorExpiredError, NotFoundError
from leasehold.ports import Clock, Page, Stream

_PREFIX: Final = "archive:"
# Iterators of the stream whose first record is expected to be a certain one.
_EXPECTATIONS_MAX: Final = 10_000
# Kinesis answers with empty pages for a stretch without records.
_EMPTY_PAGES_MAX: Final = 50
_EMPTY_PAGE_PAUSE_MS: Final = 250


@dataclass(frozen=True, slots=True)
class _Expected:
    """The record with which the next page of an iterator begins, unless it was trimmed."""

    shard: ShardId
    number: int


class ArchivedStream(Stream):
    """A stream, and the archive of its older records."""

    def __init__(self, stream: Stream, index: ArchiveIndex, pages: HistoryPages, clock: Clock) -> None:
        self._stream = stream
        self._index = index
        self._pages = pages
        self._clock = clock
        self._expected: OrderedDict[str, _Expected] = OrderedDict()

    async def get_identifier(self) -> StreamIdentifier:
        """As of the stream."""
        return await self._stream.get_identifier()

    async def get_retention_ms(self) -> int:
        """As of the stream."""
        return await self._stream.get_retention_ms()

    async def list_shards(self, shard_filter: ShardFilter | None = None) -> Sequence[Shard]:
        """The shards that the stream retains."""
        return await self._stream.list_shards(shard_filter)

    async def list_archived(self, from_ms: int | None = None) -> Sequence[ArchivedShard]:
        """All shards with archived records from this time on."""
        return await self._index.shards(from_ms)

    async def close(self) -> None:
        """Close the stream and the reading of the archive."""
        await self._pages.close()
        await self._stream.close()

    async def get_iterator(self, shard: ShardId, start: IteratorStart) -> str:
        """An iterator in the archive or in the stream."""
        match start.kind:
            case IteratorKind.LATEST:
                return await self._stream.get_iterator(shard, start)
            case IteratorKind.TRIM_HORIZON | IteratorKind.AT_TIMESTAMP:
                return await self._iterator_at_time(shard, start)
            case _:
                return await self._iterator_at_record(shard, start)

    async def get_records(self, iterator: str, *, limit: int) -> Page:
        """The next records of the archive or of the stream."""
        if iterator.startswith(_PREFIX):
            return await self._history_page(_position_from_text(iterator), limit)
        expected = self._expected.get(iterator)
        if expected is None:
            return await self._stream.get_records(iterator, limit=limit)
        page = await self._expected_page(iterator, expected, limit)
        if page.next_iterator != iterator:
            # Only now: after an error, the same iterator is used again.
            self._expected.pop(iterator, None)
        return page

    # -- where to begin ----------------------------------------------------------------------------------------

    async def _iterator_at_record(self, shard: ShardId, start: IteratorStart) -> str:
        assert start.sequence_number is not None
        number = int(start.sequence_number)
        is_at = start.kind is IteratorKind.AT_SEQUENCE_NUMBER
        known = self._index.known(shard)
        if known is not None and known.has_next_settled(number):
            return _to_text(PagePosition(shard, number if is_at else number + 1))
        try:
            iterator = await self._stream.get_iterator(shard, start)
        except NotFoundError:
            if not await self._is_only_archived(_Expected(shard, number)):
                raise
            return _to_text(PagePosition(shard, number if is_at else number + 1, to_end=True))
        if is_at:
            self._expect(iterator, _Expected(shard, number))
        return iterator

    async def _iterator_at_time(self, shard: ShardId, start: IteratorStart) -> str:
        """Begin in the archive if it has older records than the stream still holds."""
        found = await self._index.get(shard, start.timestamp_ms)
        first = None if found is None else found.first_from(start.timestamp_ms)
        if first is None:
            return await self._stream.get_iterator(shard, start)
        in_archive = PagePosition(shard, first, from_ms=start.timestamp_ms, is_start=True)
        try:
            iterator = await self._stream.get_iterator(shard, start)
        except NotFoundError:
            if not await self._has_left(shard):
                raise
            return _to_text(replace(in_archive, to_end=True))
        page = await self._first_page(iterator)
        is_in_stream = bool(page.records) and int(page.records[0].sequence_number) <= first
        return await self._stream.get_iterator(shard, start) if is_in_stream else _to_text(in_archive)

    async def _first_page(self, iterator: str, limit: int = 1) -> Page:
        """The first page of an iterator that has records, or is at the tip or at the end of the shard."""
        page = await self._stream.get_records(iterator, limit=limit)
        for _ in range(_EMPTY_PAGES_MAX):
            if page.records or page.next_iterator is None or not page.millis_behind:
                break
            await self._clock.sleep_ms(_EMPTY_PAGE_PAUSE_MS)
            page = await self._stream.get_records(page.next_iterator, limit=limit)
        return page

    def _expect(self, iterator: str, expected: _Expected) -> None:
        self._expected[iterator] = expected
        while len(self._expected) > _EXPECTATIONS_MAX:
            self._expected.popitem(last=False)

    async def _has_left(self, shard: ShardId) -> bool:
        """Whether the stream no longer lists a shard. A NotFoundError alone may have another reason."""
        return all(each.id != shard for each in await self._stream.list_shards())

    async def _is_only_archived(self, at: _Expected) -> bool:
        """Whether a record is in the archive, and its shard has left the stream."""
        if not await self._has_left(at.shard):
            return False
        found = await self._index.get(at.shard)
        return found is not None and found.first <= at.number <= found.last

    # -- between archive and stream ----------------------------------------------------------------------------

    async def _expected_page(self, iterator: str, expected: _Expected, limit: int) -> Page:
        try:
            page = await self._stream.get_records(iterator, limit=limit)
        except NotFoundError:
            if not await self._is_only_archived(expected):
                raise
            return _on_the_way(PagePosition(expected.shard, expected.number, to_end=True))
        return await self._checked(page, expected)

    async def _checked(self, page: Page, expected: _Expected) -> Page:
        """The page, or a way into the archive if the record at which reading began was trimmed from the stream."""
        first = int(page.records[0].sequence_number) if page.records else None
        if first is not None and first <= expected.number:
            return page
        if first is None and page.next_iterator is not None and page.millis_behind:
            self._expect(page.next_iterator, expected)
            return page
        found = await self._index.get_newest(expected.shard)
        if found is None or not found.first <= expected.number <= found.last:
            return page
        if found.last == expected.number and not await self._has_archived_end(page):
            return page  # the archive has nothing more: the reader decides whether there is a gap
        position = PagePosition(expected.shard, expected.number, before=first, to_end=first is None)
        return _on_the_way(position)

    async def _history_page(self, position: PagePosition, limit: int) -> Page:
        found = await self._index.get(position.shard, position.from_ms)
        if found is None:
            raise IteratorExpiredError(f"shard {position.shard}: its objects in the archive were deleted")
        page = await self._pages.next(found, position, limit)
        if page is not None:
            records, after = page
            behind_ms = self._clock.wall_ms() - (records[-1].arrival_ms or 0)
            return Page(cast("Sequence[Record]", records), _to_text(after), max(1, behind_ms))
        newest = await self._index.get_newest(position.shard)
        if newest is not None and _has_more(newest, found, position):
            return _on_the_way(position)
        return await self._leave(newest or found, position, limit)

    async def _leave(self, found: ShardIndex, position: PagePosition, limit: int) -> Page:
        """Continue in the stream after the last record that was read in the archive."""
        try:
            iterator = await self._stream.get_iterator(position.shard, _start_in_stream(position))
            page = await self._first_page(iterator, limit)
        except NotFoundError:
            if not await self._has_left(position.shard):
                raise
            is_end = position.to_end
            return Page((), None) if is_end else _on_the_way(replace(position, before=None, to_end=True))
        last = position.last
        if last is not None and page.records and int(page.records[0].sequence_number) <= last:
            rest = [record for record in page.records if int(record.sequence_number) > last]
            return replace(page, records=rest)
        return await self._leave_trimmed(found, position, page)

    async def _leave_trimmed(self, found: ShardIndex, position: PagePosition, page: Page) -> Page:
        """The stream has trimmed the last record that was read in the archive. `page` is the oldest that it holds.

        It may have trimmed more since the archive was read up to what was its oldest record. So the archive is read up
        to its oldest record now.
        """
        oldest = int(page.records[0].sequence_number) if page.records else None
        up_to_oldest = _on_the_way(replace(position, before=oldest, to_end=oldest is None))
        if not position.is_final or (oldest is None and not position.to_end):
            return up_to_oldest
        if oldest is not None and found.last >= oldest:
            if position.before is None or oldest > position.before:
                return up_to_oldest
            return page  # the archive goes on beyond it, so nothing is missing in between
        if position.is_start or await self._has_archived_end(page):
            # At the start: nothing that arrived at the wanted time or later was archived, so the stream begins.
            return page
        raise IteratorExpiredError(f"shard {position.shard}: the archive ends; the reader checks for a gap")

    async def _has_archived_end(self, page: Page) -> bool:
        """Whether a page is the end of a shard that was archived to its end.

        A writer begins a child only then. So it is known if a child has archived records.
        """
        if page.records or page.next_iterator is not None:
            return False
        children = {child.id for child in page.children}
        return any(each.id in children for each in await self._index.shards())


def _has_more(newest: ShardIndex, found: ShardIndex, position: PagePosition) -> bool:
    """Whether a newer listing shows records to read before the archive is left."""
    if position.is_final:
        return newest.has_new(found, position.next_number, position.bound(newest))
    return newest.settled_before > found.settled_before


def _start_in_stream(position: PagePosition) -> IteratorStart:
    """Where to continue in the stream: at the last record that was read, or where reading was to begin."""
    if position.last is not None:
        return IteratorStart(IteratorKind.AT_SEQUENCE_NUMBER, sequence_number=str(position.last))
    if position.from_ms is not None:
        return IteratorStart(IteratorKind.AT_TIMESTAMP, timestamp_ms=position.from_ms)
    return IteratorStart(IteratorKind.TRIM_HORIZON)


def _on_the_way(position: PagePosition) -> Page:
    """An empty page, with which reading continues in the archive."""
    return Page((), _to_text(position), 1)


def _to_text(position: PagePosition) -> str:
    return _PREFIX + orjson.dumps(position.to_json()).decode()


def _position_from_text(text: str) -> PagePosition:
    fields: dict[str, Any] = orjson.loads(text.removeprefix(_PREFIX))
    return PagePosition.from_json(fields)
