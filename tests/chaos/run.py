"""One run of chaos, from the start of its processes to the report. What happens when is in `ChaosRun.run`, top down."""

import asyncio
import os
import signal
import subprocess
import sys
import threading
import time
import uuid
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from random import Random

from leasehold.adapters.aws.clients import AwsAccess
from leasehold.adapters.obstore_objects import open_object_store
from leasehold.errors import UnavailableError
from leasehold.local import LocalKinesis
from tests.chaos.accounting import UNEXPLAINED, ArchiveAccount, Disruption, explain_repeats
from tests.chaos.fault_plan import (
    Dependency,
    Fault,
    FaultCounts,
    Group,
    Kill,
    Pause,
    Reshard,
    Victim,
    draw_faults,
)
from tests.chaos.producer import Producer
from tests.chaos.report import Report, count_by_kind
from tests.chaos.spark_processes import ROOT, SparkProcesses
from tests.contract.lease_stores import TableLocation
from tests.fleet.checkpoint_monitor import CheckpointMonitor
from tests.fleet.options import FAILOVER_S, REGION, consumer_options
from tests.fleet.record_producer import RecordProducer
from tests.fleet.run_check import check_run, read_logs
from tests.fleet.worker_processes import WorkerProcesses
from tests.proxy import Proxies, Proxy
from tests.servers import Server

STREAM = "orders"
TICK_S = 0.1
TELL_EVERY_S = 10.0
START_DEADLINE_S = 300.0
# Of the time of a run: to drain, stop and verify. What is kept free for it is a quarter at most.
HEALING_S = 100.0
HEALING_DEADLINE_S = 400.0
WATCH_EVERY_S = 2.0
LEASE_LOST = "lease lost shard="
BUG = "a bug: "
# A worker that has just started holds nothing yet: to kill it would prove nothing. A kill waits for one that is older.
SETTLED_AFTER_S = 8.0
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
    """How much of it."""

    seed: int
    minutes: float = 10.0
    counts: FaultCounts = field(default_factory=FaultCounts)
    archivers: int = 2
    recorders: int = 2
    shards: int = 6
    records_per_s: int = 200

    @property
    def command(self) -> str:
        """The command that repeats a run: the same deck, though not to the microsecond."""
        counts = self.counts
        return (
            f'make chaos ARGS="--seed {self.seed} --minutes {self.minutes:g} --kills {counts.kills} '
            f'--pauses {counts.pauses} --reshards {counts.reshards} --troubles {counts.network_faults}"'
        )


@dataclass(frozen=True, slots=True)
class Servers:
    """What everything runs on."""

    kinesis: LocalKinesis
    dynamodb: Server
    store: Server


class ChaosRun:
    """Workers, a pipeline, a producer, and what is done to them."""

    def __init__(
        self,
        options: ChaosOptions,
        servers: Servers,
        proxies: Proxies,
        folder: Path,
        tell: Callable[[str], None],
    ) -> None:
        self._options = options
        self._servers = servers
        self._proxies = proxies
        self._folder = folder
        self._tell = tell
        self._began = time.monotonic()
        self._told = self._began
        self._due: list[tuple[float, Callable[[], None]]] = []
        self._played: list[Fault] = []
        self._mishaps: list[Disruption] = []
        self._problems: list[str] = []
        self._worker_failures: list[str] = []
        name = f"chaos-{uuid.uuid4().hex[:8]}"
        self._applications = {
            Group.ARCHIVERS: f"{name}-archive",
            Group.SPARK: f"{name}-archive",
            Group.RECORDERS: f"{name}-record",
        }
        self._archive_url = f"s3://{name}/archive"
        servers.store.client("s3").create_bucket(Bucket=name)
        self._ways = self._proxied()
        self._producer = self._new_producer()
        self._fleets = {group: self._new_fleet(group) for group in FLEETS.values()}
        self._paused: set[tuple[Group, str]] = set()
        self._started_at: dict[tuple[Group, str], float] = {}
        self._spark = self._new_pipeline()
        self._account = ArchiveAccount(
            open_object_store(
                self._archive_url,
                AwsAccess(region=REGION, endpoint_url=servers.store.url),
                setting="url",
                extra="archive",
            )
        )
        self._watches = [
            CheckpointMonitor(
                TableLocation("dynamodb_local", servers.dynamodb.url, application), WATCH_EVERY_S
            )
            for application in sorted(set(self._applications.values()))
        ]

    def run(self) -> Report:
        """Start, hurt, heal, stop, and account for everything."""
        watching = [threading.Thread(target=watch.run, daemon=True) for watch in self._watches]
        try:
            self._start()
            for thread in watching:
                thread.start()
            not_injected = self._play(draw_faults(self._options.seed, self._options.counts, FAILOVER_S))
            self._heal()
            self._stop()
        finally:
            self._end()
            for watch, thread in zip(self._watches, watching, strict=True):
                watch.stop()
                if thread.is_alive():
                    thread.join()
        return self._report(not_injected)

    # -- building ----------------------------------------------------------------------------------------------

    def _proxied(self) -> dict[tuple[Group, Dependency], Proxy]:
        urls = {
            Dependency.KINESIS: self._servers.kinesis.endpoint_url,
            Dependency.DYNAMODB: self._servers.dynamodb.url,
            Dependency.STORE: self._servers.store.url,
        }
        return {
            (group, dependency): self._proxies.start(url)
            for group in Group
            for dependency, url in urls.items()
        }

    def _new_producer(self) -> Producer:
        kinesis = self._servers.kinesis.client()
        kinesis.create_stream(StreamName=STREAM, ShardCount=self._options.shards)
        production = RecordProducer(kinesis, STREAM, Random(self._options.seed))
        production.shards_min, production.shards_max = self._options.shards - 2, self._options.shards + 4
        return Producer(production, self._options.records_per_s)

    def _new_fleet(self, group: Group) -> WorkerProcesses:
        folder = self._folder / group.name.lower()
        folder.mkdir()
        kinesis, dynamodb, store = (self._ways[group, each].url for each in Dependency)
        application = self._applications[group]
        options = consumer_options(TableLocation("dynamodb_local", dynamodb, application), kinesis, STREAM)
        options["application"] = application
        if group is Group.RECORDERS:
            # Seldom enough that a kill mostly costs something.
            return WorkerProcesses(folder, options | {"checkpoint_every": "2s"})
        archive = {"url": self._archive_url, "region": REGION, "s3_endpoint": store}
        return WorkerProcesses(folder, options | {"archive": archive}, "tests.chaos.archiving_program")

    def _new_pipeline(self) -> SparkProcesses:
        folder = self._folder / "spark"
        folder.mkdir()
        kinesis, dynamodb, store = (self._ways[Group.SPARK, each].url for each in Dependency)
        file = folder / "pipeline.toml"
        file.write_text(
            PIPELINE.format(
                folder=folder,
                stream=STREAM,
                application=self._applications[Group.SPARK],
                region=REGION,
                kinesis=kinesis,
                dynamodb=dynamodb,
                store=store,
                archive=self._archive_url,
                failover=FAILOVER_S,
            )
        )
        environment = os.environ | {"AWS_ACCESS_KEY_ID": "test", "AWS_SECRET_ACCESS_KEY": "test"}
        return SparkProcesses(file, folder, environment)

    # -- the story ---------------------------------------------------------------------------------------------

    def _start(self) -> None:
        self._tell(f"seed {self._options.seed}; everything is in {self._folder}")
        self._producer.start()
        self._spark.start()
        for group, count in zip(
            FLEETS.values(), (self._options.archivers, self._options.recorders), strict=True
        ):
            for _ in range(count):
                self._start_worker(group)
        self._wait(lambda: bool(self._spark.find(Victim.DRIVER)), "Spark has done a batch", START_DEADLINE_S)

    def _play(self, deck: list[Fault]) -> int:
        """Play a deck at an even pace. A card without a victim waits for its turn; returns how many waited in vain."""
        total_s = self._options.minutes * 60
        left_s = total_s - (time.monotonic() - self._began) - min(HEALING_S, total_s / 4)
        until = time.monotonic() + max(
            left_s, total_s / 3
        )  # on a busy machine Spark may have taken long to start
        pace_s = (until - time.monotonic()) / (len(deck) + 1)
        self._tell(f"everybody is at work; {len(deck)} faults, one every {pace_s:.1f} s")
        next_at = time.monotonic()
        while deck and time.monotonic() < until:
            self._attend()
            if time.monotonic() >= next_at:
                self._play_one_of(deck)
                next_at += pace_s
            time.sleep(TICK_S)
        return len(deck)

    def _heal(self) -> None:
        """No more faults: everything that was produced arrives."""
        for _, undo in sorted(self._due, key=lambda each: each[0]):
            undo()
        self._due.clear()
        self._producer.stop()
        self._tell(f"no more faults; {self._produced:,} records were produced")
        with suppress(AssertionError):  # what is missing is told in the report
            self._wait(self._is_complete, "all is archived and handled", HEALING_DEADLINE_S)

    def _stop(self) -> None:
        self._tell("everybody is asked to stop")
        for fleet in self._fleets.values():
            try:
                fleet.stop_all()
            except AssertionError as error:
                self._problems.append(f"a worker did not stop as it should: {error}")
        code = self._spark.stop()
        if code != 0:
            self._problems.append(f"the pipeline was asked to stop, and ended with {code}")

    def _end(self) -> None:
        for fleet in self._fleets.values():
            fleet.kill_all()
        self._spark.kill_all()
        self._producer.stop()

    # -- faults ------------------------------------------------------------------------------------------------

    def _play_one_of(self, deck: list[Fault]) -> None:
        """Play the first card that has a victim."""
        in_vain: set[object] = set()
        for place, card in enumerate(deck):
            what = (type(card), card.victim) if isinstance(card, Kill | Pause) else card
            if what not in in_vain and self._could_play(card):
                self._played.append(deck.pop(place))
                return
            in_vain.add(what)

    def _could_play(self, card: Fault) -> bool:
        match card:
            case Reshard():
                self._producer.reshard()
                return True
            case Kill(victim, pick):
                return self._kill_worker(victim, pick) if victim in FLEETS else self._kill_spark(victim, pick)
            case Pause(victim, pick, for_s):
                pause = self._pause_worker if victim in FLEETS else self._pause_spark
                return pause(victim, pick, for_s)
            case _:
                proxy = self._ways[card.group, card.dependency]
                if proxy.fault is not None:
                    return False
                self._proxies.set_fault(proxy, card.how)
                self._later(card.for_s, lambda: self._proxies.clear_fault(proxy))
                return True

    def _kill_worker(self, victim: Victim, pick: float) -> bool:
        group = FLEETS[victim]
        worker = self._worker(group, pick, settled_after_s=SETTLED_AFTER_S)
        if worker is None:
            return False
        self._fleets[group].kill(worker)
        self._note(victim, Disruption(worker, "its owner was killed", time.monotonic_ns()))
        self._start_worker(group)
        return True

    def _pause_worker(self, victim: Victim, pick: float, for_s: float) -> bool:
        group = FLEETS[victim]
        worker = self._worker(group, pick)
        if worker is None:
            return False
        fleet, from_ns = self._fleets[group], time.monotonic_ns()
        fleet.pause(worker)
        self._paused.add((group, worker))

        def resume() -> None:
            self._paused.discard((group, worker))
            if worker in fleet.workers:
                fleet.resume(worker)
            self._note(victim, Disruption(worker, "its owner was paused", from_ns, time.monotonic_ns()))

        self._later(for_s, resume)
        return True

    def _kill_spark(self, victim: Victim, pick: float) -> bool:
        pids = self._spark_pids(victim, pick)
        self._spark.signal(pids, signal.SIGKILL)
        return bool(pids)

    def _pause_spark(self, victim: Victim, pick: float, for_s: float) -> bool:
        pids = self._spark_pids(victim, pick)
        self._spark.signal(pids, signal.SIGSTOP)
        if pids:
            self._later(for_s, lambda: self._spark.signal(pids, signal.SIGCONT))
        return bool(pids)

    def _spark_pids(self, victim: Victim, pick: float) -> list[int]:
        """One process, except where all of them are meant."""
        pids = self._spark.find(victim)
        return pids if victim is Victim.PIPELINE or not pids else [pids[int(pick * len(pids))]]

    def _worker(self, group: Group, pick: float, settled_after_s: float = 0.0) -> str | None:
        before = time.monotonic() - settled_after_s
        awake = [
            each
            for each in self._fleets[group].workers
            if (group, each) not in self._paused and self._started_at[group, each] <= before
        ]
        return awake[int(pick * len(awake))] if awake else None

    def _start_worker(self, group: Group) -> None:
        self._started_at[group, self._fleets[group].start()] = time.monotonic()

    def _note(self, victim: Victim, mishap: Disruption) -> None:
        if victim is Victim.RECORDER:
            self._mishaps.append(mishap)

    def _later(self, after_s: float, act: Callable[[], None]) -> None:
        self._due.append((time.monotonic() + after_s, act))

    # -- meanwhile ---------------------------------------------------------------------------------------------

    def _attend(self) -> None:
        """What has to be done all the time: end pauses, start again what has ended, tell."""
        now = time.monotonic()
        for each in [due for due in self._due if due[0] <= now]:
            self._due.remove(each)
            each[1]()
        for group, fleet in self._fleets.items():
            for _, said in fleet.remove_ended():
                self._worker_failures.append(said)
                self._start_worker(group)
        self._spark.keep_running()
        if self._producer.failure is not None:
            raise self._producer.failure
        if now - self._told >= TELL_EVERY_S:
            self._told = now
            self._look()
            self._tell(self._progress())

    def _wait(self, is_so: Callable[[], bool], what: str, deadline_s: float) -> None:
        until = time.monotonic() + deadline_s
        while not is_so():
            assert time.monotonic() < until, f"after {deadline_s} s still not: {what}"
            self._attend()
            time.sleep(TICK_S * 5)

    def _progress(self) -> str:
        state = "at work" if self._spark.find(Victim.DRIVER) else "starting"
        return (
            f"{time.monotonic() - self._began:4.0f} s  {count_by_kind(self._played)}; {self._produced:,} produced, "
            f"{len(self._account.found):,} archived, {self._fleets[Group.RECORDERS].handled():,} handled; "
            f"Spark run {self._spark.starts} {state}"
        )

    @property
    def _produced(self) -> int:
        return self._producer.production.produced

    def _look(self) -> None:
        """At the archive; a busy store is asked again."""
        with suppress(UnavailableError):
            asyncio.run(self._account.read_new_objects())

    def _is_complete(self) -> bool:
        self._look()
        if (
            len(self._account.found) < self._produced
            or self._fleets[Group.RECORDERS].handled() < self._produced
        ):
            return False
        handled = {record.number for record in read_logs(self._folder / Group.RECORDERS.name.lower())}
        return len(handled) == self._produced

    # -- accounting --------------------------------------------------------------------------------------------

    def _report(self, not_injected: int) -> Report:
        self._look()
        production, recorders = self._producer.production, self._fleets[Group.RECORDERS]
        recorders.record_lost_leases()
        log = read_logs(recorders.folder)
        check = check_run(
            log,
            produced=self._produced,
            parents=production.parents(),
            faults_by_worker=recorders.faults_by_worker,
        )
        repeated = explain_repeats(log, [*self._mishaps, *find_lost_leases(recorders.folder)])
        lost = self._account.lost(self._produced)
        problems = [*self._problems, *check.problems, *self._archive_problems(lost, repeated)]
        problems += [problem for watch in self._watches for problem in watch.problems]
        problems += find_logged_bugs(self._folder)
        return Report(
            command=self._options.command,
            took_s=time.monotonic() - self._began,
            failover_s=FAILOVER_S,
            injected=self._played,
            not_injected=not_injected,
            splits=production.splits,
            merges=production.merges,
            produced=self._produced,
            archived=self._account.found.total(),
            by_spark=self._spark.records(),
            objects=self._account.objects,
            lost=len(lost),
            duplicated=self._account.duplicated,
            handled=check.handled,
            not_handled=self._produced - len({record.number for record in log}),
            repeated=repeated,
            pipeline_starts=self._spark.starts,
            pipeline_failures=self._spark.ended_by_itself,
            worker_failures=self._worker_failures,
            problems=problems,
        )

    def _archive_problems(self, lost: set[int], repeated: Counter[str]) -> list[str]:
        found = []
        if lost:
            found.append(f"{len(lost)} records are not in the archive, e.g. {min(lost)}")
        if self._account.duplicated:
            found.append(f"{self._account.duplicated} rows of the archive are there again")
        if repeated[UNEXPLAINED]:
            found.append(f"{repeated[UNEXPLAINED]} records were handled again, and {UNEXPLAINED}")
        return found + self._verified()

    def _verified(self) -> list[str]:
        """What the command that anyone can run says of the archive."""
        command = [sys.executable, "-m", "leasehold.cli", "archive", "verify", self._archive_url]
        command += [
            "--stream",
            STREAM,
            "--application",
            self._applications[Group.ARCHIVERS],
            "--region",
            REGION,
        ]
        command += ["--s3-endpoint-url", self._servers.store.url]
        command += ["--kinesis-endpoint-url", self._servers.kinesis.endpoint_url]
        command += ["--dynamodb-endpoint-url", self._servers.dynamodb.url]
        done = subprocess.run(
            command, cwd=ROOT, env=self._spark.environment, capture_output=True, text=True, check=False
        )
        return (
            []
            if done.returncode == 0
            else [f"leasehold archive verify says: {(done.stdout + done.stderr)[-2000:]}"]
        )


def find_lost_leases(folder: Path) -> list[Disruption]:
    """What workers said about leases that they lost: to be cut off from the table has no time, but a shard."""
    found = []
    for path in folder.glob("*.log"):
        for line in path.read_text(errors="replace").splitlines():
            _, said, rest = line.partition(LEASE_LOST)
            if said:
                found.append(Disruption(path.stem, "its owner was cut off", shard=rest.split()[0]))
    return found


def find_logged_bugs(folder: Path) -> list[str]:
    """What workers and the pipeline said of themselves: where and what, each once."""
    found: Counter[str] = Counter()
    for path in folder.glob("*/*.log"):
        lines = path.read_text(errors="replace").splitlines()
        found.update(line.partition(BUG)[2] for line in lines if BUG in line)
    return [f"a bug was logged {count} times: {what}" for what, count in found.items()]
