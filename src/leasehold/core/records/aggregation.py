"""Makes KPL aggregates: many user records in one Kinesis record. Decides what fits and which outer keys it gets;
which records belong together, and when to send, is the producer's business. `deaggregation` is the way back.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from leasehold.core.model import HASH_KEY_MAX
from leasehold.core.record import PutEntry
from leasehold.core.records.kpl_message import FRAME_BYTES, AggregatedRecord, add_frame
from leasehold.errors import InvalidRecordError

RECORD_BYTES_MAX: Final = 1024 * 1024
PARTITION_KEY_CHARACTERS_MAX: Final = 256

# The KPL's choice; routing goes by the explicit hash key that accompanies it.
_OUTER_PARTITION_KEY: Final = "a"


class Aggregator:
    """Packs user records of one shard into one Kinesis record, until no more fit.

    All records must belong to the same shard *now*: consumers drop strays (`deaggregation.OutOfRange`). An aggregate
    of one is legal and larger than the record itself; the KPL sends that one plain, and so should the caller.
    """

    def __init__(self, *, size_max: int = RECORD_BYTES_MAX) -> None:
        self._size_max = size_max
        self._start()

    def _start(self) -> None:
        self._message = AggregatedRecord()
        self._partition_keys = _KeyTable()
        self._hash_keys = _KeyTable()
        self._first_hash_key = 0
        self._size = FRAME_BYTES

    def __len__(self) -> int:
        return len(self._message.records)

    @property
    def size(self) -> int:
        """Bytes of data that `take` would return now."""
        return self._size

    def add(self, entry: PutEntry) -> bool:
        """Adds the entry if it fits. If not, `take` what is here and add it again.

        Raises InvalidRecordError for an entry that Kinesis would refuse or that no aggregate has room for.
        """
        key, hash_key = _checked_keys(entry)
        size = self._size + self._added_size(key, hash_key, len(entry.data))
        # Kinesis counts the outer partition key into the size of a record.
        if size + len(_OUTER_PARTITION_KEY) > self._size_max:
            if len(self) == 0:
                raise InvalidRecordError(
                    f"a record of {len(entry.data)} bytes makes an aggregate of {size}, and {self._size_max} "
                    "are allowed: put it without aggregation, or split it"
                )
            return False
        if len(self) == 0:
            self._first_hash_key = entry.hash_key
        inner = self._message.records.add(
            partition_key_index=self._partition_keys.enter(key), data=entry.data
        )
        if hash_key is not None:
            inner.explicit_hash_key_index = self._hash_keys.enter(hash_key)
        self._size = size
        return True

    def flush(self) -> PutEntry:
        """What was added, as one entry with the outer keys that the KPL gives it; then starts anew."""
        assert len(self) > 0, "nothing was added"
        self._message.partition_key_table.extend(self._partition_keys)
        self._message.explicit_hash_key_table.extend(self._hash_keys)
        payload = self._message.SerializeToString()
        entry = PutEntry(add_frame(payload), _OUTER_PARTITION_KEY, self._first_hash_key)
        self._start()
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
    """Key -> index, each key once, in the order of their first use."""

    def enter(self, key: bytes) -> int:
        return self.setdefault(key, len(self))

    def growth(self, key: bytes) -> int:
        return 0 if key in self else _delimited_size(len(key))

    def index_size(self, key: bytes) -> int:
        return 1 + _varint_size(self.get(key, len(self)))


def aggregate(entries: Iterable[PutEntry]) -> PutEntry:
    """All entries as one. Raises InvalidRecordError if there are none or they do not fit together.

    >>> entry = aggregate([PutEntry(b"hello", "pk1", 99), PutEntry(b"world!", "pk2", 123)])
    >>> entry.data[:4].hex(), entry.partition_key, entry.explicit_hash_key
    ('f3899ac2', 'a', 99)
    """
    aggregator = Aggregator()
    for entry in entries:
        if not aggregator.add(entry):
            raise InvalidRecordError(
                f"no room for more than {len(aggregator)} of the records in one aggregate of {RECORD_BYTES_MAX} "
                "bytes: use an Aggregator, and start anew when it is full"
            )
    if len(aggregator) == 0:
        raise InvalidRecordError("an aggregate of no records: consumers would see nothing; put none")
    return aggregator.flush()


def _checked_keys(entry: PutEntry) -> tuple[bytes, bytes | None]:
    """Both keys as the tables hold them."""
    if not 1 <= len(entry.partition_key) <= PARTITION_KEY_CHARACTERS_MAX:
        raise InvalidRecordError(
            f"a partition key of {len(entry.partition_key)} characters: Kinesis takes 1 to "
            f"{PARTITION_KEY_CHARACTERS_MAX}"
        )
    try:
        key = entry.partition_key.encode()
    except UnicodeEncodeError:
        raise InvalidRecordError("a partition key with a lone surrogate, which has no UTF-8 form") from None
    if entry.explicit_hash_key is None:
        return key, None
    if not 0 <= entry.explicit_hash_key <= HASH_KEY_MAX:
        raise InvalidRecordError(f"explicit hash key {entry.explicit_hash_key} is outside 0..2^128-1")
    return key, b"%d" % entry.explicit_hash_key


def _delimited_size(length: int) -> int:
    return 1 + _varint_size(length) + length


def _varint_size(value: int) -> int:
    return max(1, (value.bit_length() + 6) // 7)
