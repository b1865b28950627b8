"""The system under test: two fleets of workers, a Spark pipeline and a producer, on servers behind proxies."""

import os
import subprocess
import sys
import time
import uuid
from dataclasses import dataclass, field
from pathlib import Path
from random import Random

from leasehold.adapters.aws.clients import AwsAccess
from leasehold.adapters.obstore_objects import open_object_store
from leasehold.local import LocalKinesis
from leasehold.ports import ObjectStore
from tests.chaos.fault_plan import Dependency, FaultCounts, Group, Victim
from tests.chaos.producer import SteadyProducer
from tests.chaos.spark_processes import ROOT, SparkProcesses
from tests.contract.lease_stores import TableLocation
from tests.fleet.options import FAILOVER_S, REGION, consumer_options
from tests.fleet.record_producer import RecordProducer
from tests.fleet.worker_processes import WorkerProcesses
from tests.proxy import Proxies, Proxy
from tests.servers import Server

STREAM = "orders"
FLEETS = {Victim.ARCHIVER: Group.ARCHIVERS, Victim.RECORDER: Group.RECORDERS}

PIPELINE = """\
checkpoint = "{folder}/checkpoint"

[source]
streamName = "{stream}"
applicationName = "{application}"
region = "{region}"
endpointUrl = "{kinesis}"
dynamodbEndpointUrl = "{dynamodb}"
startingPosition = "trim_horizon"
failoverAfter = "{failover}s"
pollInterval = "500ms"

[sink]
kind = "archive"
path = "{archive}"
region = "{region}"
s3Endpoint = "{store}"

[trigger]
processing_time = "1s"
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class ChaosOptions:
    """The options of a run."""

    seed: int
    minutes: float = 10.0
    counts: FaultCounts = field(default_factory=FaultCounts)
    archivers: int = 2
    recorders: int = 2
    shards: int = 6
    records_per_s: int = 200

    @property
    def command(self) -> str:
        """The command that repeats a run: the same plan of faults, but not the same timing."""
        counts = self.counts
        return (
            f'make chaos ARGS="--seed {self.seed} --minutes {self.minutes:g} --kills {counts.kills} '
            f'--pauses {counts.pauses} --reshards {counts.reshards} --network-faults {counts.network_faults}"'
        )


@dataclass(frozen=True, slots=True)
class Servers:
    """The servers of a run."""

    kinesis: LocalKinesis
    dynamodb: Server
    store: Server


class ChaosSystem:
    """All processes of a run, and the proxies between them and the servers."""

    def __init__(self, options: ChaosOptions, servers: Servers, proxies: Proxies, folder: Path) -> None:
        name = f"chaos-{uuid.uuid4().hex[:8]}"
        servers.store.client("s3").create_bucket(Bucket=name)
        self.folder = folder
        self.proxies = proxies
        self.archive_url = f"s3://{name}/archive"
        self.applications = {
            Group.ARCHIVERS: f"{name}-archive",
            Group.SPARK: f"{name}-archive",
            Group.RECORDERS: f"{name}-record",
        }
        self._options = options
        self._servers = servers
        self.connections = self._start_proxies()
        self.producer = self._create_producer()
        self.fleets = {group: self._create_fleet(group) for group in FLEETS.values()}
        self.spark = self._create_pipeline()
        self.started_at: dict[tuple[Group, str], float] = {}

    @property
    def produced(self) -> int:
        """The number of records produced so far."""
        return self.producer.producer.produced

    @property
    def recorders(self) -> WorkerProcesses:
        """The workers that record every record that their handler is given."""
        return self.fleets[Group.RECORDERS]

    def lease_tables(self) -> list[TableLocation]:
        """Return the lease table of each application, without a proxy."""
        applications = sorted(set(self.applications.values()))
        return [TableLocation("dynamodb_local", self._servers.dynamodb.url, each) for each in applications]

    def open_archive(self) -> ObjectStore:
        """Open the archive, without a proxy."""
        access = AwsAccess(region=REGION, endpoint_url=self._servers.store.url)
        return open_object_store(self.archive_url, access, setting="url", extra="archive")

    def start(self) -> None:
        """Start everything."""
        self.producer.start()
        self.spark.start()
        counts = (self._options.archivers, self._options.recorders)
        for group, count in zip(FLEETS.values(), counts, strict=True):
            for _ in range(count):
                self.start_worker(group)

    def start_worker(self, group: Group) -> None:
        """Start a worker."""
        self.started_at[group, self.fleets[group].start()] = time.monotonic()

    def restart_ended(self) -> list[str]:
        """Restart workers and the pipeline if they have ended. Returns the last output of each such worker."""
        outputs = []
        for group, fleet in self.fleets.items():
            for _, output in fleet.remove_ended():
                outputs.append(output)
                self.start_worker(group)
        self.spark.keep_running()
        if self.producer.failure is not None:
            raise self.producer.failure
        return outputs

    def stop(self) -> list[str]:
        """Stop workers and pipeline cleanly. Returns the problems."""
        problems = []
        for fleet in self.fleets.values():
            try:
                fleet.stop_all()
            except AssertionError as error:
                problems.append(f"a worker did not stop cleanly: {error}")
        exit_code = self.spark.stop()
        if exit_code != 0:
            problems.append(f"the pipeline was stopped and exited with {exit_code}")
        return problems

    def kill_all(self) -> None:
        """Kill all processes and stop the producer."""
        for fleet in self.fleets.values():
            fleet.kill_all()
        self.spark.kill_all()
        self.producer.stop()

    def verify_archive(self) -> list[str]:
        """Run `leasehold archive verify`. Returns its output if it has found a problem."""
        command = [sys.executable, "-m", "leasehold.cli", "archive", "verify", self.archive_url]
        command += ["--stream", STREAM, "--region", REGION]
        command += ["--application", self.applications[Group.ARCHIVERS]]
        command += ["--s3-endpoint-url", self._servers.store.url]
        command += ["--kinesis-endpoint-url", self._servers.kinesis.endpoint_url]
        command += ["--dynamodb-endpoint-url", self._servers.dynamodb.url]
        result = subprocess.run(
            command, cwd=ROOT, env=self.spark.environment, capture_output=True, text=True, check=False
        )
        if result.returncode == 0:
            return []
        return [f"leasehold archive verify failed: {(result.stdout + result.stderr)[-2000:]}"]

    def _start_proxies(self) -> dict[tuple[Group, Dependency], Proxy]:
        urls = {
            Dependency.KINESIS: self._servers.kinesis.endpoint_url,
            Dependency.DYNAMODB: self._servers.dynamodb.url,
            Dependency.STORE: self._servers.store.url,
        }
        return {
            (group, dependency): self.proxies.start(url)
            for group in Group
            for dependency, url in urls.items()
        }

    def _create_producer(self) -> SteadyProducer:
        kinesis = self._servers.kinesis.client()
        kinesis.create_stream(StreamName=STREAM, ShardCount=self._options.shards)
        producer = RecordProducer(kinesis, STREAM, Random(self._options.seed))
        producer.shards_min, producer.shards_max = self._options.shards - 2, self._options.shards + 4
        return SteadyProducer(producer, self._options.records_per_s)

    def _create_fleet(self, group: Group) -> WorkerProcesses:
        folder = self.folder / group.name.lower()
        folder.mkdir()
        kinesis, dynamodb, store = (self.connections[group, each].url for each in Dependency)
        application = self.applications[group]
        options = consumer_options(TableLocation("dynamodb_local", dynamodb, application), kinesis, STREAM)
        options["application"] = application
        if group is Group.RECORDERS:
            # With rare checkpoints, a kill usually causes repeated records, which the report must explain.
            return WorkerProcesses(folder, options | {"checkpoint_every": "2s"})
        archive = {"url": self.archive_url, "region": REGION, "s3_endpoint": store}
        return WorkerProcesses(folder, options | {"archive": archive}, "tests.chaos.archiving_program")

    def _create_pipeline(self) -> SparkProcesses:
        folder = self.folder / "spark"
        folder.mkdir()
        kinesis, dynamodb, store = (self.connections[Group.SPARK, each].url for each in Dependency)
        file = folder / "pipeline.toml"
        file.write_text(
            PIPELINE.format(
                folder=folder,
                stream=STREAM,
                application=self.applications[Group.SPARK],
                region=REGION,
                kinesis=kinesis,
                dynamodb=dynamodb,
                store=store,
                archive=self.archive_url,
                failover=FAILOVER_S,
            )
        )
        environment = os.environ | {"AWS_ACCESS_KEY_ID": "test", "AWS_SECRET_ACCESS_KEY": "test"}
        return SparkProcesses(file, folder, environment)
