"""A process that writes an archive in a folder is killed again and again. Readers read every record once."""

import asyncio
import random
import subprocess
import sys
import time
from pathlib import Path

import pyarrow.dataset as ds
from click.testing import CliRunner

from leasehold.archive import Archive, ArchiveSettings
from leasehold.archive.rows import PinnedRange
from leasehold.cli.command import leasehold
from leasehold.core.model import ShardId
from leasehold.core.record import UserRecord
from leasehold.worker.archive_handler import to_archive_table

ROOT = Path(__file__).parents[2]
SHARD = ShardId("shardId-000000000000")
KILLS = 8
RANGES_BEFORE_KILL = 5
RANGE_ROWS = 100
RECORD_BYTES = 100_000


async def write_ranges(folder: str, first_range: int, ranges: int | None) -> None:
    """Write ranges from a number on, and print each number when its range is archived. None: without end."""
    archive, number = Archive.open(ArchiveSettings(url=folder, compression="none")), first_range
    data = bytes(RECORD_BYTES)
    while ranges is None or number < first_range + ranges:
        numbers = range(number * RANGE_ROWS, (number + 1) * RANGE_ROWS)
        rows = tuple(UserRecord(data, "key", str(each), number * 60_000) for each in numbers)
        await archive.write([PinnedRange(SHARD, "one", to_archive_table(rows, "orders", SHARD))])
        print(number, flush=True)
        number += 1


def write_until_killed(folder: Path, first_range: int) -> int:
    """Kill a writer with SIGKILL in the middle of its work. Returns the number of the first unconfirmed range."""
    command = [sys.executable, "-m", __spec__.name, str(folder), str(first_range)]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) as writer:
        assert writer.stdout is not None
        try:
            for _ in range(RANGES_BEFORE_KILL):
                assert writer.stdout.readline()
            time.sleep(random.uniform(0, 0.02))  # any moment of a put
        finally:
            writer.kill()
        confirmed = writer.stdout.read().split()
    return first_range + RANGES_BEFORE_KILL + len(confirmed)


def test_readers_read_every_record_once_after_kills(tmp_path: Path) -> None:
    """Whatever a killed writer left: pyarrow reads the folder, `archive verify` finds no problem, nothing is lost."""
    number = 1
    for _ in range(KILLS):
        number = write_until_killed(tmp_path, number)
    asyncio.run(write_ranges(str(tmp_path), number, 1))
    rows = ds.dataset(tmp_path, format="parquet").to_table(columns=["sequenceNumber"])
    found = sorted(int(each) for each in rows["sequenceNumber"].to_pylist())
    assert found == list(range(RANGE_ROWS, (number + 1) * RANGE_ROWS))
    verified = CliRunner().invoke(leasehold, ["archive", "verify", str(tmp_path)])
    assert verified.exit_code == 0, verified.output


if __name__ == "__main__":
    asyncio.run(write_ranges(sys.argv[1], int(sys.argv[2]), None))
