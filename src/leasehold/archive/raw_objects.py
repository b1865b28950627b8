"""Objects of the archive with nothing but payloads: with their lengths, or as lines.

A payload in `raw` follows its length, four bytes with the highest first. A payload in `raw-lines` is followed by a line
break (one byte, 0x0A), so a payload must not have one. Neither has the position of a record: only the name of an object
has the first and the last one.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from leasehold.archive.columns import DATA, SEQUENCE_NUMBER
from leasehold.errors import ConfigError

LINE_BREAK: Final = b"\n"
LENGTH_BYTES: Final = 4
HAS_LINE_BREAK: Final = "the payload has a line break"


def to_frames(table: Any) -> bytes:
    """The payloads of the rows, each after its length."""
    return b"".join(
        part for each in payloads_of(table) for part in (len(each).to_bytes(LENGTH_BYTES, "big"), each)
    )


def from_frames(body: bytes) -> list[bytes]:
    """The payloads of an object. Raises ValueError if it ends within one."""
    return [body[begin:end] for begin, end in _frames(body)]


def count_frames(body: bytes) -> int:
    """The number of payloads of an object. Raises ValueError if it ends within one."""
    return sum(1 for _ in _frames(body))


def _frames(body: bytes) -> Iterator[tuple[int, int]]:
    first = 0
    while first < len(body):
        begin = first + LENGTH_BYTES
        end = begin + int.from_bytes(body[first:begin], "big")
        if begin > len(body) or end > len(body):
            raise ValueError("it ends within a record")
        yield begin, end
        first = end


def to_lines(table: Any) -> bytes:
    """The payloads of the rows, each as a line. Raises ConfigError if a payload has a line break."""
    payloads = payloads_of(table)
    broken = has_line_break(table)
    if pc.any(broken).as_py():
        number = table[SEQUENCE_NUMBER].filter(broken)[0].as_py()
        raise ConfigError(
            f"the payload of record {number} has a line break, so it cannot be stored with format='raw-lines': use "
            "format='raw', or set error_prefix for such records"
        )
    return b"".join(each + LINE_BREAK for each in payloads)


def from_lines(body: bytes) -> list[bytes]:
    """The payloads of an object. Raises ValueError if its last line is not complete."""
    *found, rest = body.split(LINE_BREAK)
    if rest:
        raise ValueError("it ends within a record")
    return found


def count_lines(body: bytes) -> int:
    """The number of payloads of an object. Raises ValueError if its last line is not complete."""
    if body and not body.endswith(LINE_BREAK):
        raise ValueError("it ends within a record")
    return body.count(LINE_BREAK)


def has_line_break(table: Any) -> Any:
    """For each row, whether its payload has a line break. A row without a payload has none."""
    if DATA not in table.column_names:
        return pa.repeat(False, table.num_rows)
    return pc.fill_null(pc.match_substring(to_binary(table[DATA]), LINE_BREAK), False)


def payloads_of(table: Any) -> Sequence[bytes]:
    """The payloads of rows as they are stored. Raises ConfigError if a row has none."""
    if DATA not in table.column_names or table[DATA].null_count:
        raise ConfigError(
            f"a raw archive stores the column {DATA!r}: keep it, and give it a value in each row"
        )
    payloads: list[bytes] = to_binary(table[DATA]).to_pylist()
    return payloads


def to_binary(column: Any) -> Any:
    """The column of payloads as bytes. A program may have made it text. Raises ConfigError for other types."""
    try:
        return column.cast(pa.binary())
    except (pa.ArrowNotImplementedError, pa.ArrowInvalid) as error:
        raise ConfigError(
            f"column {DATA!r} is of type {column.type}, not bytes or text: cast it, or use another format of the "
            "archive"
        ) from error
