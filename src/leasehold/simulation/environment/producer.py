"""Puts records into a stream and the ledger: plain, aggregated and corrupt records, and poison records."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from leasehold.core.model import HASH_KEY_MAX
from leasehold.core.record import PutEntry
from leasehold.core.records.aggregation import aggregate
from leasehold.kinesis_model.writing import PutRequest, PutResult
from leasehold.simulation.environment.ledger import Ledger
from leasehold.simulation.environment.streams import SimulatedStreams

_AGGREGATED_MAX: Final = 6


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """The kind and amount of records that are produced."""

    every_ms: int = 500
    records_max: int = 6  # in one round
    data_bytes: int = 20
    aggregated_share: float = 0.0
    corrupt_share: float = 0.0  # of the aggregates
    poison_share: float = 0.0
    partition_keys: int = 1


class Producer:
    """Puts random records when asked; the caller decides when."""

    def __init__(
        self,
        streams: SimulatedStreams,
        stream: str,
        ledger: Ledger,
        workload: Workload,
        rng: random.Random,
        *,
        keys_rng: random.Random,
    ) -> None:
        self._streams = streams
        self._stream = stream
        self._ledger = ledger
        self._workload = workload
        self._rng = rng
        self._keys_rng = keys_rng

    def produce(self, wall_ms: int) -> None:
        """Put one round of records."""
        for _ in range(self._rng.randint(1, self._workload.records_max)):
            hash_key = self._rng.randint(0, HASH_KEY_MAX)
            if self._rng.random() < self._workload.aggregated_share:
                self._put_aggregate(wall_ms, hash_key)
            else:
                self._put(wall_ms, self._random_data(), hash_key, [self._random_key()])

    def _put_aggregate(self, wall_ms: int, hash_key: int) -> None:
        count = self._rng.randint(2, _AGGREGATED_MAX)
        keys = [f"k{number}" for number in range(count)]
        entries = [PutEntry(self._random_data(count), key, hash_key) for key in keys]
        data = aggregate(entries).data
        if self._rng.random() < self._workload.corrupt_share:
            # The checksum is at the end. A record with a wrong checksum is delivered unchanged, as one record.
            data, keys = data[:-1] + bytes([data[-1] ^ 1]), [self._random_key()]
        self._put(wall_ms, data, hash_key, keys)

    def _put(self, wall_ms: int, data: bytes, hash_key: int, keys: Sequence[str]) -> None:
        """Put one Kinesis record, which contains user records with these partition keys."""
        request = PutRequest(keys[0] if len(keys) == 1 else "k", data, hash_key)
        stored: PutResult = self._streams.kinesis.put_record(wall_ms, self._stream, request)
        shard_ledger = self._ledger.shard(self._streams.key_of(self._stream, stored.shard_id))
        for sub, key in enumerate(keys):
            is_poison = self._rng.random() < self._workload.poison_share
            shard_ledger.add((stored.number, sub), is_poison=is_poison, partition_key=key)

    def _random_key(self) -> str:
        """Draw a partition key. With one key nothing is drawn, so that a seed means what it meant before."""
        count = self._workload.partition_keys
        return "k" if count == 1 else f"k{self._keys_rng.randrange(count)}"

    def _random_data(self, parts: int = 1) -> bytes:
        return b"x" * self._rng.randint(1, max(1, self._workload.data_bytes // parts))
