"""`leasehold demo`: runs a whole pipeline on this machine, injects faults, and counts every record."""

from __future__ import annotations

import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import click

from leasehold.cli.extras import needs_extra
from leasehold.cli.output import print_line, print_table
from leasehold.cli.pipeline_display import Ticker
from leasehold.core.model import HASH_KEY_MAX
from leasehold.core.record import PutEntry
from leasehold.core.records.aggregation import Aggregator
from leasehold.errors import QueryFailedError
from leasehold.spark.pipeline.processes import kill_with_descendants

STREAM: Final = "orders"
SHARDS: Final = 4
RECORDS_PER_PUT: Final = 250
AGGREGATED_EVERY: Final = 3  # every third put contains KPL aggregates
AGGREGATES_PER_PUT: Final = 10  # spread over the shards
PUT_EVERY_S: Final = 0.5
TIMEOUT_S: Final = 300.0

PIPELINE: Final = """\
# Kinesis to an archive of Parquet files, exactly once: leasehold pipeline pipeline.toml
checkpoint = "{folder}/checkpoint"

[source]
streamName = "{stream}"
applicationName = "demo"
region = "us-east-1"
endpointUrl = "{endpoint}"
leases = "sqlite:///{folder}/leases.sqlite"
startingPosition = "trim_horizon"

[sink]
kind = "archive"
path = "{folder}/archive"

[trigger]
processing_time = "1s"
"""


@click.command()
@click.option(
    "--records",
    type=click.IntRange(min=1_000),
    default=20_000,
    show_default=True,
    help="Number of records to produce.",
)
@click.option(
    "--folder",
    type=click.Path(file_okay=False, path_type=Path),
    help="Keep all files in this new folder. [default: a temporary folder, which is removed]",
)
def demo(*, records: int, folder: Path | None) -> None:
    """Run a whole pipeline on this machine, and inject faults.

    The demo starts a local Kinesis server, Spark, leases in a file and an archive in a folder. It produces records,
    some of them aggregated, splits and merges shards, and kills the pipeline with kill -9. At the end it verifies that
    the archive contains every record once.
    """
    with Ticker(print_line) as ticker:
        ticker.wait_for("loading the libraries of Spark and of the local server")
        _require_libraries()
    # As Ctrl-C does, so that the pipeline is ended and the temporary folder is removed.
    signal.signal(signal.SIGTERM, lambda number, _frame: sys.exit(128 + number))
    with _open_folder(folder) as work_folder:
        totals = _Demo(work_folder, records).run()
    print_line(totals.line())
    if not totals.is_correct:
        raise click.exceptions.Exit(1)


def _require_libraries() -> None:
    with needs_extra("spark,java,local"):
        import h2  # noqa: F401, PLC0415 - extras
        import pyarrow  # noqa: F401, ICN001, PLC0415
        import pyspark  # noqa: F401, PLC0415
        import uvicorn  # noqa: F401, PLC0415


@contextmanager
def _open_folder(named: Path | None) -> Iterator[Path]:
    if named is not None:
        if named.exists() and any(named.iterdir()):
            raise click.UsageError(f"--folder {named} is not empty: give a new or empty folder.")
        named.mkdir(parents=True, exist_ok=True)
        yield named.resolve()
        return
    with tempfile.TemporaryDirectory(prefix="leasehold-demo-") as name:
        yield Path(name).resolve()


@dataclass(frozen=True, slots=True)
class Totals:
    """How many records were produced, and how many of them the archive contains."""

    produced: int
    archived: int
    lost: int
    duplicated: int
    is_verified: bool  # by `leasehold archive verify`

    @property
    def is_correct(self) -> bool:
        """True if the archive contains every record once."""
        return self.is_verified and self.archived == self.produced and not self.lost and not self.duplicated

    def line(self) -> str:
        """Return all numbers in one line."""
        return (
            f"produced={self.produced} archived={self.archived} lost={self.lost} duplicated={self.duplicated}"
        )


class _Demo:
    """Runs the steps of the demo, in the order of `run`."""

    def __init__(self, folder: Path, records: int) -> None:
        self._folder = folder
        self._records = records
        self._began = time.monotonic()
        self._pipeline: subprocess.Popen[str] | None = None

    def run(self) -> Totals:
        """Run all steps and return the totals."""
        from leasehold.local import LocalKinesis  # noqa: PLC0415 - an extra

        with Ticker(self._print) as ticker, ExitStack() as stack:
            ticker.wait_for("starting a Kinesis server")
            server = stack.enter_context(LocalKinesis.in_process("--stream", f"{STREAM}:{SHARDS}"))
            ticker.rest()
            self._print(f"Kinesis on {server.endpoint_url}: stream {STREAM!r}, {SHARDS} shards")
            file = self._folder / "pipeline.toml"
            file.write_text(
                PIPELINE.format(folder=self._folder, stream=STREAM, endpoint=server.endpoint_url), "utf-8"
            )
            producer = _Producer(server.client(), self._records)
            try:
                self._run_steps(file, producer)
            finally:
                producer.stop()
                self._kill()
            return self._count_records(server.endpoint_url)

    def _run_steps(self, file: Path, producer: _Producer) -> None:
        third = self._records // 3
        self._start(file)
        producer.allow_up_to(third)
        self._print(f"{producer.put:,} records produced so far, a third of the puts with KPL aggregates")
        self._wait_for("the first rows", lambda: self._count_archived() > 0)
        self._print(f"the archive contains its first rows: {self._first_row()}")

        producer.allow_up_to(2 * third)
        _split_and_merge(producer.kinesis)
        self._print("one shard was split and two were merged, while records are produced")
        self._wait_for("records of the new shards", self._has_new_shards)

        self._kill()
        self._print(f"kill -9 of driver, JVM and workers, with {self._count_archived():,} records archived")
        producer.allow_up_to(self._records)
        # A user who runs the demo at a terminal is likely to run it again: prepare faster starts.
        self._start(file, *(["--record-classes"] if sys.stdout.isatty() else []))
        self._wait_for("all records", lambda: producer.put == self._count_archived() == self._records)

        self._print(f"all {self._records:,} records are archived; sending SIGTERM to the pipeline")
        self._stop()

    def _start(self, file: Path, *options: str) -> None:
        self._print("the pipeline starts: Kinesis, Spark on all cores, archive")
        command = [sys.executable, "-m", "leasehold.cli", "pipeline", str(file)]
        log = str(self._folder / "spark.log")
        self._pipeline = subprocess.Popen(  # noqa: S603 - our own program
            [*command, "--log", log, *options],
            stdout=subprocess.PIPE,
            text=True,
            start_new_session=True,  # so that Ctrl-C reaches only the demo, which then ends it
        )
        threading.Thread(target=self._relay, args=(self._pipeline,), daemon=True).start()

    def _relay(self, process: subprocess.Popen[str]) -> None:
        assert process.stdout is not None
        with process.stdout as lines:
            for line in lines:
                self._print(f"  pipeline: {line.rstrip()}")

    def _stop(self) -> None:
        assert self._pipeline is not None
        self._pipeline.terminate()
        code = self._pipeline.wait(TIMEOUT_S)
        if code != 0:
            raise QueryFailedError(
                f"the pipeline was asked to stop and ended with exit code {code} instead of 0"
            )

    def _kill(self) -> None:
        """Kill the pipeline's processes, if there are any."""
        if self._pipeline is not None and self._pipeline.poll() is None:
            kill_with_descendants(self._pipeline.pid)
            self._pipeline.wait()

    def _wait_for(self, what: str, condition: Callable[[], bool]) -> None:
        assert self._pipeline is not None
        until = time.monotonic() + TIMEOUT_S
        while not condition():
            code = self._pipeline.poll()
            if code is not None:
                raise QueryFailedError(f"the pipeline ended unexpectedly with exit code {code}")
            if time.monotonic() > until:
                raise QueryFailedError(
                    f"waited {TIMEOUT_S:.0f} seconds for {what}: the machine may be too busy; run the demo again"
                )
            time.sleep(PUT_EVERY_S)

    def _count_records(self, endpoint: str) -> Totals:
        is_verified = self._verify(endpoint)
        found = Counter(_read_orders(self._objects()))
        lost = self._records - sum(number in found for number in range(self._records))
        print_table(
            ("", "records"),
            [
                ("produced", f"{self._records:,}"),
                ("archived", f"{found.total():,}"),
                ("lost", f"{lost:,}"),
                ("duplicated", f"{found.total() - len(found):,}"),
            ],
        )
        print_line("")
        return Totals(self._records, found.total(), lost, found.total() - len(found), is_verified)

    def _verify(self, endpoint: str) -> bool:
        """Compare the archive with the stream by running `leasehold archive verify`."""
        arguments = ["archive", "verify", str(self._folder / "archive"), "--stream", STREAM]
        arguments += ["--sqlite", str(self._folder / "leases.sqlite"), "--kinesis-endpoint-url", endpoint]
        print_line("")
        print_line(f"$ leasehold {' '.join(arguments)}")
        command = [sys.executable, "-m", "leasehold.cli", *arguments, "--region", "us-east-1"]
        code = subprocess.run(command, check=False).returncode  # noqa: S603 - our own program
        print_line("")
        return code == 0

    def _objects(self) -> Sequence[Path]:
        return sorted((self._folder / "archive").rglob("*.parquet"))

    def _count_archived(self) -> int:
        """Return the number of rows in the archive, from the metadata of its objects."""
        from pyarrow import parquet  # noqa: PLC0415 - an extra

        return sum(int(parquet.read_metadata(each).num_rows) for each in self._objects())

    def _has_new_shards(self) -> bool:
        old = {_shard_id(number) for number in range(SHARDS)}
        return any(each.parent.name not in old for each in self._objects())

    def _first_row(self) -> str:
        from pyarrow import parquet  # noqa: PLC0415 - an extra

        first = parquet.read_table(self._objects()[0]).slice(0, 1).to_pylist()[0]
        return f"order {_order_number(first['data'])} from {first['shardId']}"

    def _print(self, text: str) -> None:
        print_line(f"{time.monotonic() - self._began:6.1f} s  {text}")


class _Producer:
    """Puts numbered orders into the stream at a steady rate, in its own thread."""

    def __init__(self, kinesis: Any, records: int) -> None:
        self.kinesis = kinesis
        self.put = 0
        self._allowed = 0
        self._records = records
        self._is_stopped = threading.Event()
        self._thread = threading.Thread(target=self._produce, daemon=True)
        self._thread.start()

    def allow_up_to(self, number: int) -> None:
        """Allow the producer to put records up to this number, and return after the first put."""
        before, self._allowed = self.put, number
        while self.put == before and self._thread.is_alive():
            time.sleep(PUT_EVERY_S / 10)

    def stop(self) -> None:
        """Stop producing."""
        self._is_stopped.set()
        self._thread.join()

    def _produce(self) -> None:
        puts = 0
        while self.put < self._records and not self._is_stopped.wait(PUT_EVERY_S):
            until = min(self._allowed, self.put + RECORDS_PER_PUT)
            if until > self.put:
                self._put(range(self.put, until), is_aggregated=puts % AGGREGATED_EVERY == 0)
                self.put = until
                puts += 1

    def _put(self, numbers: range, *, is_aggregated: bool) -> None:
        entries = (
            list(_aggregate_orders(numbers)) if is_aggregated else [_order(number) for number in numbers]
        )
        response = self.kinesis.put_records(
            StreamName=STREAM, Records=[_to_request(each) for each in entries]
        )
        if response["FailedRecordCount"]:
            raise QueryFailedError(f"{response['FailedRecordCount']} records could not be put")


def _order(number: int, hash_key: int | None = None) -> PutEntry:
    data = f'{{"order": {number:08}, "customer": "c-{number % 977}", "note": "{"." * (number % 200)}"}}'
    return PutEntry(data.encode(), f"customer-{number % 977}", hash_key)


def _order_number(data: bytes) -> int:
    return int(data[10:18])


def _read_orders(objects: Sequence[Path]) -> Iterator[int]:
    from pyarrow import parquet  # noqa: PLC0415 - an extra

    for each in objects:
        yield from map(_order_number, parquet.read_table(each, columns=["data"])["data"].to_pylist())


def _aggregate_orders(numbers: range) -> Iterator[PutEntry]:
    """Yield aggregates of these orders. The orders of one aggregate share a hash key, so they always share a shard."""
    for index in range(AGGREGATES_PER_PUT):
        aggregator = Aggregator()
        for number in numbers[index::AGGREGATES_PER_PUT]:
            aggregator.add(_order(number, HASH_KEY_MAX // AGGREGATES_PER_PUT * index))
        if len(aggregator):
            yield aggregator.flush()


def _to_request(entry: PutEntry) -> dict[str, Any]:
    request: dict[str, Any] = {"Data": entry.data, "PartitionKey": entry.partition_key}
    if entry.explicit_hash_key is not None:
        request["ExplicitHashKey"] = str(entry.explicit_hash_key)
    return request


def _split_and_merge(kinesis: Any) -> None:
    """Split the first shard, and merge the last two."""
    width = (HASH_KEY_MAX + 1) // SHARDS
    kinesis.split_shard(StreamName=STREAM, ShardToSplit=_shard_id(0), NewStartingHashKey=str(width // 2))
    kinesis.merge_shards(
        StreamName=STREAM, ShardToMerge=_shard_id(SHARDS - 2), AdjacentShardToMerge=_shard_id(SHARDS - 1)
    )


def _shard_id(number: int) -> str:
    return f"shardId-{number:012}"
