"""Payloads that are single Avro records: binary, without a container, and with a header of a registry or without."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from functools import cache
from io import BytesIO
from typing import Any, Final

import orjson
import pyarrow as pa

from leasehold.archive.avro_objects import import_fastavro
from leasehold.archive.avro_types import expand_names, to_arrow_type, without_other_logical_types
from leasehold.errors import ConfigError
from leasehold.spark.decoding.payload_column import Decode, require_fields

_CONFLUENT: Final = b"\x00"
_GLUE: Final = b"\x03\x00"  # the version, and no compression
_UUID: Final = re.compile(r"[0-9a-fA-F]{8}(-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}")


class Header(Enum):
    """What is in front of each record."""

    NONE = "none"
    CONFLUENT = "confluent"  # a zero, and the number of the schema in four bytes
    GLUE = "glue"  # two bytes, and the id of the schema's version in sixteen


class UnexpectedHeaderError(ValueError):
    """A payload does not begin with the header of this schema."""


class TrailingBytesError(ValueError):
    """A payload has bytes behind its record."""


@dataclass(frozen=True, slots=True)
class AvroPayloads:
    """Avro records of one schema."""

    schema: str  # as JSON
    prefix: bytes = b""  # with which each payload begins

    @property
    def name(self) -> str:
        """The format, for messages."""
        return "Avro"

    def record_type(self) -> Any:
        """The Arrow type of a record."""
        return _compile(self.schema)[1]

    def open(self) -> Decode:
        """The function that decodes a payload."""
        fastavro = import_fastavro()
        parsed, kind = _compile(self.schema)
        convert, prefix = _converter(kind), self.prefix

        def decode(payload: bytes) -> Any:
            if not payload.startswith(prefix):
                raise UnexpectedHeaderError
            source = BytesIO(payload)
            source.seek(len(prefix))
            record = fastavro.schemaless_reader(source, parsed, None)
            if source.tell() != len(payload):
                raise TrailingBytesError
            return record if convert is None else convert(record)

        return decode


def header_prefix(header: Header, schema_id: object) -> bytes:
    """The bytes with which payloads of a schema begin. Raises ConfigError for a wrong id."""
    if header is Header.NONE:
        return b""
    if header is Header.CONFLUENT:
        if not isinstance(schema_id, int) or not 0 <= schema_id < 2**32:
            raise ConfigError(f"schema_id={schema_id!r}: expected the number of the schema in the registry")
        return _CONFLUENT + schema_id.to_bytes(4, "big")
    if not isinstance(schema_id, str) or not _UUID.fullmatch(schema_id):
        raise ConfigError(
            f"schema_id={schema_id!r}: expected the id of the schema's version, of 32 hexadecimal digits with hyphens"
        )
    return _GLUE + bytes.fromhex(schema_id.replace("-", ""))


@cache
def _compile(schema: str) -> tuple[Any, Any]:
    """The schema as fastavro uses it, and the Arrow type of its records."""
    fastavro = import_fastavro()
    try:
        whole = fastavro.parse_schema(orjson.loads(schema))
        expanded = expand_names(without_other_logical_types(whole))
        kind = to_arrow_type(expanded)
        parsed = fastavro.parse_schema(without_other_logical_types(whole), _force=True)
    except ConfigError:
        raise
    except Exception as error:
        # An invalid schema may raise anything. Its text names types and fields, and no data.
        raise ConfigError(f"not an Avro schema: {type(error).__name__}: {error}") from error
    if not pa.types.is_struct(kind):
        raise ConfigError("the schema of payloads must be a record")
    _require_all_fields(kind)
    return parsed, kind


def _require_all_fields(kind: Any) -> None:
    if pa.types.is_struct(kind):
        require_fields(list(kind), "a record of the schema")
    for place in range(kind.num_fields):
        _require_all_fields(kind.field(place).type)


def _converter(kind: Any) -> Callable[[Any], Any] | None:
    """Converts maps to pairs, as Arrow wants them. None: there are no maps."""
    if pa.types.is_map(kind):
        inner = _converter(kind.item_type) or (lambda value: value)
        return lambda value: None if value is None else [(key, inner(each)) for key, each in value.items()]
    if pa.types.is_list(kind):
        item = _converter(kind.value_type)
        return (
            None if item is None else lambda value: None if value is None else [item(each) for each in value]
        )
    if pa.types.is_struct(kind):
        fields = {field.name: made for field in kind if (made := _converter(field.type)) is not None}
        if fields:
            return lambda value: (
                None
                if value is None
                else value | {name: convert(value[name]) for name, convert in fields.items()}
            )
    return None
