"""A Spark member of a fleet: `leasehold pipeline`, from the stream into an archive or into files, and what is there.

What is there counts as handled, at the time at which its object was written. An archive has each record once; files
show how often a record was delivered.
"""

import asyncio
import json
import os
import re
import signal
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Final

import pyarrow.parquet as pq

from leasehold.archive.archive import Archive
from leasehold.archive.settings import ArchiveSettings
from leasehold.archive.verification import Problem, list_archive, verify_shard
from tests.chaos.spark_processes import list_processes
from tests.fleet.run_check import Handled

# The worker id of a query contains a random number that belongs to its checkpoint location.
NAME: Final = re.compile(r"spark-[0-9a-f]{16}")
ARCHIVE: Final = "archive"
FILES: Final = "parquet"
_COLUMNS: Final = ["shardId", "sequenceNumber", "subSequenceNumber", "data"]


@dataclass(frozen=True)
class SparkPipeline:
    """A pipeline in a file of its own. Its checkpoint location and its output are beside the file."""

    file: Path
    source: Mapping[str, Any]
    sink: str = ARCHIVE

    @property
    def output(self) -> Path:
        """The folder that the sink writes to."""
        return self.file.with_suffix(f".{self.sink}")

    def write(self) -> None:
        """Write the file, with the smallest Spark session."""
        tables: dict[str, Mapping[str, Any]] = {
            "source": self.source,
            "sink": {"kind": self.sink, "path": str(self.output)},
            "trigger": {"processing_time": "1s"},
            "spark": {"master": "local[2,4]", "driver.memory": "512m"},
        }
        lines = [f"checkpoint = {json.dumps(str(self.file.with_suffix('.checkpoint')))}"]
        for name, members in tables.items():
            lines.append(f"[{name}]")
            lines += [f"{json.dumps(key)} = {json.dumps(value)}" for key, value in members.items()]
        self.file.write_text("\n".join(lines))

    def records(self, worker: str) -> list[Handled]:
        """Every record of the output. Order is checked within an object, because a range is written at once."""
        files = self.output.rglob("*.parquet") if self.sink == ARCHIVE else _committed_files(self.output)
        return [record for file in files for record in _records(file, worker)]

    def problems(self) -> list[Problem]:
        """The problems of an archive. Files may have a record twice."""
        return archive_problems(self.output) if self.sink == ARCHIVE else []


def _committed_files(folder: Path) -> set[Path]:
    """The files of committed batches, according to the log of Spark's sink."""
    logs = [each for each in (folder / "_spark_metadata").glob("*") if each.name[0].isdigit()]
    return {folder / name for each in logs for name in _logged_names(each)}


@cache
def _logged_names(log: Path) -> tuple[str, ...]:
    """The files that one batch has added, or all batches up to it. After the version, each line names a file."""
    return tuple(json.loads(line)["path"].rpartition("/")[2] for line in log.read_text().splitlines()[1:])


@cache
def _records(file: Path, worker: str) -> tuple[Handled, ...]:
    """The records of one object. An object never changes, so they are cached."""
    written_ns = file.stat().st_mtime_ns - (time.time_ns() - time.monotonic_ns())
    table = pq.ParquetFile(file).read(columns=_COLUMNS)
    rows = zip(*(table[name].to_pylist() for name in _COLUMNS), strict=True)
    return tuple(
        Handled(written_ns + place, worker, file.name, shard, int(sequence), sub_sequence or 0, int(data))
        for place, (shard, sequence, sub_sequence, data) in enumerate(rows)
    )


def archive_problems(archive: Path) -> list[Problem]:
    """The problems of an archive: overlaps, duplicate records, damaged objects."""

    async def verify() -> list[Problem]:
        store = Archive.open(ArchiveSettings(url=str(archive))).store
        listed = await list_archive(store, "")
        verdicts = [
            await verify_shard(store, shard, objects, lambda _: None)
            for shard, objects in listed.shards.items()
        ]
        return [problem for verdict in verdicts for problem in verdict.problems]

    return asyncio.run(verify())


def kill_session(leader: int) -> None:
    """Kill -9 the pipeline with its JVM, its reader and its tasks: all are in one process session."""
    while found := [each.pid for each in list_processes() if each.session == leader]:
        for pid in found:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
