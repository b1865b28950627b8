"""From Kinesis records to slices of user records: taken apart, without what is done already, in portions that neither
block the event loop nor fill the memory. Reads nothing, waits for nothing.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import takewhile
from operator import itemgetter
from typing import Final

from leasehold.core.model import ChildShard, HashRange
from leasehold.core.position import Position
from leasehold.core.record import Record, UserRecord
from leasehold.core.records.deaggregation import (
    DeaggregatedBatch,
    DeaggregationSettings,
    deaggregate_all,
    records_after,
)

# Kinesis records that become one slice. Taking apart half a megabyte of small user records takes some 20 ms.
CHUNK_BYTES: Final = 512 * 1024
# What a record costs in memory beside its data and key.
RECORD_OVERHEAD_BYTES: Final = 200

_data, _partition_key = itemgetter(0), itemgetter(1)


@dataclass(frozen=True, slots=True)
class Demand:
    """How much a consumer will take before it stops: user records, and bytes of payload. None: no such limit."""

    records: int | None = None
    size_bytes: int | None = None

    def kinesis_records(self, record_bytes: int) -> int | None:
        """How many Kinesis records, of so many bytes each, are wanted at most; None: as many as there are.

        >>> Demand(records=500, size_bytes=10_000).kinesis_records(300), Demand().kinesis_records(300)
        (34, None)
        """
        by_size = None if self.size_bytes is None else math.ceil(self.size_bytes / max(1, record_bytes))
        return min((limit for limit in (self.records, by_size) if limit is not None), default=None)

    def after(self, records: int, size_bytes: int) -> Demand:
        """What is still wanted. Whoever reads on after all was taken wants no one knows how much."""
        rest = Demand(
            None if self.records is None else self.records - records,
            None if self.size_bytes is None else self.size_bytes - size_bytes,
        )
        has_enough = any(left is not None and left < 1 for left in (rest.records, rest.size_bytes))
        return Demand() if has_enough else rest


@dataclass(frozen=True, slots=True)
class ReadChunk:
    """User records that arrived together, in shard order; may be empty.

    `size_bytes` is what the slice counts for in the byte budget, its records' overhead included. `millis_behind` was
    measured when it was read. Everything up to `through` has been seen, dropped aggregates included, so a checkpoint
    may move there once the records are done; None if nothing was read yet. `children` is None until the end of the
    shard; then it names who goes on, and is empty if the shard is gone. `ends_page`: the answer that it came with
    held no more. `record_weight` is what a Kinesis record of the shard counts for in the byte budget, if that is known.
    """

    records: tuple[UserRecord, ...]
    size_bytes: int
    millis_behind: int | None
    read_through: Position | None
    children: tuple[ChildShard, ...] | None
    ends_page: bool = True
    record_weight: int | None = None


def payload_bytes(records: Sequence[Record] | Sequence[UserRecord]) -> int:
    """What records count for in Kinesis's limits: data and keys."""
    return sum(map(len, map(_data, records))) + sum(map(len, map(_partition_key, records)))


def weight_of(records: Sequence[Record] | Sequence[UserRecord]) -> int:
    """What records count for in the byte budget."""
    return payload_bytes(records) + RECORD_OVERHEAD_BYTES * len(records)


def split_into_chunks(records: Sequence[Record], weight: int) -> Sequence[Sequence[Record]]:
    """The records in portions of about `CHUNK_BYTES`; a single empty one if there are none."""
    step = max(1, len(records) * CHUNK_BYTES // max(1, weight))
    return [records[first : first + step] for first in range(0, max(1, len(records)), step)]


class ShardDeaggregator:
    """Turns the Kinesis records of one shard, each given once and in order, into user records after `start`."""

    def __init__(
        self, start: Position, hash_range: HashRange | None, deaggregation: DeaggregationSettings
    ) -> None:
        self._start = start
        self._hash_range = hash_range
        self._deaggregation = deaggregation
        self.read_through: Position | None = None

    def user_records(self, records: Sequence[Record]) -> DeaggregatedBatch:
        """The user records of the next Kinesis records that are not done yet, and what was remarkable."""
        batch = deaggregate_all(records, self._hash_range, self._deaggregation)
        if not records:
            return batch
        users = batch.records
        if self.read_through is None and self._start.is_record:
            # The record at which the shard was entered comes first; of an aggregate, a part may be done.
            users = records_after(users, self._start)
        self._move_through(_last_position(records[-1].sequence_number, batch))
        return DeaggregatedBatch(users, batch.incidents)

    def _move_through(self, seen: Position) -> None:
        """Never back: where the entered record is taken apart differently from before, the checkpoint stands."""
        before = self.read_through or (self._start if self._start.is_record else seen)
        self.read_through = max(before, seen)


def _last_position(sequence_number: str, batch: DeaggregatedBatch) -> Position:
    """The position of the last user record within the last Kinesis record, even if it was dropped."""
    users, incidents = batch.records, batch.incidents
    highest = users[-1].sub_sequence_number if users and users[-1].sequence_number == sequence_number else 0
    if incidents and incidents[-1].sequence_number == sequence_number and incidents[-1].dropped:
        kept = takewhile(lambda user: user.sequence_number == sequence_number, reversed(users))
        highest = max(highest, sum(1 for _ in kept) + incidents[-1].dropped - 1)
    return Position(sequence_number, highest)
