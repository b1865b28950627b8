"""Decodes the objects of an archive to tables with the columns of records."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import orjson
import pyarrow as pa
import pyarrow.parquet as pq
from pybase64 import b64decode

from leasehold.archive.avro_objects import from_avro
from leasehold.archive.columns import ALL_COLUMNS, SLICE, arrow_schema
from leasehold.archive.formats import read_text

# The columns that every archive has, unless user code has dropped some.
RECORD_COLUMNS: Final = tuple(name for name in ALL_COLUMNS if name != SLICE)

_TYPES: Final[Mapping[str, Any]] = {field.name: field.type for field in arrow_schema(RECORD_COLUMNS)}


def decode(body: bytes, extension: str, columns: Sequence[str] | None = None) -> Any:
    """Decode an object with positions. Columns that it does not have are left out; None: all of its columns.

    Raises ValueError if the object cannot be read.
    """
    if extension == "avro":
        return from_avro(body, columns)
    try:
        if extension == "parquet":
            return _from_parquet(body, columns)
        return _from_json_lines(body, extension, columns)
    except (pa.ArrowException, ValueError, KeyError, TypeError, OSError) as error:
        raise ValueError(f"unreadable: {type(error).__name__}") from error


def _from_parquet(body: bytes, columns: Sequence[str] | None) -> Any:
    file = pq.ParquetFile(pa.BufferReader(body))
    names = file.schema_arrow.names
    wanted = None if columns is None else [name for name in columns if name in names]
    return file.read(columns=wanted, use_threads=False)


def _from_json_lines(body: bytes, extension: str, columns: Sequence[str] | None) -> Any:
    text = read_text(body, extension)
    rows: Sequence[Mapping[str, Any]] = [orjson.loads(line) for line in text.splitlines()]
    names = dict.fromkeys(name for row in rows for name in row)
    wanted = [name for name in names if columns is None or name in columns]
    return pa.table({name: _column(name, [row.get(name) for row in rows]) for name in wanted})


def _column(name: str, values: Sequence[Any]) -> Any:
    kind = _TYPES.get(name)
    if kind is None:
        return pa.array(values)
    convert: Callable[[Any], Any] | None = b64decode if kind == pa.binary() else None
    if convert is not None:
        values = [None if value is None else convert(value) for value in values]
    if pa.types.is_timestamp(kind):
        return pa.array(values, pa.string()).cast(kind)
    return pa.array(values, kind)
