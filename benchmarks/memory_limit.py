"""Shows that the memory of a worker is limited by `buffer_bytes`, however long the backlog is.

    python -m benchmarks memory
    python -m benchmarks.memory_limit [--megabytes 2000] [--buffer-megabytes 32]

A worker with a slow handler reads a backlog on four shards of our Kinesis server to its end, with the native decoder
and without it. Its peak memory (VmHWM) is compared with that of the same worker on a backlog of a few records. Exit
code 1: the difference is more than `FACTOR` times the limit and `EXTRA_MB`.
"""

from __future__ import annotations

import argparse
import importlib.util
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from benchmarks.backlogs import SHARDS, fill
from benchmarks.harness import Plan, Result
from leasehold.local import LocalKinesis

PROGRAM = """
import os, sys, time
from leasehold import Consumer
consumer = Consumer(stream=sys.argv[1], application="memory", region="us-east-1", kinesis_endpoint=sys.argv[2],
                    leases=f"sqlite:///{sys.argv[3]}/leases.sqlite", buffer_bytes=int(sys.argv[4]),
                    bytes_per_second=256_000_000)
counts = os.open(f"{sys.argv[3]}/counts", os.O_WRONLY | os.O_CREAT | os.O_APPEND)

@consumer.batch()
def handle(batch):
    time.sleep(0.05)
    os.write(counts, f"{sum([len(record.data) for record in batch.records])}\\n".encode())

consumer.run()
"""
COMPARISONS = ("memory",)
MEGABYTES, BUFFER_MB = 2_000, 32
RECORD_BYTES = 100_000
FEW_MB = 3
DEADLINE_S = 1_800
# The data are in memory as responses, as decoded columns and as records of batches, and freed memory is used again
# only in part.
FACTOR = 4
# Responses that are received and decoded at the moment, one of up to 10 MB a shard, in two copies.
EXTRA_MB = 2 * 10 * SHARDS


def peak_mb(
    kinesis: LocalKinesis, stream: str, megabytes: int, buffer_bytes: int, *, is_native: bool
) -> float:
    """Read a stream to its end. Returns the highest memory of the worker."""
    environment = os.environ | {"LEASEHOLD_NATIVE": "1" if is_native else "0"}
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-c", PROGRAM, stream, kinesis.endpoint_url, folder, str(buffer_bytes)]
        worker = subprocess.Popen(command, env=environment)
        try:
            until = time.monotonic() + DEADLINE_S
            while (handled := _handled_bytes(Path(folder))) < megabytes * 1_000_000:
                if worker.poll() is not None or time.monotonic() > until:
                    raise RuntimeError(f"{handled} bytes of {megabytes} MB were handled")
                time.sleep(0.2)
            lines = Path(f"/proc/{worker.pid}/status").read_text().splitlines()
            return next(int(line.split()[1]) / 1000 for line in lines if line.startswith("VmHWM"))
        finally:
            worker.kill()
            worker.wait()


def _handled_bytes(folder: Path) -> int:
    counts = folder / "counts"
    return sum(map(int, counts.read_text().split())) if counts.exists() else 0


@dataclass(frozen=True)
class Peak:
    """The highest memory of a worker, with a long backlog and with a few records."""

    kind: str
    base_mb: float
    peak_mb: float


def measure(megabytes: int, buffer_mb: int) -> Iterator[Peak]:
    """Read a backlog with the native decoder, if it is installed, and without it."""
    kinds = {"native decoder": True} if importlib.util.find_spec("leasehold_native") is not None else {}
    with LocalKinesis.in_process() as kinesis:
        # `fill` writes whole requests, so the size is rounded down to one.
        sizes = {"few": FEW_MB, "many": megabytes // FEW_MB * FEW_MB}
        for stream, size in sizes.items():
            kinesis.client().create_stream(StreamName=stream, ShardCount=SHARDS)
            fill(kinesis, stream, RECORD_BYTES, size)
        for kind, is_native in (kinds | {"pure Python": False}).items():
            base, peak = (
                peak_mb(kinesis, stream, size, buffer_mb * 1_000_000, is_native=is_native)
                for stream, size in sizes.items()
            )
            yield Peak(kind, base, peak)


def run(plan: Plan) -> Iterator[Result]:
    """How much the memory grows with the backlog, beside what is allowed; not part of a quick run."""
    if plan.is_quick and not plan.only:
        return
    result = Result(
        COMPARISONS[0],
        f"How much more memory does a worker need for a backlog of {MEGABYTES:,} MB than for a few records?",
        "MB",
        "make bench ARGS=memory",
        f"buffer_bytes, {BUFFER_MB} MB here",
    )
    result.add("allowed", float(FACTOR * BUFFER_MB + EXTRA_MB))
    for each in measure(MEGABYTES, BUFFER_MB):
        result.add(each.kind, each.peak_mb - each.base_mb)
    yield result


def main() -> None:
    """Measure, print and compare."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--megabytes", type=int, default=MEGABYTES, help="the size of the backlog")
    parser.add_argument("--buffer-megabytes", type=int, default=BUFFER_MB, help="buffer_bytes of the worker")
    given = parser.parse_args()
    allowed_mb = FACTOR * given.buffer_megabytes + EXTRA_MB
    is_limited = True
    for each in measure(given.megabytes, given.buffer_megabytes):
        is_limited &= each.peak_mb - each.base_mb <= allowed_mb
        print(
            f"{each.kind}: peak {each.peak_mb:.0f} MB for a backlog of {given.megabytes} MB, {each.base_mb:.0f} MB for "
            f"{FEW_MB} MB; allowed are {allowed_mb} MB more; load {os.getloadavg()[0]:.0f}",
            flush=True,
        )
    sys.exit(0 if is_limited else 1)


if __name__ == "__main__":
    main()
