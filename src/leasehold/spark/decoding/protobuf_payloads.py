"""Payloads that are single Protobuf messages, by a descriptor set as `protoc --include_imports` writes it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from functools import cache
from typing import Any, Final

import pyarrow as pa
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from google.protobuf.message import DecodeError, Message

from leasehold.errors import ConfigError
from leasehold.spark.decoding.payload_column import Decode, require_fields

_Proto: Final = descriptor_pb2.FieldDescriptorProto
_TIMESTAMP: Final = "google.protobuf.Timestamp"
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_UINT64: Final = pa.decimal128(20, 0)
_TYPES: Final[Mapping[int, Any]] = {
    _Proto.TYPE_BOOL: pa.bool_(),
    _Proto.TYPE_STRING: pa.string(),
    _Proto.TYPE_BYTES: pa.binary(),
    _Proto.TYPE_FLOAT: pa.float32(),
    _Proto.TYPE_DOUBLE: pa.float64(),
    **dict.fromkeys((_Proto.TYPE_INT32, _Proto.TYPE_SINT32, _Proto.TYPE_SFIXED32), pa.int32()),
    **dict.fromkeys((_Proto.TYPE_UINT32, _Proto.TYPE_FIXED32), pa.int64()),
    **dict.fromkeys((_Proto.TYPE_INT64, _Proto.TYPE_SINT64, _Proto.TYPE_SFIXED64), pa.int64()),
}


@dataclass(frozen=True, slots=True)
class ProtobufPayloads:
    """Protobuf messages of one type."""

    descriptors: bytes  # a FileDescriptorSet
    message: str  # with its package

    @property
    def name(self) -> str:
        """The format, for messages."""
        return "Protobuf"

    def record_type(self) -> Any:
        """The Arrow type of a message."""
        return _compile(self.descriptors, self.message)[1].kind

    def open(self) -> Decode:
        """The function that decodes a payload."""
        factory, converter = _compile(self.descriptors, self.message)

        def decode(payload: bytes) -> Any:
            message = factory()
            message.ParseFromString(payload)
            if not message.IsInitialized():
                raise DecodeError
            return converter.convert(message)

        return decode


@dataclass(frozen=True, slots=True)
class _Converter:
    """The Arrow type of values, and how to convert them."""

    kind: Any
    convert: Callable[[Any], Any]


@cache
def _compile(descriptors: bytes, name: str) -> tuple[Callable[[], Message], _Converter]:
    pool = descriptor_pool.DescriptorPool()
    try:
        for each in descriptor_pb2.FileDescriptorSet.FromString(descriptors).file:
            pool.Add(each)
    except (DecodeError, TypeError) as error:
        raise ConfigError(
            "not a descriptor set with all imports: make it with protoc --include_imports --descriptor_set_out=FILE"
        ) from error
    try:
        found = pool.FindMessageTypeByName(name)
    except KeyError as error:
        raise ConfigError(
            f"message={name!r} is not in the descriptor set: expected a name with its package, such as 'shop.Order'"
        ) from error
    return message_factory.GetMessageClass(found), _of_message(found, ())


def _of_message(message: Any, within: tuple[str, ...]) -> _Converter:
    if message.full_name in within:
        raise ConfigError(f"message {message.full_name!r} contains itself, and has no column type")
    if message.full_name == _TIMESTAMP:
        return _Converter(pa.timestamp("us", tz="UTC"), _to_time)
    require_fields(message.fields, f"message {message.full_name!r}")
    fields = {each.name: _of_field(each, (*within, message.full_name)) for each in message.fields}
    kind = pa.struct([(name, each.kind) for name, each in fields.items()])
    return _Converter(kind, lambda value: {name: each.convert(value) for name, each in fields.items()})


def _of_field(field: Any, within: tuple[str, ...]) -> _Converter:
    """Converts a message to the value of one of its fields. A field that is not there is null, or has its default."""
    name = field.name
    if field.message_type is not None and field.message_type.GetOptions().map_entry:
        key, value = (_of_value(field.message_type.fields_by_name[each], within) for each in ("key", "value"))
        return _Converter(
            pa.map_(key.kind, value.kind),
            lambda message: [
                (key.convert(one), value.convert(other)) for one, other in getattr(message, name).items()
            ],
        )
    one = _of_value(field, within)
    if _is_repeated(field):
        return _Converter(
            pa.list_(one.kind), lambda message: [one.convert(each) for each in getattr(message, name)]
        )
    if field.has_presence:
        return _Converter(
            one.kind,
            lambda message: one.convert(getattr(message, name)) if message.HasField(name) else None,
        )
    return _Converter(one.kind, lambda message: one.convert(getattr(message, name)))


def _of_value(field: Any, within: tuple[str, ...]) -> _Converter:
    if field.message_type is not None:
        return _of_message(field.message_type, within)
    if field.enum_type is not None:
        names = {number: each.name for number, each in field.enum_type.values_by_number.items()}
        return _Converter(pa.string(), lambda value: names.get(value, str(value)))
    if field.type in {_Proto.TYPE_UINT64, _Proto.TYPE_FIXED64}:
        return _Converter(_UINT64, Decimal)
    return _Converter(_TYPES[field.type], lambda value: value)


def _is_repeated(field: Any) -> bool:
    # Older versions have only the label.
    return bool(field.is_repeated if hasattr(field, "is_repeated") else field.label == _Proto.LABEL_REPEATED)


def _to_time(timestamp: Any) -> datetime:
    return _EPOCH + timedelta(seconds=timestamp.seconds, microseconds=timestamp.nanos // 1_000)
