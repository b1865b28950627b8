"""Positions of records as text, so that a sink of a user can store how far each shard was written.

The source delivers the records of a shard in order, and a repeated batch has the same rows. So one position for each
shard, stored in the transaction that stores the rows, says which rows of any later batch are new.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

from leasehold.archive.columns import SEQUENCE_NUMBER, SHARD_ID, STREAM, SUB_SEQUENCE_NUMBER
from leasehold.errors import ConfigError

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

KEY_COLUMNS: Final = (STREAM, SHARD_ID, SEQUENCE_NUMBER, SUB_SEQUENCE_NUMBER)
# As in the names of archived objects, so that texts sort in the order of the records.
_NUMBER_DIGITS: Final = 56
_SUB_NUMBER_DIGITS: Final = 10
_SEPARATOR: Final = "/"  # neither a stream nor a shard id contains it


def find_last_positions(batch: DataFrame) -> dict[tuple[str, str], str]:
    """The position of the last record of each stream and shard in a batch."""
    from pyspark.sql import functions  # noqa: PLC0415 - an extra, and slow

    _require_columns(batch)
    last = batch.groupBy(STREAM, SHARD_ID).agg(functions.max(_position()).alias("position"))
    return {(row[STREAM], row[SHARD_ID]): row["position"] for row in last.collect()}


def keep_rows_after(batch: DataFrame, positions: Mapping[tuple[str, str], str]) -> DataFrame:
    """The rows of a batch after these positions. All rows of a shard without a position are kept."""
    from pyspark.sql import functions  # noqa: PLC0415 - an extra, and slow

    _require_columns(batch)
    if not positions:
        return batch
    pairs = [
        functions.lit(text)
        for key, position in positions.items()
        for text in (_SEPARATOR.join(key), position)
    ]
    key = functions.concat_ws(_SEPARATOR, STREAM, SHARD_ID)
    stored = functions.coalesce(functions.create_map(*pairs)[key], functions.lit(""))
    return batch.where(_position() > stored)


def _position() -> Any:
    from pyspark.sql import functions  # noqa: PLC0415 - an extra, and slow

    sub_number = functions.col(SUB_SEQUENCE_NUMBER).cast("string")
    return functions.concat(
        functions.lpad(functions.col(SEQUENCE_NUMBER), _NUMBER_DIGITS, "0"),
        functions.lit("."),
        functions.lpad(sub_number, _SUB_NUMBER_DIGITS, "0"),
    )


def _require_columns(batch: DataFrame) -> None:
    missing = [name for name in KEY_COLUMNS if name not in batch.columns]
    if missing:
        raise ConfigError(
            f"the batch has no column {' and '.join(missing)}: read the stream with columns='all', and keep "
            f"{', '.join(KEY_COLUMNS)}"
        )
