"""Counts the records that wait in a shard, for a query with a least number of records a batch.

Kinesis does not return a number, so the records are read. They are not kept: the tasks of the batch read them again.
"""

from __future__ import annotations

from typing import Final

from leasehold.core.exactly_once.shard_phase import Ready
from leasehold.core.records.iterators import IteratorKind, IteratorStart, iterator_start
from leasehold.errors import IteratorExpiredError
from leasehold.ports import Stream

_RECORDS_PER_CALL_MAX: Final = 10_000


class BacklogCounter:
    """Counts the records of one shard from the start of its next slice, up to `enough`. An aggregate counts as one."""

    def __init__(self, stream: Stream, ready: Ready, enough: int) -> None:
        self.records = 0
        self._stream = stream
        self._ready = ready
        self._enough = enough
        self._iterator = ready.iterator
        self._last: str | None = None  # the sequence number of the last counted record
        self._is_at_end = False

    @property
    def is_done(self) -> bool:
        """True if there is nothing more to count."""
        return self._is_at_end or self.records >= self._enough

    async def poll(self) -> bool:
        """Count the records of one call. Returns whether the tip is reached. Errors of the stream are raised."""
        if self._iterator is None:
            self._iterator = await self._stream.get_iterator(self._ready.lease.shard_id, self._start())
        limit = min(_RECORDS_PER_CALL_MAX, self._enough - self.records)
        try:
            page = await self._stream.get_records(self._iterator, limit=limit)
        except IteratorExpiredError:
            self._iterator = None
            raise
        self.records += len(page.records)
        self._last = page.records[-1].sequence_number if page.records else self._last
        self._iterator = page.next_iterator
        self._is_at_end = page.next_iterator is None
        return not page.millis_behind

    def _start(self) -> IteratorStart:
        if self._last is not None:
            return IteratorStart(IteratorKind.AFTER_SEQUENCE_NUMBER, sequence_number=self._last)
        start = iterator_start(self._ready.start.position, self._ready.start.initial)
        if self._ready.start.position.is_record:
            return IteratorStart(IteratorKind.AFTER_SEQUENCE_NUMBER, sequence_number=start.sequence_number)
        return start
