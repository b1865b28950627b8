"""The KPL's wire format: `magic | protobuf message | MD5 of the message`. Knows bytes, not what they mean.

The message class is built at import: no generated file, hence no clash between its version and the runtime's, and
a descriptor pool of its own, hence no clash with another library's copy of the same schema. It differs from the
published schema in three points, none of which shows in a sound aggregate:

* The tables hold `bytes`. Given bad UTF-8 the runtime would mix `bytes` into a list of `str` without a word.
* An absent `explicit_hash_key_index` reads as `INDEX_ABSENT`, because asking for presence takes twice as long as
  reading the field. No table is that long; a forged index of this value counts as absent.
* `tags` are left undeclared, and so skipped as unknown. Nothing uses them, and declared they would cost 70 bytes
  of memory for two bytes of a hostile payload.
"""

from __future__ import annotations

import hashlib
from typing import Any, Final

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from google.protobuf.internal import api_implementation

from leasehold.errors import ConfigError

MAGIC: Final = bytes.fromhex("f3899ac2")
DIGEST_BYTES: Final = 16
FRAME_BYTES: Final = len(MAGIC) + DIGEST_BYTES

INDEX_ABSENT: Final = 2**64 - 1

# Wire type -> bytes to skip. Types 3 and 4 only open and close a group, whose fields are then walked like others.
_FIXED_WIDTH: Final = {1: 8, 3: 0, 4: 0, 5: 4}
_VARINT, _LENGTH_DELIMITED = 0, 2
_VARINT_BITS: Final = 64


def add_frame(payload: bytes) -> bytes:
    """The payload as the data of a Kinesis record."""
    return MAGIC + payload + _digest(payload)


def remove_frame(data: bytes) -> bytes | None:
    """What `framed` was given, or None if the checksum says otherwise. For data with the magic and more than it."""
    payload = data[len(MAGIC) : -DIGEST_BYTES]
    return payload if _digest(payload) == data[-DIGEST_BYTES:] else None


def _digest(payload: bytes) -> bytes:
    # A checksum, no signature: it says nothing about who made the aggregate. Hence FIPS builds need not object.
    return hashlib.md5(payload, usedforsecurity=False).digest()


def count_entries(payload: bytes, *, stop_after: int) -> int:
    """How many top-level fields the message has, found without building any. Stops beyond `stop_after`."""
    count = at = 0
    try:
        while at < len(payload) and count <= stop_after:
            tag, at = _read_varint(payload, at)
            at = _skip(payload, at, tag & 7)
            count += 1
    except (IndexError, ValueError):
        pass  # the parser will find the same fault, and it is the one whose verdict counts
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
    """Refuses protobuf's pure-Python backend: slow, and open to payloads that exhaust the stack."""
    if backend == "python":
        raise ConfigError(
            "protobuf runs on its pure-Python backend, which hostile records can crash (CVE-2025-4565): unset "
            "PROTOCOL_BUFFERS_PYTHON_IMPLEMENTATION, or install a protobuf wheel built for this platform"
        )


_Fields = tuple[tuple[int, str, str, str, dict[str, str]], ...]

# number, name, type, label, and what else the descriptor needs
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


def _message_class() -> Any:
    file = descriptor_pb2.FileDescriptorProto(name="kpl.proto", package="kpl", syntax="proto2")
    for message_name, fields in (("Record", _RECORD), ("AggregatedRecord", _AGGREGATED_RECORD)):
        message = file.message_type.add(name=message_name)
        for number, name, type_name, label, more in fields:
            message.field.add(number=number, name=name, type=type_name, label=label, **more)
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return message_factory.GetMessageClass(pool.FindMessageTypeByName("kpl.AggregatedRecord"))


require_native_runtime(api_implementation.Type())
AggregatedRecord: Final = _message_class()
