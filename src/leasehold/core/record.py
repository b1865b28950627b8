"""Records as values: as Kinesis returns them, as a user sees them, and as a producer puts them.

All three are named tuples and not frozen dataclasses, because a consumer creates one for every record it reads.
Measured with eight fields on CPython 3.11, one core of a small server: frozen slotted dataclass 1,120 ns, slotted but
mutable dataclass 225 ns, named tuple 330 ns, and 190 ns when created with `tuple.__new__`, as the hot loops do. A
named tuple also turns into columns with `zip(*records)`. The price: a record equals a plain tuple of the same values,
and `<` compares payloads; order records by `position`.

`repr` shows neither payload nor key, so a record in a log line or a traceback reveals nothing.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any, Final, NamedTuple

from leasehold.core.position import Position


class Record(NamedTuple):
    """A Kinesis record as received. Its data may be an aggregate of many user records."""

    data: bytes
    partition_key: str
    sequence_number: str
    arrival_ms: int | None = None
    encryption_type: str | None = None

    def __repr__(self) -> str:
        return f"Record({self.sequence_number}, {len(self.data)} bytes)"

    def as_user_record(self) -> UserRecord:
        """The same record as a user record that is not part of an aggregate."""
        return tuple.__new__(UserRecord, self + UNAGGREGATED)


class UserRecord(NamedTuple):
    """A record as a user put it: one part of an aggregate, or a whole Kinesis record.

    `explicit_hash_key` is known only for parts of an aggregate, because Kinesis does not return it.
    """

    data: bytes
    partition_key: str
    sequence_number: str
    arrival_ms: int | None = None
    encryption_type: str | None = None
    sub_sequence_number: int = 0
    explicit_hash_key: int | None = None
    aggregated: bool = False

    def __repr__(self) -> str:
        return f"UserRecord({self.sequence_number}/{self.sub_sequence_number}, {len(self.data)} bytes)"

    @property
    def position(self) -> Position:
        """The position of this record in its shard. As a checkpoint: this record and all before it are done."""
        return Position(self.sequence_number, self.sub_sequence_number)


class PutEntry(NamedTuple):
    """One record as a producer puts it."""

    data: bytes
    partition_key: str
    explicit_hash_key: int | None = None

    def __repr__(self) -> str:
        return f"PutEntry({len(self.data)} bytes)"

    @property
    def hash_key(self) -> int:
        """The hash key by which Kinesis routes: the explicit one, or the hash of the partition key."""
        if self.explicit_hash_key is not None:
            return self.explicit_hash_key
        return hash_key_of(self.partition_key)


# The additional fields of a user record that is not part of an aggregate.
UNAGGREGATED: Final = (0, None, False)


def hash_key_of(partition_key: str) -> int:
    """The hash key of a partition key: its MD5 as a number.

    >>> hash_key_of("pk1")
    329398341438914906102347661116985167824
    """
    return int.from_bytes(hash_key_bytes(partition_key), "big")


def hash_key_bytes(partition_key: str) -> bytes:
    """The hash key of a partition key, as 16 bytes in big-endian order."""
    digest: bytes = md5(partition_key.encode()).digest()
    return digest


def _md5() -> Callable[[bytes], Any]:
    """MD5 for short inputs. It is the service's routing function here, not a security measure."""
    try:
        from _md5 import md5 as built_in  # type: ignore[import-not-found,unused-ignore]  # noqa: PLC0415
    except ImportError:
        # The flag makes it work on FIPS builds of OpenSSL.
        return partial(hashlib.md5, usedforsecurity=False)
    # CPython's own implementation takes half the time of OpenSSL's for a partition key. Some builds do not have it.
    return built_in  # type: ignore[no-any-return,unused-ignore]


md5: Final = _md5()

# The method without an attribute lookup for each hash.
_digest: Final[Callable[[Any], bytes]] = type(md5(b"")).digest


def md5_digests(texts: Iterable[bytes]) -> list[bytes]:
    """The MD5 of each text."""
    return list(map(_digest, map(md5, texts)))
