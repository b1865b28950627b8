"""A stream that is resharded, and a driver that is killed at random moments while it writes the stream to a table."""

import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from leasehold.local import LocalKinesis
from tests.fleet.record_producer import RecordProducer
from tests.fleet.worker_processes import wait_until
from tests.integration.cli_process import environment
from tests.spark.driver_process import Driver

STREAM = "orders"
RECORDS_PER_RUN = 120
KILLS = 4
DEADLINE_S = 900  # of one step, on a busy machine
KILL_WITHIN_S = 6.0  # after the plan of a batch: a batch takes about as long on a busy machine


@dataclass
class TableWorld:
    """One query, which is started again and again with the same checkpoint location."""

    folder: Path
    kinesis: LocalKinesis
    command: Sequence[str]
    checkpoint: str  # below the folder
    read: Callable[[], Sequence[int]]  # the numbers of the records in the table, read without Spark
    settings: Mapping[str, str] = field(default_factory=dict)  # environment variables
    rng: random.Random = field(default_factory=lambda: random.Random(os.environ.get("TABLES_SEED")))
    interrupted: int = 0  # kills in the middle of a batch
    undone: int = 0  # kills after the commit of the table, and before Spark's own

    def __post_init__(self) -> None:
        client = self.kinesis.client()
        client.create_stream(StreamName=STREAM, ShardCount=2)
        client.get_waiter("stream_exists").wait(StreamName=STREAM, WaiterConfig={"Delay": 1})
        self.producer = RecordProducer(client, STREAM, self.rng, shards_min=2, shards_max=4)

    def run_under_kills(self) -> None:
        """Kill several runs, and let the last one read everything."""
        for _ in range(KILLS):
            self._put_and_reshard()
            self._kill_a_run()
        while not self.undone:
            self._put_and_reshard()
            self._kill_between_the_commits()
        self._put_and_reshard()
        with self._run() as driver:
            wait_until(lambda: driver.check_runs() and self._has_all(), "all is committed", DEADLINE_S)
        print(f"{self.interrupted} of {KILLS} kills in the middle of a batch, {self.producer.splits} splits")
        assert self.interrupted, "no run was killed in the middle of a batch"
        self.check(self.read())

    def check(self, numbers: Sequence[int]) -> None:
        """Assert that these are the numbers of all records, each once."""
        missing = set(range(self.producer.produced)) - set(numbers)
        doubled = [number for number, count in Counter(numbers).items() if count > 1]
        assert not missing, (
            f"{len(missing)} of {self.producer.produced} records are missing, e.g. {min(missing)}"
        )
        assert not doubled, (
            f"{len(doubled)} of {self.producer.produced} records are doubled, e.g. {min(doubled)}"
        )
        assert len(numbers) == self.producer.produced

    def _put_and_reshard(self) -> None:
        self.producer.put(plain=RECORDS_PER_RUN // 2, aggregated=RECORDS_PER_RUN // 2)
        self.producer.reshard()
        self.producer.put(plain=RECORDS_PER_RUN // 2, aggregated=RECORDS_PER_RUN // 2)

    def _kill_a_run(self) -> None:
        """Kill a run at a random moment after it has planned a batch."""
        before = self._newest("offsets")
        with self._run() as driver:
            wait_until(
                lambda: driver.check_runs() and self._newest("offsets") > before,
                "a batch is planned",
                DEADLINE_S,
            )
            time.sleep(self.rng.uniform(0, KILL_WITHIN_S))
        self.interrupted += self._newest("offsets") > self._newest("commits")

    def _kill_between_the_commits(self) -> None:
        """Kill a run that has committed a batch in the table, and not in its own log.

        This moment is short. So the run is killed directly after its own commit, which is then deleted. That is the
        same state: the next batch is not planned yet.
        """
        before, rows_before = self._newest("commits"), len(self.read())
        with self._run() as driver:
            deadline = time.monotonic() + DEADLINE_S
            while self._newest("commits") == before:
                assert driver.check_runs()
                assert time.monotonic() < deadline, "no batch is committed"
                time.sleep(0.002)
        newest = self._newest("commits")
        # A batch without rows would show nothing, and the next batch may be planned already.
        if newest == self._newest("offsets") and len(self.read()) > rows_before:
            for name in (str(newest), f".{newest}.crc"):
                (self.folder / self.checkpoint / "commits" / name).unlink(missing_ok=True)
            self.undone += 1

    def _has_all(self) -> bool:
        is_committed = self._newest("offsets") == self._newest("commits")
        return is_committed and set(self.read()) >= set(range(self.producer.produced))

    @contextmanager
    def _run(self) -> Iterator[Driver]:
        """Start the driver, and kill all of its processes at the end."""
        log = self.folder / "driver.log"
        with log.open("ab") as output:
            process = subprocess.Popen(
                [sys.executable, *self.command],
                cwd=self.folder,
                env={**environment(self.folder), **self.settings},
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        driver = Driver(process, log)
        try:
            yield driver
        finally:
            driver.signal_all(signal.SIGKILL)
            driver.kill()

    def _newest(self, part: str) -> int:
        """The number of the newest batch in a part of the checkpoint location. -1: none."""
        files = (self.folder / self.checkpoint / part).glob("[0-9]*")
        return max((int(each.name) for each in files if each.name.isdecimal()), default=-1)
