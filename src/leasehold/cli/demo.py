"""`leasehold demo`: the whole pipeline on this machine, hurt on purpose, and every record accounted for."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import click

from leasehold.cli.output import print_line, print_table
from leasehold.core.model import HASH_KEY_MAX
from leasehold.core.record import PutEntry
from leasehold.core.records.aggregation import Aggregator
from leasehold.errors import ConfigError, QueryFailedError

STREAM: Final = "orders"
SHARDS: Final = 4
PORTION: Final = 250  # records that are put together, twice a second
AGGREGATED_EVERY: Final = 3  # every third portion goes as KPL aggregates
AGGREGATES: Final = 10  # of such a portion, spread over the shards
PACE_S: Final = 0.5
PATIENCE_S: Final = 300.0

PIPELINE: Final = """\
# Kinesis to an archive of Parquet files, exactly once: leasehold pipeline pipeline.toml
checkpoint = "{folder}/checkpoint"

[source]
streamName = "{stream}"
applicationName = "demo"
region = "us-east-1"
endpointUrl = "{endpoint}"
leases = "sqlite:{folder}/leases.sqlite"
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
    help="How many to produce.",
)
@click.option(
    "--folder",
    type=click.Path(file_okay=False, path_type=Path),
    help="Keep everything in this new folder. Without it: in a temporary one, which is removed.",
)
def demo(*, records: int, folder: Path | None) -> None:
    """Run the whole pipeline on this machine, and hurt it.

    A local Kinesis server, leases in a file, Spark, an archive in a folder: records flow, some of them aggregated,
    shards are split and merged, and the pipeline is killed with kill -9. In the end every record is in the archive,
    once.
    """
    _need_libraries()
    with _folder(folder) as place:
        account = _Demo(place, records).run()
    print_line(account.line())
    if not account.is_right:
        raise click.exceptions.Exit(1)


def _need_libraries() -> None:
    try:
        import h2  # noqa: F401, PLC0415 - extras
        import pyarrow  # noqa: F401, ICN001, PLC0415
        import pyspark  # noqa: F401, PLC0415
        import uvicorn  # noqa: F401, PLC0415
    except ModuleNotFoundError as error:
        raise ConfigError(
            f"{error.name} is not installed: pip install 'leasehold[spark,java,local]'"
        ) from error


@contextmanager
def _folder(named: Path | None) -> Iterator[Path]:
    if named is not None:
        if named.exists() and any(named.iterdir()):
            raise ConfigError(f"folder {named} is not empty: name a new one")
        named.mkdir(parents=True, exist_ok=True)
        yield named.resolve()
        return
    with tempfile.TemporaryDirectory(prefix="leasehold-demo-") as name:
        yield Path(name).resolve()


@dataclass(frozen=True, slots=True)
class Account:
    """What was put into the stream, and what the archive holds of it."""

    produced: int
    archived: int
    lost: int
    duplicated: int
    is_verified: bool  # by the archive's own check

    @property
    def is_right(self) -> bool:
        """Whether every record is there once."""
        return self.is_verified and self.archived == self.produced and not self.lost and not self.duplicated

    def line(self) -> str:
        """All of it in one line."""
        return (
            f"produced={self.produced} archived={self.archived} lost={self.lost} duplicated={self.duplicated}"
        )


class _Demo:
    """The story, from top to bottom in `run`."""

    def __init__(self, folder: Path, records: int) -> None:
        self._folder = folder
        self._records = records
        self._began = time.monotonic()
        self._pipeline: subprocess.Popen[str] | None = None

    def run(self) -> Account:
        """Tell the story; the account of it at its end."""
        from leasehold.local import LocalKinesis  # noqa: PLC0415 - an extra

        with LocalKinesis.in_process("--stream", f"{STREAM}:{SHARDS}") as server:
            self._tell(f"Kinesis on {server.endpoint_url}: stream {STREAM!r}, {SHARDS} shards")
            file = self._folder / "pipeline.toml"
            file.write_text(
                PIPELINE.format(folder=self._folder, stream=STREAM, endpoint=server.endpoint_url), "utf-8"
            )
            producer = _Producer(server.client(), self._records)
            try:
                self._live_through(file, producer)
            finally:
                producer.stop()
                self._kill()
            return self._account(server.endpoint_url)

    def _live_through(self, file: Path, producer: _Producer) -> None:
        third = self._records // 3
        self._start(file)
        producer.go_on_to(third)
        self._tell(f"{producer.put:,} records are on their way, a third of them in KPL aggregates")
        self._wait("the first rows", lambda: self._archived() > 0)
        self._tell(f"the first rows are in the archive: {self._first_row()}")

        producer.go_on_to(2 * third)
        _split_and_merge(producer.kinesis)
        self._tell("one shard was split and two were merged, while records flow")
        self._wait("records of the new shards", self._has_new_shards)

        self._kill()
        self._tell(f"kill -9 for driver, JVM and workers, with {self._archived():,} records archived")
        producer.go_on_to(self._records)
        self._start(
            file, *(["--record-classes"] if sys.stdout.isatty() else [])
        )  # who tries it once tries it twice
        self._wait("all records", lambda: producer.put == self._archived() == self._records)

        self._tell(f"all {self._records:,} records are archived; SIGTERM for the pipeline")
        self._stop()

    def _start(self, file: Path, *options: str) -> None:
        self._tell("the pipeline starts: Kinesis, Spark on all cores, archive")
        command = [sys.executable, "-m", "leasehold.cli", "pipeline", str(file)]
        log = str(self._folder / "spark.log")
        self._pipeline = subprocess.Popen(  # noqa: S603 - our own program
            [*command, "--log", log, *options],
            stdout=subprocess.PIPE,
            text=True,
            start_new_session=True,  # so that one signal reaches all of it
        )
        threading.Thread(target=self._relay, args=(self._pipeline,), daemon=True).start()

    def _relay(self, process: subprocess.Popen[str]) -> None:
        assert process.stdout is not None
        with process.stdout as lines:
            for line in lines:
                self._tell(f"  pipeline: {line.rstrip()}")

    def _stop(self) -> None:
        assert self._pipeline is not None
        self._pipeline.terminate()
        code = self._pipeline.wait(PATIENCE_S)
        if code != 0:
            raise QueryFailedError(
                f"the pipeline ended with exit code {code}, not 0, when it was asked to stop"
            )

    def _kill(self) -> None:
        """End the pipeline's processes at once, if there are any."""
        if self._pipeline is not None and self._pipeline.poll() is None:
            os.killpg(self._pipeline.pid, signal.SIGKILL)
            self._pipeline.wait()

    def _wait(self, what: str, is_so: Callable[[], bool]) -> None:
        assert self._pipeline is not None
        until = time.monotonic() + PATIENCE_S
        while not is_so():
            code = self._pipeline.poll()
            if code is not None:
                raise QueryFailedError(f"the pipeline ended by itself, with exit code {code}")
            if time.monotonic() > until:
                raise QueryFailedError(
                    f"waited {PATIENCE_S:.0f} seconds for {what}: is the machine very busy?"
                )
            time.sleep(PACE_S)

    def _account(self, endpoint: str) -> Account:
        is_verified = self._verify(endpoint)
        found = Counter(_orders(self._objects()))
        lost = self._records - sum(number in found for number in range(self._records))
        print_table(
            ("what", "records"),
            [
                ("produced", f"{self._records:,}"),
                ("archived", f"{found.total():,}"),
                ("lost", f"{lost:,}"),
                ("duplicated", f"{found.total() - len(found):,}"),
            ],
        )
        print_line("")
        return Account(self._records, found.total(), lost, found.total() - len(found), is_verified)

    def _verify(self, endpoint: str) -> bool:
        """Let the archive be compared with the stream, by the command that anyone can run."""
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

    def _archived(self) -> int:
        """Rows in the archive, as its objects claim."""
        from pyarrow import parquet  # noqa: PLC0415 - an extra

        return sum(int(parquet.read_metadata(each).num_rows) for each in self._objects())

    def _has_new_shards(self) -> bool:
        old = {_shard(number) for number in range(SHARDS)}
        return any(each.parent.name not in old for each in self._objects())

    def _first_row(self) -> str:
        from pyarrow import parquet  # noqa: PLC0415 - an extra

        first = parquet.read_table(self._objects()[0]).slice(0, 1).to_pylist()[0]
        return f"order {_order_number(first['data'])} from {first['shardId']}"

    def _tell(self, text: str) -> None:
        print_line(f"{time.monotonic() - self._began:6.1f} s  {text}")


class _Producer:
    """Puts numbered orders into the stream, at a steady pace, in a thread of its own."""

    def __init__(self, kinesis: Any, records: int) -> None:
        self.kinesis = kinesis
        self.put = 0
        self._allowed = 0
        self._records = records
        self._is_stopped = threading.Event()
        self._thread = threading.Thread(target=self._produce, daemon=True)
        self._thread.start()

    def go_on_to(self, number: int) -> None:
        """Let so many be put, and return when the first of them are."""
        before, self._allowed = self.put, number
        while self.put == before and self._thread.is_alive():
            time.sleep(PACE_S / 10)

    def stop(self) -> None:
        """Put no more."""
        self._is_stopped.set()
        self._thread.join()

    def _produce(self) -> None:
        portion = 0
        while self.put < self._records and not self._is_stopped.wait(PACE_S):
            until = min(self._allowed, self.put + PORTION)
            if until > self.put:
                self._put(range(self.put, until), is_aggregated=portion % AGGREGATED_EVERY == 0)
                self.put = until
                portion += 1

    def _put(self, numbers: range, *, is_aggregated: bool) -> None:
        entries = list(_aggregated(numbers)) if is_aggregated else [_order(number) for number in numbers]
        answer = self.kinesis.put_records(StreamName=STREAM, Records=[_to_request(each) for each in entries])
        if answer["FailedRecordCount"]:
            raise QueryFailedError(f"{answer['FailedRecordCount']} records could not be put")


def _order(number: int, hash_key: int | None = None) -> PutEntry:
    data = f'{{"order": {number:08}, "customer": "c-{number % 977}", "note": "{"." * (number % 200)}"}}'
    return PutEntry(data.encode(), f"customer-{number % 977}", hash_key)


def _order_number(data: bytes) -> int:
    return int(data[10:18])


def _orders(objects: Sequence[Path]) -> Iterator[int]:
    from pyarrow import parquet  # noqa: PLC0415 - an extra

    for each in objects:
        yield from map(_order_number, parquet.read_table(each, columns=["data"])["data"].to_pylist())


def _aggregated(numbers: range) -> Iterator[PutEntry]:
    """The records in some aggregates. Those of one share a hash key, so that they share a shard at any time."""
    for share in range(AGGREGATES):
        aggregator = Aggregator()
        for number in numbers[share::AGGREGATES]:
            aggregator.add(_order(number, HASH_KEY_MAX // AGGREGATES * share))
        if len(aggregator):
            yield aggregator.flush()


def _to_request(entry: PutEntry) -> dict[str, Any]:
    request: dict[str, Any] = {"Data": entry.data, "PartitionKey": entry.partition_key}
    if entry.explicit_hash_key is not None:
        request["ExplicitHashKey"] = str(entry.explicit_hash_key)
    return request


def _split_and_merge(kinesis: Any) -> None:
    """The first shard becomes two, the last two become one."""
    width = (HASH_KEY_MAX + 1) // SHARDS
    kinesis.split_shard(StreamName=STREAM, ShardToSplit=_shard(0), NewStartingHashKey=str(width // 2))
    kinesis.merge_shards(
        StreamName=STREAM, ShardToMerge=_shard(SHARDS - 2), AdjacentShardToMerge=_shard(SHARDS - 1)
    )


def _shard(number: int) -> str:
    return f"shardId-{number:012}"
