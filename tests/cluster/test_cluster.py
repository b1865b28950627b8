"""The pipeline on a real Spark standalone cluster. Not part of `make test`: `make cluster-test` names this folder."""

import asyncio
import json
import random
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from leasehold.config.connection import ConnectionSettings
from leasehold.local import LocalKinesis
from leasehold.spark.pipeline.start_up import FAST_START_JVM_OPTIONS
from leasehold.wiring import open_lease_table
from tests.cluster.standalone import Cluster, cluster, spark_environment, wait_until
from tests.fleet.record_producer import RecordProducer
from tests.servers import Server

ROOT = Path(__file__).parents[2]
DEADLINE_S = 400

REGION = "us-east-1"
QUICK = " ".join(FAST_START_JVM_OPTIONS)

pytestmark = pytest.mark.timeout(900)  # the test starts four JVMs and a driver


@pytest.fixture
def two_workers(tmp_path: Path) -> Iterator[Cluster]:
    """A master and two workers of one core each."""
    with cluster(tmp_path / "cluster", workers=2) as running:
        yield running


class Query:
    """A driver program, its options and its results."""

    def __init__(self, folder: Path, master: str, source: dict[str, str]) -> None:
        self.folder = folder
        self.gate, self.stop, self.archive = folder / "gate", folder / "stop", folder / "archive"
        self.log = folder / "driver.log"
        self._options = {
            "source": {"columns": "archive", "startingPosition": "trim_horizon", "region": REGION} | source,
            "spark": {
                "spark.master": master,
                "spark.driver.host": "127.0.0.1",
                "spark.driver.bindAddress": "127.0.0.1",
                "spark.ui.enabled": "false",
                "spark.ui.showConsoleProgress": "false",
                "spark.executor.memory": "512m",
                "spark.executor.extraJavaOptions": QUICK,
                "spark.driver.extraJavaOptions": QUICK,
                "spark.executorEnv.PYTHONPATH": str(ROOT),
            },
            "checkpoint": str(folder / "checkpoint"),
            "archive": str(self.archive),
            "gate": str(self.gate),
            "stop": str(self.stop),
        }

    @contextmanager
    def running(self) -> Iterator["subprocess.Popen[bytes]"]:
        """Run the program, and kill it at the end if it still runs."""
        options = self.folder / "options.json"
        options.write_text(json.dumps(self._options))
        environment = spark_environment() | {"PYTHONPATH": str(ROOT)}
        command = [sys.executable, "-m", "tests.cluster.driver_program", str(options)]
        with self.log.open("wb") as log:
            program = subprocess.Popen(
                command, cwd=ROOT, env=environment, stdout=log, stderr=subprocess.STDOUT
            )
        try:
            yield program
        finally:
            program.kill()
            program.wait()

    def wait_until(
        self, condition: Callable[[], bool], what: str, program: "subprocess.Popen[bytes]"
    ) -> None:
        """Wait for a condition. Fails if the program ends."""
        wait_until(lambda: condition() or program.poll() is not None, f"{what}: {self.log}", DEADLINE_S)
        assert program.poll() is None, f"the driver has ended before: {what}\n{self.log.read_text()[-5_000:]}"

    def waiting_workers(self) -> list[int]:
        """The Python workers that wait at the gate, by process id."""
        return [int(path.name.removeprefix("waiting-")) for path in self.folder.glob("waiting-*")]

    def archived(self) -> list[int]:
        """The numbers of all records in the archive, sorted."""
        files = self.archive.rglob("*.parquet")
        return sorted(
            int(data) for file in files for data in pq.read_table(file, columns=["data"])["data"].to_pylist()
        )


def test_a_killed_worker_loses_and_duplicates_no_record(
    two_workers: Cluster, dynamodb_local: Server, tmp_path: Path, unique_name: Callable[[str], str]
) -> None:
    """One worker is killed between pin and write. The other continues, and every record is archived exactly once."""
    application = unique_name("cluster")
    with LocalKinesis.in_thread(streams={"orders": 4}) as kinesis:
        production = RecordProducer(kinesis.client(), "orders", random.Random(1))
        production.put(plain=1_000, aggregated=1_000)
        source = {
            "streamName": "orders",
            "applicationName": application,
            "endpointUrl": kinesis.endpoint_url,
            "dynamodbEndpointUrl": dynamodb_local.url,
        }
        query = Query(tmp_path, two_workers.url, source)
        with query.running() as program:
            query.wait_until(lambda: len(query.waiting_workers()) == 2, "two tasks wait", program)
            assert query.archived() == []
            two_workers.kill_executor_of(query.waiting_workers()[0])
            production.put(plain=500, aggregated=500)
            query.gate.touch()
            query.wait_until(lambda: len(query.archived()) >= production.produced, "all is archived", program)
            query.stop.touch()
            assert program.wait(DEADLINE_S) == 0
        assert query.archived() == list(range(production.produced))
        wait_until(lambda: not _owners(application, dynamodb_local.url), "the leases are released", 30)


def test_leases_in_a_file_are_refused_on_a_cluster(two_workers: Cluster, tmp_path: Path) -> None:
    """A SQLite file serves one machine. A task on a cluster raises an error, and reads nothing."""
    with LocalKinesis.in_thread(streams={"orders": 2}) as kinesis:
        RecordProducer(kinesis.client(), "orders", random.Random(1)).put(plain=10, aggregated=0)
        source = {
            "streamName": "orders",
            "applicationName": "refused",
            "endpointUrl": kinesis.endpoint_url,
            "leases": f"sqlite:///{tmp_path}/leases.sqlite",
        }
        query = Query(tmp_path, two_workers.url, source)
        query.gate.touch()
        with query.running() as program:
            assert program.wait(DEADLINE_S) != 0
        assert "is a file on one machine, but this query runs on a cluster" in query.log.read_text()
        assert query.archived() == []


def _owners(application: str, dynamodb_url: str) -> set[Any]:
    """The workers that own leases of the application."""
    connection = ConnectionSettings(region=REGION, dynamodb_endpoint=dynamodb_url)

    async def list_owners() -> set[Any]:
        table = open_lease_table(connection, application)
        try:
            return {lease.owner for lease in (await table.list()).leases if lease.owner}
        finally:
            await table.close()

    return asyncio.run(list_owners())
