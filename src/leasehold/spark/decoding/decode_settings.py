"""The settings of a pipeline file that say how payloads are decoded."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Any, Final

from leasehold.config import values
from leasehold.errors import ConfigError
from leasehold.spark.decoding.avro_payloads import AvroPayloads, Header, header_prefix
from leasehold.spark.decoding.payload_column import PayloadFormat
from leasehold.spark.decoding.protobuf_payloads import ProtobufPayloads


class DecodeFormat(Enum):
    """The format of payloads that a pipeline can decode."""

    JSON = "json"
    AVRO = "avro"
    PROTOBUF = "protobuf"


@dataclass(frozen=True, slots=True, kw_only=True)
class Decode:
    """How payloads are decoded. JSON by Spark, with columns as its DDL; the other formats by us."""

    format: DecodeFormat
    schema: str = ""
    payloads: PayloadFormat | None = None


# What each format needs, and what it may have in addition.
_NEEDS: Final[Mapping[DecodeFormat, tuple[tuple[str, ...], tuple[str, ...]]]] = {
    DecodeFormat.JSON: (("schema",), ()),
    DecodeFormat.AVRO: (("schema_file",), ("header", "schema_id")),
    DecodeFormat.PROTOBUF: (("descriptor_file", "message"), ()),
}
NAMES: Final = (
    "decode",
    *dict.fromkeys(name for names in _NEEDS.values() for each in names for name in each),
)


def parse_decode(table: Mapping[str, Any]) -> Decode | None:
    """Parse the settings of `[transform]`, and read the file with the schema. Raises ConfigError if one is wrong."""
    given = {name: value for name, value in table.items() if name in NAMES}
    if not given:
        return None
    if "decode" not in given:
        raise ConfigError(
            f"{next(iter(given))} and decode belong together: add decode = 'json', 'avro' or 'protobuf'"
        )
    format_: DecodeFormat = _choice("decode", DecodeFormat, given.pop("decode"))
    needed, further = _NEEDS[format_]
    if missing := [name for name in needed if name not in given]:
        raise ConfigError(
            f"decode = {format_.value!r} and {missing[0]} belong together: {_EXAMPLES[format_]}"
        )
    if foreign := [name for name in given if name not in {*needed, *further}]:
        raise ConfigError(f"{foreign[0]} is not a setting of decode = {format_.value!r}")
    return _PARSERS[format_](given)


_EXAMPLES: Final[Mapping[DecodeFormat, str]] = {
    DecodeFormat.JSON: "set the columns of a payload, such as schema = 'customer STRING, amount DOUBLE'",
    DecodeFormat.AVRO: "set the file with the schema, such as schema_file = 'order.avsc'",
    DecodeFormat.PROTOBUF: "set descriptor_file = 'orders.desc' and message = 'shop.Order'",
}


def _json(given: Mapping[str, Any]) -> Decode:
    return Decode(format=DecodeFormat.JSON, schema=_text("schema", given["schema"]))


def _avro(given: Mapping[str, Any]) -> Decode:
    header: Header = _choice("header", Header, given.get("header", "none"))
    if (header is Header.NONE) != ("schema_id" not in given):
        raise ConfigError(
            "header and schema_id belong together: the header of each payload has the id of its schema, and a payload "
            "of another schema goes to the errors"
        )
    prefix = header_prefix(header, given.get("schema_id"))
    schema = _read("schema_file", given["schema_file"])
    try:
        payloads = AvroPayloads(schema.decode(), prefix)
        payloads.record_type()
    except (ConfigError, UnicodeDecodeError) as error:
        raise ConfigError(f"schema_file={given['schema_file']!r}: {error}") from error
    return Decode(format=DecodeFormat.AVRO, payloads=payloads)


def _protobuf(given: Mapping[str, Any]) -> Decode:
    descriptors = _read("descriptor_file", given["descriptor_file"])
    payloads = ProtobufPayloads(descriptors, _text("message", given["message"]))
    try:
        payloads.record_type()
    except ConfigError as error:
        raise ConfigError(f"descriptor_file={given['descriptor_file']!r}: {error}") from error
    return Decode(format=DecodeFormat.PROTOBUF, payloads=payloads)


_PARSERS: Final[Mapping[DecodeFormat, Callable[[Mapping[str, Any]], Decode]]] = {
    DecodeFormat.JSON: _json,
    DecodeFormat.AVRO: _avro,
    DecodeFormat.PROTOBUF: _protobuf,
}


def _choice(name: str, of: type[Enum], value: object) -> Any:
    try:
        return values.choice(of)(value)
    except ConfigError as error:
        raise ConfigError(f"{name}={value!r}: {error}") from error


def _read(name: str, value: object) -> bytes:
    path = Path(_text(name, value))
    try:
        return path.read_bytes()
    except OSError as error:
        raise ConfigError(f"{name}={value!r}: {error.strerror}") from error


def _text(name: str, value: object) -> str:
    if not isinstance(value, str) or not value.strip():
        raise ConfigError(f"{name}={value!r}: expected text")
    return value
