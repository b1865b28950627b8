"""The encoding of rows as objects, and the decoding of their positions."""

from datetime import date
from decimal import Decimal
from typing import Any

import orjson
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from leasehold.archive.columns import DATA, SEQUENCE_NUMBER
from leasehold.archive.formats import IDENTITY_COLUMNS, decode_identity, encode
from leasehold.archive.settings import FORMATS, RAW_FORMATS
from tests.unit.archive.archive_world import records, table

EVERY = [
    (extension, compression)
    for name, compressions in FORMATS.items()
    for compression, extension in compressions.items()
    if name not in RAW_FORMATS
]


def rows_with_user_columns() -> Any:
    rows = table(records([1, 2])).drop_columns(["slice"])
    return rows.append_column(
        "nested", pa.array([{"list": [1, 2], "inner": {"bytes": b"x"}}, None])
    ).append_column("price", pa.array([Decimal("1.50"), None]))


@pytest.mark.parametrize(("extension", "compression"), EVERY)
def test_the_positions_of_an_object_can_be_decoded(extension: str, compression: str) -> None:
    """In every format with positions, with further columns of any type. Encoding is deterministic."""
    rows = rows_with_user_columns()
    body = encode(rows, extension, compression)
    assert body == encode(rows, extension, compression)
    assert decode_identity(body, extension).equals(rows.select(IDENTITY_COLUMNS).combine_chunks())


def test_columns_of_any_type_are_kept() -> None:
    """Parquet keeps all types. JSON has bytes as base64 and decimals as text."""
    rows = rows_with_user_columns()
    assert pq.read_table(pa.BufferReader(encode(rows, "parquet", "zstd"))).equals(rows)
    rows = rows.append_column("day", pa.array([date(2026, 11, 16), None]))
    first = orjson.loads(encode(rows, "jsonl", "none").splitlines()[0])
    assert first["nested"] == {"list": [1, 2], "inner": {"bytes": "eA=="}}
    assert (first["price"], first["day"]) == ("1.50", "2026-11-16")


@pytest.mark.parametrize("extension", ["parquet", "jsonl", "jsonl.gz", "jsonl.zst", "avro"])
@pytest.mark.parametrize("body", [b"?", b"[1]\n", b'{"shardId": "s"}\n', b"PAR1 no parquet PAR1"])
def test_other_content_is_unreadable(extension: str, body: bytes) -> None:
    """All invalid content raises the same error, which does not quote the content."""
    with pytest.raises(ValueError, match=r"^unreadable: \w+$"):
        decode_identity(body, extension)


def test_parquet_has_statistics_for_the_columns_that_queries_filter_by() -> None:
    """Payloads and sequence numbers are unique: a dictionary of them, or bounds of payloads, would only take space."""
    rows = table(records([1, 2])).drop_columns(["slice"])
    group = pq.ParquetFile(pa.BufferReader(encode(rows, "parquet", "zstd"))).metadata.row_group(0)
    columns = {(found := group.column(place)).path_in_schema: found for place in range(group.num_columns)}
    assert columns.keys() == set(rows.column_names)
    bounded = {name for name, column in columns.items() if column.is_stats_set}
    assert columns.keys() - bounded == {DATA}
    with_dictionary = {name for name, column in columns.items() if column.has_dictionary_page}
    assert columns.keys() - with_dictionary == {DATA, SEQUENCE_NUMBER}
