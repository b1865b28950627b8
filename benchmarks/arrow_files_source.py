"""A Python data source that only reads ready-made Arrow batches from files: the floor of every Python source of Spark.

It has the columns of our source, in batches of the same size, and nothing to fetch, decode, pin or commit.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import DataSource, DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import SupportsTriggerAvailableNow

from leasehold.archive.columns import DEFAULT_COLUMNS, arrow_schema, spark_ddl

FILE_BYTES = 4_000_000
FILES_A_BATCH = 16
TASKS = 2


def write_files(folder: Path, record_bytes: int, records: int) -> int:
    """Write records as Arrow files. Returns how many there are."""
    folder.mkdir()
    each = FILE_BYTES // record_bytes
    files = max(1, records // each)
    batch = _batch(record_bytes, each)
    for number in range(files):
        with (
            pa.OSFile(str(folder / f"{number:05}.arrow"), "wb") as file,
            pa.ipc.new_file(file, batch.schema) as out,
        ):
            out.write_batch(batch)
    return files * each


def _batch(record_bytes: int, count: int) -> pa.RecordBatch:
    schema = arrow_schema(DEFAULT_COLUMNS)
    columns = [pa.array([_value(field.type, record_bytes)] * count, field.type) for field in schema]
    return pa.RecordBatch.from_arrays(columns, schema=schema)


def _value(kind: pa.DataType, record_bytes: int) -> Any:
    if pa.types.is_binary(kind):
        return os.urandom(record_bytes)
    if pa.types.is_string(kind):
        return "49590338271490256608559692538361571095921575989136588898"
    return datetime(2024, 6, 7, tzinfo=UTC) if pa.types.is_timestamp(kind) else 0


@dataclass
class Files(InputPartition):
    """The files of one task."""

    paths: list[str]


class ArrowFilesSource(DataSource):
    """`format("arrow-files")` with the option `path`."""

    @classmethod
    def name(cls) -> str:
        """The name for `format(...)`."""
        return "arrow-files"

    def schema(self) -> str:
        """The schema of our source."""
        return spark_ddl(DEFAULT_COLUMNS)

    def streamReader(self, schema: Any) -> ArrowFilesReader:  # noqa: ARG002, N802 - Spark's name and arguments
        """The reader of a streaming query."""
        return ArrowFilesReader(self.options["path"])


class ArrowFilesReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Reads some files in each batch."""

    def __init__(self, path: str) -> None:
        self._path = path

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802 - Spark's name
        """All files are there."""

    def initialOffset(self) -> dict[str, int]:  # noqa: N802 - Spark's name
        """No file was read."""
        return {"files": 0}

    def latestOffset(self, start: dict[str, int], limit: Any) -> dict[str, int]:  # noqa: ARG002, N802 - Spark's
        """The next files."""
        return {"files": min(start["files"] + FILES_A_BATCH, len(list(Path(self._path).iterdir())))}

    def partitions(self, start: dict[str, int], end: dict[str, int]) -> Sequence[InputPartition]:
        """Two tasks."""
        paths = sorted(str(each) for each in Path(self._path).iterdir())[start["files"] : end["files"]]
        return [Files(paths[task::TASKS]) for task in range(TASKS)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the batches of one task."""
        assert isinstance(partition, Files)
        for path in partition.paths:
            file = pa.ipc.open_file(pa.memory_map(path))
            yield from (file.get_batch(number) for number in range(file.num_record_batches))
