"""Puts records into the stream, and into the ledger: alone, aggregated, broken, and some that no handler can handle."""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import Final

from leasehold.core.model import HASH_KEY_MAX, ShardId
from leasehold.core.record import PutEntry
from leasehold.core.records.aggregation import aggregate
from leasehold.kinesis_model.service import KinesisModel
from leasehold.kinesis_model.writing import PutRequest, PutResult
from leasehold.simulation.ledger import Ledger

_AGGREGATED_MAX: Final = 6


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """What kind of records are produced."""

    every_ms: int = 500
    records_max: int = 6  # at one time
    data_bytes: int = 20
    aggregated_share: float = 0.0
    corrupt_share: float = 0.0  # of the aggregates
    poison_share: float = 0.0


class Producer:
    """Knows the stream and the ledger; decides nothing about when."""

    def __init__(
        self, service: KinesisModel, stream: str, ledger: Ledger, workload: Workload, rng: random.Random
    ) -> None:
        self._service = service
        self._stream = stream
        self._ledger = ledger
        self._harvest = workload
        self._rng = rng

    def produce(self, wall_ms: int) -> int:
        """Put some records now. Returns how many user records they are."""
        before = self._ledger.produced
        for _ in range(self._rng.randint(1, self._harvest.records_max)):
            hash_key = self._rng.randint(0, HASH_KEY_MAX)
            if self._rng.random() < self._harvest.aggregated_share:
                self._put_aggregate(wall_ms, hash_key)
            else:
                self._put(wall_ms, self._data(), hash_key, records=1)
        return self._ledger.produced - before

    def _put_aggregate(self, wall_ms: int, hash_key: int) -> None:
        count = self._rng.randint(2, _AGGREGATED_MAX)
        entry = aggregate([PutEntry(self._data(count), f"k{number}", hash_key) for number in range(count)])
        data = entry.data
        if self._rng.random() < self._harvest.corrupt_share:
            # The checksum stands at the end. Such a record is delivered as it is.
            data, count = data[:-1] + bytes([data[-1] ^ 1]), 1
        self._put(wall_ms, data, hash_key, records=count)

    def _put(self, wall_ms: int, data: bytes, hash_key: int, *, records: int) -> None:
        stored: PutResult = self._service.put_record(wall_ms, self._stream, PutRequest("k", data, hash_key))
        book = self._ledger.shard(ShardId(stored.shard_id))
        for sub in range(records):
            book.add((stored.number, sub), is_poison=self._rng.random() < self._harvest.poison_share)

    def _data(self, parts: int = 1) -> bytes:
        return b"x" * self._rng.randint(1, max(1, self._harvest.data_bytes // parts))
