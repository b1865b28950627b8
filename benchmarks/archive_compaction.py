"""Measures the compaction of an archive in a folder: MB/s, and the peak memory of the process.

    python -m benchmarks.archive_compaction [--objects N] [--records N] [--bytes N] [--target-mib N] [--json]

The objects are Parquet files of one shard, four a minute, with random payloads, which do not compress. The process that
compacts is a new one, so its memory is that of the compaction.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import multiprocessing
import os
import random
import resource
import tempfile
import time
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import pyarrow as pa

from leasehold.adapters.folder_objects import FolderObjects
from leasehold.adapters.system_clock import SystemClock
from leasehold.archive.columns import ARCHIVE_COLUMNS, SLICE, arrow_schema, record_batches
from leasehold.archive.compaction import CompactionSettings, Compactor, compact
from leasehold.archive.compaction_lock import CompactionLock
from leasehold.archive.formats import encode
from leasehold.core.exactly_once.object_keys import ObjectKey, key_to_text
from leasehold.core.exactly_once.position_ranges import Range
from leasehold.core.model import ShardId
from leasehold.core.position import Position
from leasehold.core.record import UserRecord

SHARD = ShardId("shardId-000000000000")
MINUTE = 28_333_440  # a midnight in 2023
PER_MINUTE = 4
COLUMNS = tuple(name for name in ARCHIVE_COLUMNS if name != SLICE)
DIGITS = 56


def make_archive(folder: Path, *, objects: int, records: int, size: int) -> None:
    """Write the objects without the syncs of the archive, which take longer than everything else."""
    for index in range(objects):
        minute = MINUTE + index // PER_MINUTE
        numbers = [str(10 ** (DIGITS - 1) + index * records + n) for n in range(records)]
        rows = [UserRecord(os.urandom(size), f"key-{n}", n, minute * 60_000) for n in numbers]
        batches = record_batches(rows, stream="orders", shard=SHARD, columns=COLUMNS, session=0)
        table = pa.Table.from_batches(batches, schema=arrow_schema(COLUMNS))
        key = ObjectKey(minute, SHARD, Range(Position(numbers[0]), Position(numbers[-1])), "parquet")
        path = folder / key_to_text(key)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(encode(table, "parquet", "zstd"))
        os.utime(path, (minute * 60, minute * 60))  # compaction leaves new objects alone


def run_compaction(folder: str, target_bytes: int, results: Connection) -> None:
    """Compact, without deletions and then with them. Runs in a process of its own."""
    for _ in ("merge", "delete"):
        settings = CompactionSettings(target_bytes=target_bytes)
        store, clock = FolderObjects(Path(folder)), SystemClock()
        compactor = Compactor(store, settings, clock=clock, rng=random.Random())
        before_mib, started_s = _peak_mib(), time.monotonic()
        report = asyncio.run(compact(compactor, CompactionLock(store, "", clock, owner=str(os.getpid()))))
        results.send(
            {
                "merged": report.merged,
                "created": report.created,
                "deleted": report.deleted,
                "megabytes": round(report.bytes_read / 1e6, 1),
                "seconds": round(time.monotonic() - started_s, 1),
                "peak_mib_before": before_mib,
                "peak_mib": _peak_mib(),
            }
        )
        for path in Path(folder).rglob("*.since-*"):
            os.utime(path, (MINUTE * 60, MINUTE * 60))  # the small objects need not stay any longer


def _peak_mib() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--objects", type=int, default=10_000)
    parser.add_argument("--records", type=int, default=50, help="of an object")
    parser.add_argument("--bytes", type=int, default=1_000, help="of a record")
    parser.add_argument("--target-mib", type=int, default=128)
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        make_archive(Path(folder), objects=arguments.objects, records=arguments.records, size=arguments.bytes)
        ours, theirs = multiprocessing.Pipe()
        process = multiprocessing.get_context("spawn").Process(
            target=run_compaction, args=(folder, arguments.target_mib * 1024**2, theirs)
        )
        process.start()
        merge: dict[str, Any] = ours.recv()
        deletion: dict[str, Any] = ours.recv()
        process.join()
    if arguments.json:
        print(json.dumps({"merge": merge, "deletion": deletion}))
        return
    rate = merge["megabytes"] / max(merge["seconds"], 0.1)
    print(
        f"merged {merge['merged']} objects into {merge['created']}: {merge['megabytes']} MB in {merge['seconds']} s, "
        f"{rate:.1f} MB/s; peak memory {merge['peak_mib']} MiB, {merge['peak_mib_before']} MiB before"
    )
    print(
        f"compared and deleted {deletion['deleted']} objects in {deletion['seconds']} s; peak memory "
        f"{deletion['peak_mib']} MiB"
    )


if __name__ == "__main__":
    main()
