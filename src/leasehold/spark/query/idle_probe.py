"""Polls an idle shard for new records with one cheap call: it requests at most two records and keeps none."""

from __future__ import annotations

from enum import Enum, auto

from leasehold.core.exactly_once.query_offset import ReadStart
from leasehold.core.model import Lease
from leasehold.core.record import Record
from leasehold.core.records.deaggregation import DeaggregationSettings, deaggregate, records_after
from leasehold.core.records.iterators import IteratorKind, IteratorStart, iterator_start
from leasehold.errors import MalformedAggregateError
from leasehold.ports import Page, Stream


class ProbeResult(Enum):
    """The result of one poll."""

    NOTHING = auto()
    RECORDS = auto()
    END = auto()


class IdleProbe:
    """Polls for records after one position of a shard, repeatedly.

    The position may have been read long ago, or lie within an aggregate that is not read completely. So the first poll
    requests the record at the position too, and splits it. If Kinesis does not return it, records may have been
    trimmed, and a reader has to check. With `was_just_read` neither can be the case: a reader has just found the tip
    behind the position.
    """

    def __init__(
        self,
        stream: Stream,
        lease: Lease,
        start: ReadStart,
        deaggregation: DeaggregationSettings,
        *,
        was_just_read: bool,
    ) -> None:
        self._stream = stream
        self._lease = lease
        self._start = start
        self._deaggregation = deaggregation
        self._starts_at_record = start.position.is_record and not was_just_read
        self._iterator: str | None = None
        self._is_beyond_start = False
        self.page: Page | None = None

    async def poll(self) -> ProbeResult:
        """Poll once. Errors of the stream are raised; call `discard_iterator` after IteratorExpiredError."""
        if self._iterator is None:
            self._iterator = await self._stream.get_iterator(self._lease.shard_id, self._iterator_start())
            self._is_beyond_start = not self._starts_at_record
        page = await self._stream.get_records(self._iterator, limit=1 if self._is_beyond_start else 2)
        self.page = page
        if self._has_new_records(page):
            return ProbeResult.RECORDS
        self._iterator = page.next_iterator
        self._is_beyond_start = self._is_beyond_start or bool(page.records)
        return ProbeResult.END if page.next_iterator is None else ProbeResult.NOTHING

    @property
    def iterator(self) -> str | None:
        """An iterator that points at the first new record. None if a reader should request its own."""
        return self._iterator if self._is_beyond_start else None

    def discard_iterator(self) -> None:
        """Forget the iterator. The next poll requests a new one."""
        self._iterator = None

    def _iterator_start(self) -> IteratorStart:
        start = iterator_start(self._start.position, self._start.initial)
        if self._start.position.is_record and not self._starts_at_record:
            return IteratorStart(IteratorKind.AFTER_SEQUENCE_NUMBER, sequence_number=start.sequence_number)
        return start

    def _has_new_records(self, page: Page) -> bool:
        if self._is_beyond_start or not page.records:
            return bool(page.records)
        first = page.records[0]
        is_start = first.sequence_number == self._start.position.sequence_number
        return len(page.records) > 1 or not is_start or self._has_unread_part(first)

    def _has_unread_part(self, record: Record) -> bool:
        """Whether the record at the start is an aggregate with user records after the start."""
        try:
            split = deaggregate(record, self._lease.hash_range, self._deaggregation)
        except MalformedAggregateError:
            return True  # a task reads it and reports what that means
        return bool(records_after(split.records, self._start.position))
