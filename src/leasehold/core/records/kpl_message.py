"""The KPL's wire format: `magic | protobuf message | MD5 of the message`.

The message class is built for the first aggregate, because protobuf takes a quarter of the time that a worker needs to
start, and 6 MB. There is no generated file, so its version cannot conflict with the protobuf
runtime. It has its own descriptor pool, so it cannot conflict with another library's copy of the same schema. It
differs from the published schema in three points, none of which affects a valid aggregate:

* The tables hold `bytes`. With `string`, the runtime would silently mix `bytes` for invalid UTF-8 into a list of
  `str`.

* An absent `explicit_hash_key_index` reads as `INDEX_ABSENT`, because a presence check takes twice as long as reading
  the field. No table is that long; a forged index with this value counts as absent.

* `tags` are not declared, so the parser skips them as unknown. No consumer uses them. Declared, each two bytes of a
  malicious payload would cost 70 bytes of memory.

A second class reads the same bytes as columns. Its `records` is one message, not a list, and a parser merges all
occurrences of such a field into one; the fields of that one are lists. So the parser itself collects each field of all
user records in one list, and no object is made for a user record. A third class requires an explicit hash key of each
user record, and so tells whether a list of them is aligned with the others.
"""

from __future__ import annotations

import hashlib
from functools import lru_cache
from typing import Any, Final

from google.protobuf.internal import api_implementation

from leasehold.errors import ConfigError

MAGIC: Final = bytes.fromhex("f3899ac2")
DIGEST_BYTES: Final = 16
FRAME_BYTES: Final = len(MAGIC) + DIGEST_BYTES

INDEX_ABSENT: Final = 2**64 - 1

# Wire type -> bytes to skip. Types 3 and 4 only open and close a group; the fields inside are skipped like others.
_FIXED_WIDTH: Final = {1: 8, 3: 0, 4: 0, 5: 4}
_VARINT, _LENGTH_DELIMITED = 0, 2
_VARINT_BITS: Final = 64


def add_frame(payload: bytes) -> bytes:
    """The message as the data of a Kinesis record."""
    return MAGIC + payload + _digest(payload)


def remove_frame(data: bytes) -> bytes | None:
    """The message inside the frame; None if the checksum does not match. `data` must start with the magic bytes."""
    payload = data[len(MAGIC) : -DIGEST_BYTES]
    return payload if _digest(payload) == data[-DIGEST_BYTES:] else None


def _digest(payload: bytes) -> bytes:
    # A checksum, not a signature, so the use of MD5 is fine on FIPS builds.
    return hashlib.md5(payload, usedforsecurity=False).digest()


def count_entries(payload: bytes, *, stop_after: int) -> int:
    """The number of top-level fields, counted without building objects. Stops after more than `stop_after`."""
    count = at = 0
    try:
        while at < len(payload) and count <= stop_after:
            tag, at = _read_varint(payload, at)
            at = _skip(payload, at, tag & 7)
            count += 1
    except (IndexError, ValueError):
        pass  # the parser will raise for the same error
    return count


def _skip(payload: bytes, at: int, wire_type: int) -> int:
    if wire_type == _LENGTH_DELIMITED:
        length, at = _read_varint(payload, at)
        return at + length
    if wire_type == _VARINT:
        return _read_varint(payload, at)[1]
    if wire_type not in _FIXED_WIDTH:
        raise ValueError(wire_type)
    return at + _FIXED_WIDTH[wire_type]


def _read_varint(payload: bytes, at: int) -> tuple[int, int]:
    value = payload[at]
    if value < 0x80:
        return value, at + 1
    value &= 0x7F
    for shift in range(7, _VARINT_BITS, 7):
        at += 1
        value |= (payload[at] & 0x7F) << shift
        if payload[at] < 0x80:
            return value, at + 1
    raise ValueError(at)


def require_native_runtime(backend: str) -> None:
    """Refuse protobuf's pure-Python backend: it is slow, and malicious payloads can exhaust its stack."""
    if backend == "python":
        raise ConfigError(
            "protobuf runs on its pure-Python backend, which malicious records can crash (CVE-2025-4565): unset "
            "PROTOCOL_BUFFERS_PYTHON_IMPLEMENTATION, or install a protobuf wheel built for this platform"
        )


_Fields = tuple[tuple[int, str, str, str, dict[str, str]], ...]

# number, name, type, label, and further fields of the descriptor
_RECORD: Final[_Fields] = (
    (1, "partition_key_index", "TYPE_UINT64", "LABEL_REQUIRED", {}),
    (2, "explicit_hash_key_index", "TYPE_UINT64", "LABEL_OPTIONAL", {"default_value": str(INDEX_ABSENT)}),
    (3, "data", "TYPE_BYTES", "LABEL_REQUIRED", {}),
)
_AGGREGATED_RECORD: Final[_Fields] = (
    (1, "partition_key_table", "TYPE_BYTES", "LABEL_REPEATED", {}),
    (2, "explicit_hash_key_table", "TYPE_BYTES", "LABEL_REPEATED", {}),
    (3, "records", "TYPE_MESSAGE", "LABEL_REPEATED", {"type_name": ".kpl.Record"}),
)
_KEYED_RECORD: Final[_Fields] = tuple(
    (number, name, type_name, "LABEL_REQUIRED", {}) for number, name, type_name, _, _ in _RECORD
)
_AGGREGATED_KEYED_RECORD: Final[_Fields] = (
    (3, "records", "TYPE_MESSAGE", "LABEL_REPEATED", {"type_name": ".kpl.KeyedRecord"}),
)
_RECORD_COLUMNS: Final[_Fields] = tuple(
    (number, name, type_name, "LABEL_REPEATED", {}) for number, name, type_name, _, _ in _RECORD
)
_AGGREGATED_COLUMNS: Final[_Fields] = (
    (3, "records", "TYPE_MESSAGE", "LABEL_OPTIONAL", {"type_name": ".kpl.RecordColumns"}),
)
_MESSAGES: Final = {
    "Record": _RECORD,
    "AggregatedRecord": _AGGREGATED_RECORD,
    "RecordColumns": _RECORD_COLUMNS,
    "AggregatedColumns": _AGGREGATED_COLUMNS,
    "KeyedRecord": _KEYED_RECORD,
    "AggregatedKeyedRecord": _AGGREGATED_KEYED_RECORD,
}


def new_aggregated_record() -> Any:
    """An empty message of the class `AggregatedRecord`."""
    return _message_classes()["AggregatedRecord"]()


def new_aggregated_columns() -> Any:
    """An empty message that collects each field of all user records in one list."""
    return _message_classes()["AggregatedColumns"]()


def new_aggregated_keyed_record() -> Any:
    """An empty message whose user records require an explicit hash key."""
    return _message_classes()["AggregatedKeyedRecord"]()


@lru_cache(maxsize=1)
def _message_classes() -> dict[str, Any]:
    from google.protobuf import descriptor_pb2, descriptor_pool, message_factory  # noqa: PLC0415

    file = descriptor_pb2.FileDescriptorProto(name="kpl.proto", package="kpl", syntax="proto2")
    for message_name, fields in _MESSAGES.items():
        message = file.message_type.add(name=message_name)
        for number, name, type_name, label, more in fields:
            message.field.add(number=number, name=name, type=type_name, label=label, **more)
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return {
        name: message_factory.GetMessageClass(pool.FindMessageTypeByName(f"kpl.{name}")) for name in _MESSAGES
    }


require_native_runtime(api_implementation.Type())
