"""Reads a shard page by page with shard iterators, and replaces an iterator that has become unusable.

A cursor sends one request at a time and raises every error. The reader decides when to read and when to retry.

An iterator that Kinesis returned with a page skips trimmed records silently. So, once reading is so far behind that
trimming is near, the cursor requests a new iterator after every page with records.
"""

from __future__ import annotations

from leasehold.core.record import Record
from leasehold.core.records.record_columns import RecordSequence
from leasehold.fleet.reading.read_position import ReadPosition
from leasehold.fleet.reading.read_request import ReadContext, ReadRequest
from leasehold.ports import Page


class Cursor:
    """An iterator in one shard that moves forward with every page."""

    def __init__(self, request: ReadRequest, context: ReadContext, position: ReadPosition) -> None:
        self._shard = request.shard
        self._context = context
        self._position = position
        self._iterator = request.iterator

    async def read(self, limit: int) -> tuple[Page, RecordSequence[Record]]:
        """Read the next page. Return it as it came, and its new records."""
        if self._iterator is None:
            self._iterator = await self._request_iterator()
        page = await self._context.stream.get_records(self._iterator, limit=limit)
        self._iterator = page.next_iterator
        new = self._position.accept(page.records, page.millis_behind, is_end=page.next_iterator is None)
        if new and self._position.is_trimming_near():
            self._iterator = None
        return page, new

    def discard_iterator(self) -> None:
        """The iterator is unusable: request a new one before the next page."""
        self._iterator = None

    async def _request_iterator(self) -> str:
        requested_wall_ms = self._context.clock.wall_ms()
        start = await self._position.iterator_start()
        iterator = await self._context.stream.get_iterator(self._shard, start)
        self._position.note_started(start, requested_wall_ms)
        return iterator
