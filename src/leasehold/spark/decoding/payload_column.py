"""Decodes a column of payloads to a column of records. A payload that cannot be decoded has an error instead."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final, Protocol

import pyarrow as pa

from leasehold.errors import ConfigError

RECORD: Final = "record"
ERROR: Final = "decodeError"

# Decodes one payload. It may raise any error.
Decode = Callable[[bytes], Any]


class PayloadFormat(Protocol):
    """A format with its schema. Spark sends it to the tasks, so it is small and can be pickled."""

    @property
    def name(self) -> str:
        """The format, for messages."""
        ...

    def record_type(self) -> Any:
        """The Arrow type of a record. Raises ConfigError if the schema has none."""
        ...

    def open(self) -> Decode:
        """The function that decodes a payload."""
        ...


def result_type(format_: PayloadFormat) -> Any:
    """The Arrow type of the decoded column: a record, or an error."""
    return pa.struct([(RECORD, format_.record_type()), (ERROR, pa.string())])


def decode_column(payloads: Any, format_: PayloadFormat) -> Any:
    """Decode a column. The error names the class of what was raised: its text could have parts of the payload."""
    decode, kind = format_.open(), format_.record_type()
    records: list[Any] = []
    errors: list[str | None] = []
    for payload in payloads.to_pylist():
        record, error = _attempt(decode, payload, format_)
        records.append(record)
        errors.append(error)
    try:
        column = pa.array(records, kind)
    except (pa.ArrowException, ValueError, TypeError, OverflowError):
        # One record has a value that its column cannot hold. The others must not fail with it.
        column = _one_by_one(records, errors, kind, format_)
    return pa.StructArray.from_arrays(
        [column, pa.array(errors, pa.string())], fields=list(result_type(format_))
    )


def _attempt(decode: Decode, payload: bytes, format_: PayloadFormat) -> tuple[Any, str | None]:
    try:
        return decode(payload), None
    except Exception as error:  # noqa: BLE001 - libraries raise many classes for bytes of another format
        return None, _describe(error, format_)


def _one_by_one(records: Sequence[Any], errors: list[str | None], kind: Any, format_: PayloadFormat) -> Any:
    parts: list[Any] = []
    for place, record in enumerate(records):
        try:
            part = pa.array([record], kind)
        except (pa.ArrowException, ValueError, TypeError, OverflowError) as error:
            part, errors[place] = pa.nulls(1, kind), _describe(error, format_)
        parts.append(part)
    return pa.concat_arrays(parts)


def _describe(error: Exception, format_: PayloadFormat) -> str:
    return f"the payload is not {format_.name} of the schema: {type(error).__name__}"


def require_fields(names: Sequence[object], what: str) -> None:
    """Raise ConfigError for a record without fields, which no file format can store."""
    if not names:
        raise ConfigError(f"{what} has no fields, and no column can hold it")
