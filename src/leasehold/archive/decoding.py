"""Decodes the objects of an archive to tables with the columns of records."""

from __future__ import annotations

import binascii
from collections.abc import Mapping, Sequence
from typing import Any, Final

import pyarrow as pa
from pybase64 import b64decode

from leasehold.archive.avro_objects import from_avro
from leasehold.archive.columns import ALL_COLUMNS, ARRIVAL, DATA, SLICE, arrow_schema
from leasehold.archive.decompression import (
    TooLargeError,
    decoded_limit,
    read_parquet,
    require_readable_parquet,
)
from leasehold.archive.formats import DATA_IS_TEXT, UNREADABLE, json_rows
from leasehold.archive.identity import IDENTITY_COLUMNS, with_valid_identity

# The columns that every archive has, unless user code has dropped some.
RECORD_COLUMNS: Final = tuple(name for name in ALL_COLUMNS if name != SLICE)

_TYPES: Final[Mapping[str, Any]] = {field.name: field.type for field in arrow_schema(RECORD_COLUMNS)}
_POINTER_BYTES: Final = 8


def decode(body: bytes, extension: str, columns: Sequence[str] | None = None) -> Any:
    """Decode an object with positions. Columns that it does not have are left out; None: all of its columns.

    Raises ValueError if the object cannot be read.
    """
    return with_valid_identity(_decode(body, extension, columns))


def decode_checked(body: bytes, extension: str, columns: Sequence[str] = IDENTITY_COLUMNS) -> Any:
    """Decode these columns of an object, and make sure that a reader can read all its columns.

    Raises ValueError if the object cannot be read, or lacks one of the IDENTITY_COLUMNS.
    """
    if extension == "parquet":
        # Rows are read little by little, and not kept: a compacted object is large.
        try:
            require_readable_parquet(body)
        except TooLargeError:
            raise
        except UNREADABLE as error:
            raise ValueError(f"unreadable: {type(error).__name__}") from error
        table = decode(body, extension, columns)
    else:
        whole = decode(body, extension)
        table = whole.select([name for name in columns if name in whole.column_names])
    if missing := [name for name in IDENTITY_COLUMNS if name not in table.column_names]:
        raise ValueError(f"its records have no {', '.join(missing)}")
    return table


def _decode(body: bytes, extension: str, columns: Sequence[str] | None) -> Any:
    if extension == "avro":
        return from_avro(body, columns)
    try:
        if extension == "parquet":
            return read_parquet(body, columns)
        return _from_json_lines(body, extension, columns)
    except TooLargeError:
        raise
    except UNREADABLE as error:
        raise ValueError(f"unreadable: {type(error).__name__}") from error


def _from_json_lines(body: bytes, extension: str, columns: Sequence[str] | None) -> Any:
    wanted = None if columns is None else {*columns, DATA_IS_TEXT}
    found: dict[str, list[Any]] = {}
    count, limit = 0, decoded_limit(len(body))
    for _, row in json_rows(body, extension):
        for name, value in row.items():
            if wanted is None or name in wanted:
                values = found.setdefault(name, [])
                values.extend([None] * (count - len(values)))
                values.append(value)
        count += 1
        # Each row may have another column, of which all rows have a value.
        if count * len(found) * _POINTER_BYTES > limit:
            raise TooLargeError(limit)
    for values in found.values():
        values.extend([None] * (count - len(values)))
    is_text = found.pop(DATA_IS_TEXT, [])
    if DATA in found:
        found[DATA] = _payloads(found[DATA], is_text)
    return pa.table({name: _column(name, values) for name, values in found.items()})


def _payloads(values: Sequence[Any], is_text: Sequence[Any]) -> list[Any]:
    """The payloads as they were written: bytes, or what a program has made of them.

    A compacted object may have both, bytes and text. Then all become bytes, as a column has one type.
    """
    if not any(isinstance(each, str) for each in values):
        return list(values)  # a structure, a number, or nothing
    marks = is_text or [None] * len(values)
    if all(mark for mark, value in zip(marks, values, strict=True) if value is not None):
        return list(values)
    return [
        value if value is None else value.encode() if mark else _from_base64(value)
        for mark, value in zip(marks, values, strict=True)
    ]


def _from_base64(text: str) -> bytes:
    try:
        return b64decode(text, validate=True)
    except (binascii.Error, ValueError) as error:
        raise ValueError("a payload is neither base64 nor marked as text") from error


def _column(name: str, values: Sequence[Any]) -> Any:
    """A column with the type of this column of records, unless a program has given it another one."""
    kind = _TYPES.get(name)
    if kind is None:
        return pa.array(values)
    if name == ARRIVAL:
        return pa.array(values, pa.string()).cast(kind)
    if name == DATA and any(isinstance(each, str) for each in values):
        return pa.array(values, pa.string())
    try:
        return pa.array(values, kind)
    except (pa.ArrowInvalid, pa.ArrowTypeError, TypeError):
        return pa.array(values)
