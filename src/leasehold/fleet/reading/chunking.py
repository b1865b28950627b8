"""Turns Kinesis records into chunks of user records: deaggregates them, drops those that are done, and splits pages.

A chunk is small enough that its deaggregation does not block the event loop. Nothing here reads or waits.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from operator import itemgetter
from typing import Final

from leasehold.core.model import ChildShard, HashRange
from leasehold.core.position import Position
from leasehold.core.record import Record, UserRecord
from leasehold.core.records.deaggregation import (
    DeaggregatedBatch,
    DeaggregationSettings,
    SelfDeaggregating,
    as_archived,
    deaggregate_all,
    records_after,
)
from leasehold.core.records.record_columns import RecordSequence, UserRecordSequence

# About the bytes of Kinesis records in one chunk. To deaggregate half a megabyte of small user records takes about
# 20 ms.
CHUNK_BYTES: Final = 512 * 1024
# The same for records with their own deaggregation, which takes less than a tenth of this time. Each chunk has a cost,
# whatever its size: with half a megabyte, a reader needs a fifth more processor time.
SELF_DEAGGREGATED_CHUNK_BYTES: Final = 2 * 1024 * 1024
# The memory that a record takes besides its data and partition key.
RECORD_OVERHEAD_BYTES: Final = 200

_data, _partition_key = itemgetter(0), itemgetter(1)


@dataclass(frozen=True, slots=True)
class Demand:
    """How much a consumer will take before it stops: user records, and bytes of payload. None means no limit."""

    records: int | None = None
    size_bytes: int | None = None

    def kinesis_records(self, record_bytes: int) -> int | None:
        """The largest number of Kinesis records, of `record_bytes` each, that is worth requesting; None: no limit.

        >>> Demand(records=500, size_bytes=10_000).kinesis_records(300), Demand().kinesis_records(300)
        (34, None)
        """
        by_size = None if self.size_bytes is None else math.ceil(self.size_bytes / max(1, record_bytes))
        return min((limit for limit in (self.records, by_size) if limit is not None), default=None)

    def after(self, records: int, size_bytes: int) -> Demand:
        """The demand that is left. It is unlimited once it was met: a consumer that reads on has a new, unknown one."""
        rest = Demand(
            None if self.records is None else self.records - records,
            None if self.size_bytes is None else self.size_bytes - size_bytes,
        )
        is_met = any(left is not None and left < 1 for left in (rest.records, rest.size_bytes))
        return Demand() if is_met else rest


@dataclass(frozen=True, slots=True)
class ReadChunk:
    """User records of one page, in shard order; may be empty.

    `size_bytes` is what the chunk counts for in the byte budget, with the overhead of its records. `millis_behind` was
    measured when the page was read. `read_through` is the last position that was read, dropped aggregates included: a
    checkpoint may move there once the records are done; None if nothing was read yet. `children` is None until the end
    of the shard; then it names the child shards, and is empty if the shard no longer exists. `ends_page` is True for
    the last chunk of a page. `record_weight` is what one Kinesis record of the shard counts for in the byte budget, if
    known. `requested_ms` is when the page was requested, or the event received, by the monotonic clock: a chunk may
    wait for its consumer, and records that arrived meanwhile are not in it. `quota_ms` is when the shard has its quota
    of bytes again, by the same clock; None if it was not polled.
    """

    records: Sequence[UserRecord]
    size_bytes: int
    millis_behind: int | None
    read_through: Position | None
    children: tuple[ChildShard, ...] | None
    ends_page: bool = True
    record_weight: int | None = None
    requested_ms: int = 0
    quota_ms: int | None = None


def payload_bytes(records: Sequence[Record] | Sequence[UserRecord]) -> int:
    """The bytes that count for Kinesis's limits: data and partition keys."""
    if isinstance(records, RecordSequence):
        return records.payload_bytes
    return sum(map(len, map(_data, records))) + sum(map(len, map(_partition_key, records)))


def weight_of(records: Sequence[Record] | Sequence[UserRecord]) -> int:
    """The bytes that count for the byte budget: payload and overhead."""
    return payload_bytes(records) + RECORD_OVERHEAD_BYTES * len(records)


def split_into_chunks(records: RecordSequence[Record], weight: int) -> Sequence[RecordSequence[Record]]:
    """Split records into equal parts that are deaggregated at once. No records make one empty part.

    A part has at most a quarter more than the bytes of a chunk, if the records have about the same size: a small rest
    as a part of its own would cost as much as a large one.
    """
    most = SELF_DEAGGREGATED_CHUNK_BYTES if isinstance(records, SelfDeaggregating) else CHUNK_BYTES
    count = max(1, len(records))
    step_max = max(1, count * (most + most // 4) // max(1, weight))
    step = math.ceil(count / math.ceil(count / step_max))
    return [records[first : first + step] for first in range(0, count, step)]


class ShardDeaggregator:
    """Turns the Kinesis records of one shard, each passed once and in order, into the user records after `start`."""

    def __init__(
        self, start: Position, hash_range: HashRange | None, deaggregation: DeaggregationSettings
    ) -> None:
        self._start = start
        self._hash_range = hash_range
        self._deaggregation = deaggregation
        self.read_through: Position | None = None

    def user_records(self, records: Sequence[Record]) -> DeaggregatedBatch:
        """The user records of the next Kinesis records that are not done yet, and the incidents to report."""
        batch = as_archived(records) or deaggregate_all(records, self._hash_range, self._deaggregation)
        if not records:
            return batch
        users: UserRecordSequence = batch.records
        if self._start.is_record and (self.read_through is None or self.read_through <= self._start):
            # Reading starts at the checkpointed record itself; if it is an aggregate, only a part of it may be done.
            # The user records of an archived aggregate may lie in several chunks, and end before the checkpoint.
            users = records_after(users, self._start)
        self._move_read_through(_last_position(records[-1].sequence_number, batch))
        return DeaggregatedBatch(users, batch.incidents)

    def _move_read_through(self, last: Position) -> None:
        """Move forward only. The checkpoint stays if its aggregate is now deaggregated into fewer user records."""
        before = self.read_through or (self._start if self._start.is_record else last)
        self.read_through = max(before, last)


def _last_position(sequence_number: str, batch: DeaggregatedBatch) -> Position:
    """The position of the last user record within the last Kinesis record, even if it was dropped."""
    users, incidents = batch.records, batch.incidents
    last = users.position(-1) if users else None
    highest = last.sub_sequence_number if last and last.sequence_number == sequence_number else 0
    if incidents and incidents[-1].sequence_number == sequence_number and incidents[-1].dropped:
        kept = users.sequence_numbers().count(sequence_number)
        highest = max(highest, kept + incidents[-1].dropped - 1)
    return Position(sequence_number, highest)
