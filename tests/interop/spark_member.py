"""A Spark member of a fleet: `leasehold pipeline`, from the stream into an archive, and the records in that archive.

What is archived counts as handled, at the time at which its object was written.
"""

import asyncio
import json
import os
import re
import signal
import time
from contextlib import suppress
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
_COLUMNS: Final = ["shardId", "sequenceNumber", "subSequenceNumber", "data"]


def write_pipeline(file: Path, source: dict[str, Any], archive: Path) -> None:
    """Write the file of a pipeline, with the smallest Spark session."""
    tables: dict[str, dict[str, Any]] = {
        "source": source,
        "sink": {"kind": "archive", "path": str(archive)},
        "trigger": {"processing_time": "1s"},
        "spark": {"master": "local[2,4]", "driver.memory": "512m"},
    }
    lines = [f"checkpoint = {json.dumps(str(file.with_suffix('.checkpoint')))}"]
    for name, members in tables.items():
        lines.append(f"[{name}]")
        lines += [f"{json.dumps(key)} = {json.dumps(value)}" for key, value in members.items()]
    file.write_text("\n".join(lines))


def archived_records(archive: Path, worker: str) -> list[Handled]:
    """Every record of an archive. Order is checked within an object, because a range is written at once."""
    return [record for file in archive.rglob("*.parquet") for record in _records(file, worker)]


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
