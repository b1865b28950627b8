"""The columns that identify records, as they are found in an object: a damaged object may have anything in them."""

from __future__ import annotations

from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from leasehold.archive.columns import ARRIVAL, SEQUENCE_NUMBER, SHARD_ID, SUB_SEQUENCE_NUMBER, arrow_schema
from leasehold.core.exactly_once.object_keys import SEQUENCE_DIGITS

# The columns that identify a record and determine its object.
IDENTITY_COLUMNS: Final = (SHARD_ID, SEQUENCE_NUMBER, SUB_SEQUENCE_NUMBER, ARRIVAL)

_DIGITS: Final = f"^[0-9]{{1,{SEQUENCE_DIGITS}}}$"


def with_valid_identity(table: Any) -> Any:
    """The table with the types of records in these columns, as far as it has them.

    Raises ValueError for a value that no record has. A record may lack an arrival time.
    """
    for field in arrow_schema(IDENTITY_COLUMNS):
        if field.name not in table.column_names:
            continue
        column = _cast(table[field.name], field)
        if field.name != ARRIVAL and column.null_count:
            raise ValueError(f"a record has no {field.name}")
        if field.name == SEQUENCE_NUMBER and not _all(pc.match_substring_regex(column, _DIGITS)):
            raise ValueError(f"a record has a {field.name} that is no number")
        if field.name == SUB_SEQUENCE_NUMBER and not _all(pc.greater_equal(column, 0)):
            raise ValueError(f"a record has a negative {field.name}")
        if table.schema.field(field.name).type != field.type:
            table = table.set_column(table.column_names.index(field.name), field.name, column)
    return table


def _cast(column: Any, field: Any) -> Any:
    if column.type == field.type:
        return column
    # No type for numbers holds a sequence number.
    may_be_cast = not (pa.types.is_string(field.type) and pa.types.is_primitive(column.type))
    try:
        if may_be_cast:
            return column.cast(field.type)
    except pa.ArrowException:
        pass
    raise ValueError(f"its column {field.name} is of type {column.type}")


def _all(values: Any) -> bool:
    return pc.all(values).as_py() is not False  # None: there are no rows
