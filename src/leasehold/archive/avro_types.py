"""Converts between the types of Arrow and of Avro: for objects of the archive, and for payloads of a pipeline."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

import pyarrow as pa

from leasehold.errors import ConfigError

# The name of the record in an object, and the start of the names of the records within it.
ROW: Final = "leasehold.Row"

_NAME: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_DECIMAL_DIGITS_MAX: Final = 38
# A few names, each of which stands for several others, could make an expanded schema endless.
TYPES_MAX: Final = 50_000

_PRIMITIVES: Final[Mapping[str, Any]] = {
    "null": pa.null(),
    "boolean": pa.bool_(),
    "int": pa.int32(),
    "long": pa.int64(),
    "float": pa.float32(),
    "double": pa.float64(),
    "bytes": pa.binary(),
    "string": pa.string(),
}
_UTC_TIME: Final = pa.timestamp("us", tz="UTC")
_LOCAL_TIME: Final = pa.timestamp("us")
_LOGICAL: Final[Mapping[tuple[str, str], Any]] = {
    ("int", "date"): pa.date32(),
    ("long", "timestamp-millis"): _UTC_TIME,
    ("long", "timestamp-micros"): _UTC_TIME,
    ("long", "local-timestamp-millis"): _LOCAL_TIME,
    ("long", "local-timestamp-micros"): _LOCAL_TIME,
}


def to_avro_schema(schema: Any) -> dict[str, Any]:
    """The Avro schema of a table, in which every column may be null. Raises ConfigError for other types."""
    return _to_avro_record(schema, ROW)


def _to_avro_record(fields: Iterable[Any], path: str) -> dict[str, Any]:
    made = [_to_avro_field(each, path) for each in fields]
    names = [each["name"] for each in made]
    if len(set(names)) < len(names):
        raise ConfigError("two columns with the same name cannot be stored as Avro: rename one of them")
    return {"type": "record", "name": path, "fields": made}


def _to_avro_field(field: Any, path: str) -> dict[str, Any]:
    if not _NAME.fullmatch(field.name):
        raise ConfigError(
            f"column {field.name!r} cannot be stored as Avro: a name has letters, digits and _, and begins with no "
            "digit; rename it, or use format='parquet'"
        )
    kind = _to_avro_type(field.type, f"{path}.{field.name}")
    return {"name": field.name, "type": kind if kind == "null" else ["null", kind]}


def _to_avro_type(kind: Any, path: str) -> Any:
    for avro, arrow in _PRIMITIVES.items():
        if kind.equals(arrow):
            return avro
    if pa.types.is_dictionary(kind):
        return _to_avro_type(kind.value_type, path)
    if pa.types.is_large_string(kind) or pa.types.is_large_binary(kind):
        return "string" if pa.types.is_large_string(kind) else "bytes"
    if pa.types.is_integer(kind) and not pa.types.is_uint64(kind):
        return "int" if kind.bit_width < 32 else "long"
    if pa.types.is_date32(kind):
        return {"type": "int", "logicalType": "date"}
    if pa.types.is_timestamp(kind) and kind.unit != "ns":
        name = "local-timestamp-micros" if kind.tz is None else "timestamp-micros"
        return {"type": "long", "logicalType": name}
    if pa.types.is_decimal128(kind) and 0 <= kind.scale <= kind.precision:
        return {
            "type": "bytes",
            "logicalType": "decimal",
            "precision": kind.precision,
            "scale": kind.scale,
        }
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        items = _to_avro_type(kind.value_type, f"{path}.item")
        # A union of one branch takes a byte: readers refuse an array whose items take none.
        return {"type": "array", "items": ["null"] if items == "null" else ["null", items]}
    if pa.types.is_struct(kind):
        return _to_avro_record(kind, path)
    raise ConfigError(
        f"column {path.removeprefix(f'{ROW}.')!r} of type {kind} cannot be stored as Avro: cast it, drop it, or use "
        "format='parquet'"
    )


def to_arrow_type(avro: Any) -> Any:
    """The Arrow type of an Avro type. Names are expanded, and other logical types removed.

    Raises ConfigError for a union of several types.
    """
    if isinstance(avro, list):
        others = [each for each in avro if each != "null"]
        if len(others) > 1:
            raise ConfigError("a union of several types has no column type: use one field for each type")
        return to_arrow_type(others[0]) if others else pa.null()
    if isinstance(avro, str):
        return _PRIMITIVES[avro]
    kind, logical = avro["type"], avro.get("logicalType")
    if logical == "decimal":
        return pa.decimal128(avro["precision"], avro.get("scale", 0))
    if (kind, logical) in _LOGICAL:
        return _LOGICAL[kind, logical]
    if kind in {"record", "error"}:
        return pa.struct([(each["name"], to_arrow_type(each["type"])) for each in avro["fields"]])
    if kind == "array":
        return pa.list_(to_arrow_type(avro["items"]))
    if kind == "map":
        return pa.map_(pa.string(), to_arrow_type(avro["values"]))
    if kind in {"enum", "fixed"}:
        return pa.string() if kind == "enum" else pa.binary()
    return to_arrow_type(kind)


def without_other_logical_types(avro: Any) -> Any:
    """The schema without logical types that have no column type, such as times of a day.

    Their values are read as the numbers, texts or bytes that they are.
    """
    if isinstance(avro, list):
        return [without_other_logical_types(each) for each in avro]
    if isinstance(avro, str):
        return avro
    made = {name: value for name, value in avro.items() if name in _KEPT or _has_column_type(avro, name)}
    for name in _INNER.intersection(made):
        made[name] = without_other_logical_types(made[name])
    return made


def with_numbers_for_times(avro: Any) -> Any:
    """The expanded schema with times and dates as the numbers that Arrow has for them.

    Objects of Python for them end with the year 9999. Only decimals and times in milliseconds stay what they are.
    """
    if isinstance(avro, list):
        return [with_numbers_for_times(each) for each in avro]
    if isinstance(avro, str):
        return avro
    made = {name: value for name, value in avro.items() if name != "logicalType" or value in _CONVERTED}
    for name in _INNER.intersection(made):
        made[name] = with_numbers_for_times(made[name])
    return made


def expand_names(avro: Any) -> Any:
    """The schema with the definition of a type in the place of its name. Names are full, as fastavro makes them.

    Raises ConfigError for a type that contains itself, for an array that a few bytes could make endless, and for more
    than TYPES_MAX types.
    """
    return _expand(avro, _Expansion(), ())


@dataclass(slots=True)
class _Expansion:
    """The definitions of names, and the number of types so far."""

    named: dict[str, Any] = field(default_factory=dict)
    types: int = 0


def _expand(avro: Any, so_far: _Expansion, within: tuple[str, ...]) -> Any:
    so_far.types += 1
    if so_far.types > TYPES_MAX:
        raise ConfigError(f"a schema of more than {TYPES_MAX} types is not supported: use fewer fields")
    if isinstance(avro, list):
        return [_expand(each, so_far, within) for each in avro]
    if isinstance(avro, str):
        if avro in _PRIMITIVES:
            return avro
        if avro in within:
            raise ConfigError(f"type {avro!r} contains itself, and has no column type")
        return _expand(so_far.named[avro], so_far, within)
    kind = avro["type"]
    if not isinstance(kind, str) or kind not in {*_PRIMITIVES, *_COMPLEX}:
        return _expand(kind, so_far, within)
    if kind in _NAMED:
        so_far.named[avro["name"]] = avro
        within = (*within, avro["name"])
    made = dict(avro)
    if kind in {"record", "error"}:
        made["fields"] = [
            {"name": each["name"], "type": _expand(each["type"], so_far, within)} for each in avro["fields"]
        ]
    for name in ("items", "values"):
        if name in avro:
            made[name] = _expand(avro[name], so_far, within)
    if kind == "array" and not smallest_bytes(made["items"]):
        raise ConfigError("an array whose items take no bytes is not supported: it may be endless")
    return made


_NAMED: Final = frozenset({"record", "error", "enum", "fixed"})
_COMPLEX: Final = _NAMED | {"array", "map"}
_INNER: Final = frozenset({"type", "fields", "items", "values"})
_CONVERTED: Final = frozenset({"decimal", "timestamp-millis", "local-timestamp-millis"})
_KEPT: Final = _INNER | {"name", "symbols", "size", "default"}


def _has_column_type(avro: Mapping[str, Any], name: str) -> bool:
    """Whether to keep `name`, which is a logical type or a property of it."""
    kind, logical = avro["type"], avro.get("logicalType")
    if logical == "decimal" and kind in {"bytes", "fixed"} and _is_decimal(avro):
        return name in {"logicalType", "precision", "scale"}
    return name == "logicalType" and (kind, logical) in _LOGICAL


def _is_decimal(avro: Mapping[str, Any]) -> bool:
    precision, scale = avro.get("precision"), avro.get("scale", 0)
    if not isinstance(precision, int) or not isinstance(scale, int):
        return False
    return 0 < precision <= _DECIMAL_DIGITS_MAX and 0 <= scale <= precision


def smallest_bytes(avro: Any) -> int:
    """The bytes that a value takes at least. Zero: a few bytes could claim any number of such values."""
    if isinstance(avro, list):
        return 1  # the branch
    kind = avro if isinstance(avro, str) else avro["type"]
    if kind in {"record", "error"}:
        return sum(smallest_bytes(each["type"]) for each in avro["fields"])
    return max(0, int(avro["size"])) if kind == "fixed" else int(kind != "null")
