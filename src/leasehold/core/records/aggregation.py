"""Builds KPL aggregates: many user records in one Kinesis record. `deaggregation` is the inverse.

Decides which records fit and which outer keys the aggregate gets. The producer decides which records belong together
and when to send them.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from leasehold.core.model import HASH_KEY_MAX
from leasehold.core.record import PutEntry
from leasehold.core.records.kpl_message import FRAME_BYTES, add_frame, new_aggregated_record
from leasehold.errors import InvalidRecordError

RECORD_BYTES_MAX: Final = 1024 * 1024
PARTITION_KEY_CHARACTERS_MAX: Final = 256

# The same key as the KPL's. The explicit hash key beside it decides the shard.
_OUTER_PARTITION_KEY: Final = "a"


class Aggregator:
    """Packs user records of one shard into one Kinesis record, until no more fit.

    All records must belong to the same shard when they are sent: consumers drop the others
    (`deaggregation.OutOfRange`). An aggregate of one record is valid but larger than the record itself. The KPL sends
    such a record without an aggregate, and so should the caller.
    """

    def __init__(self, *, size_max: int = RECORD_BYTES_MAX) -> None:
        self._size_max = size_max
        self._start_message()

    def _start_message(self) -> None:
        self._message = new_aggregated_record()
        self._partition_keys = _KeyTable()
        self._hash_keys = _KeyTable()
        self._first_hash_key = 0
        self._size = FRAME_BYTES

    def __len__(self) -> int:
        return len(self._message.records)

    @property
    def size(self) -> int:
        """The size in bytes of the data that `flush` would return now."""
        return self._size

    def add(self, entry: PutEntry) -> bool:
        """Add the entry if it fits. Otherwise returns False: call `flush`, then add it again.

        Raises InvalidRecordError for an entry that Kinesis would refuse or that is too large for any aggregate.
        """
        key, hash_key = _encode_keys(entry)
        size = self._size + self._added_size(key, hash_key, len(entry.data))
        # Kinesis counts the outer partition key into the size of a record.
        if size + len(_OUTER_PARTITION_KEY) > self._size_max:
            if len(self) == 0:
                raise InvalidRecordError(
                    f"a record of {len(entry.data)} bytes makes an aggregate of {size} bytes, but at most "
                    f"{self._size_max} are allowed: put it without aggregation, or split it"
                )
            return False
        if len(self) == 0:
            self._first_hash_key = entry.hash_key
        inner = self._message.records.add(
            partition_key_index=self._partition_keys.index_of(key), data=entry.data
        )
        if hash_key is not None:
            inner.explicit_hash_key_index = self._hash_keys.index_of(hash_key)
        self._size = size
        return True

    def flush(self) -> PutEntry:
        """The added records as one entry with the outer keys of the KPL. Then starts the next aggregate."""
        assert len(self) > 0, "no record was added"
        self._message.partition_key_table.extend(self._partition_keys)
        self._message.explicit_hash_key_table.extend(self._hash_keys)
        payload = self._message.SerializeToString()
        entry = PutEntry(add_frame(payload), _OUTER_PARTITION_KEY, self._first_hash_key)
        self._start_message()
        return entry

    def _added_size(self, key: bytes, hash_key: bytes | None, data_bytes: int) -> int:
        """How much the message grows: new table entries, then the record with its indices and data."""
        tables = self._partition_keys.growth(key)
        inner = self._partition_keys.index_size(key) + _delimited_size(data_bytes)
        if hash_key is not None:
            tables += self._hash_keys.growth(hash_key)
            inner += self._hash_keys.index_size(hash_key)
        return tables + _delimited_size(inner)


class _KeyTable(dict[bytes, int]):
    """Maps each key to its index, in the order of first use."""

    def index_of(self, key: bytes) -> int:
        return self.setdefault(key, len(self))

    def growth(self, key: bytes) -> int:
        return 0 if key in self else _delimited_size(len(key))

    def index_size(self, key: bytes) -> int:
        return 1 + _varint_size(self.get(key, len(self)))


def aggregate(entries: Iterable[PutEntry]) -> PutEntry:
    """All entries as one. Raises InvalidRecordError if there are none or they do not fit into one aggregate.

    >>> entry = aggregate([PutEntry(b"hello", "pk1", 99), PutEntry(b"world!", "pk2", 123)])
    >>> entry.data[:4].hex(), entry.partition_key, entry.explicit_hash_key
    ('f3899ac2', 'a', 99)
    """
    aggregator = Aggregator()
    for entry in entries:
        if not aggregator.add(entry):
            raise InvalidRecordError(
                f"only {len(aggregator)} of the records fit into one aggregate of {RECORD_BYTES_MAX} bytes: use an "
                "Aggregator, and flush it when it is full"
            )
    if len(aggregator) == 0:
        raise InvalidRecordError(
            "no records to aggregate: an empty aggregate delivers nothing; do not put one"
        )
    return aggregator.flush()


def _encode_keys(entry: PutEntry) -> tuple[bytes, bytes | None]:
    """Both keys as bytes, as the tables hold them. Raises InvalidRecordError if one is invalid."""
    if not 1 <= len(entry.partition_key) <= PARTITION_KEY_CHARACTERS_MAX:
        raise InvalidRecordError(
            f"a partition key of {len(entry.partition_key)} characters: Kinesis accepts 1 to "
            f"{PARTITION_KEY_CHARACTERS_MAX}"
        )
    try:
        key = entry.partition_key.encode()
    except UnicodeEncodeError:
        raise InvalidRecordError(
            "a partition key with a lone surrogate, which cannot be encoded as UTF-8"
        ) from None
    if entry.explicit_hash_key is None:
        return key, None
    if not 0 <= entry.explicit_hash_key <= HASH_KEY_MAX:
        raise InvalidRecordError(f"explicit hash key {entry.explicit_hash_key} is outside 0..2^128-1")
    return key, b"%d" % entry.explicit_hash_key


def _delimited_size(length: int) -> int:
    return 1 + _varint_size(length) + length


def _varint_size(value: int) -> int:
    return max(1, (value.bit_length() + 6) // 7)
