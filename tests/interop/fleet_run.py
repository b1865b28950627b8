"""One run of a mixed fleet. Records are produced all the time, members start and stop as the test requires, and at the
end every promise is checked.
"""

import random
import threading
from collections import Counter, defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from leasehold.core.position import SUB_SEQUENCE_MAX, Position
from tests.fleet.record_producer import RecordProducer
from tests.fleet.run_check import RunCheck, check_run
from tests.fleet.worker_processes import wait_until
from tests.interop.fleet_tables import FleetTables
from tests.interop.java_log import complaints
from tests.interop.mixed_fleet import MixedFleet
from tests.interop.spark_member import NAME

SHARDS = 8
PUT_EVERY_S = 0.25
# Java ignores a dead worker a minute after its last report, and looks for new leases every ten seconds.
DEADLINE_S = 240.0


@dataclass
class FleetRun:
    """A mixed fleet under load."""

    fleet: MixedFleet
    table: FleetTables
    production: RecordProducer
    faults_by_worker: dict[str, set[str]] = field(default_factory=lambda: defaultdict(set))
    _producing: threading.Lock = field(default_factory=threading.Lock)
    _end: threading.Event = field(default_factory=threading.Event)

    def __post_init__(self) -> None:
        self._producer = threading.Thread(target=self._produce, daemon=True)

    # -- actions ---------------------------------------------------------------------------------------------------

    def start_production(self) -> None:
        """Start a thread that puts records until `end_production`."""
        self._producer.start()

    def end_production(self) -> None:
        """End production. Waits for the put in progress, so `production.produced` no longer changes."""
        self._end.set()
        self._producer.join()

    @contextmanager
    def pause_production(self) -> Iterator[None]:
        """Put no records during this block."""
        with self._producing:
            yield

    def reshard(self, times: int = 1) -> None:
        """Split a shard, or merge two."""
        for _ in range(times):
            with self._producing:
                self.production.reshard()

    def kill(self, worker: str) -> None:
        """Kill -9."""
        self.fleet.kill(worker)
        self.faults_by_worker[worker].add("killed")

    def stop(self, worker: str) -> None:
        """Stop a member cleanly."""
        self.fleet.stop(worker)
        if worker in self.fleet.pipelines:
            self.faults_by_worker[worker].add("stopped in a batch")

    def start_spark(self, **options: Any) -> str:
        """Start a Spark member. Waits for its first report, and returns its worker id."""
        known, worker = self.table.workers_with_reports(), self.fleet.start_spark(**options)

        def names() -> set[str]:
            return {name for name in self.table.workers_with_reports() - known if NAME.fullmatch(name)}

        self.wait(names, f"{worker} reports")
        (name,) = names()
        self.fleet.rename(worker, name)
        return name

    # -- conditions ------------------------------------------------------------------------------------------------

    def wait_for_leader(self, *workers: str) -> str:
        """Wait until one of these workers leads. Returns the leader."""
        self.wait(lambda: self.table.leader() in workers, f"one of {workers} leads")
        return str(self.table.leader())

    def wait_until_read_by(self, worker: str, leases: int = 1) -> None:
        """Wait until a member owns so many leases and handles records of as many shards."""
        before = len(self.fleet.handled())

        def reads() -> bool:
            recent = {each.shard for each in self.fleet.handled()[before:] if each.worker == worker}
            return len(self.table.owned_by(worker)) >= leases and len(recent) >= leases

        self.wait(reads, f"{worker} reads {leases} shards")

    def wait_for_report_of(self, worker: str) -> None:
        """Wait until a member has reported its load."""
        self.wait(lambda: self.table.has_report_of(worker), f"{worker} reports")

    def wait_until_all_is_handled(self) -> None:
        """Wait until every record produced so far has been handled."""
        produced = self.production.produced

        def missing() -> int:
            return produced - len({each.number for each in self.fleet.handled() if each.number < produced})

        self.wait(lambda: missing() == 0, f"all {produced} records handled")

    def wait_until_all_is_stored(self) -> None:
        """Wait until every record produced so far has been handled, and the leases are past it."""
        produced = self.production.produced
        self.wait_until_all_is_handled()
        tips: dict[str, int] = {}
        for each in self.fleet.handled():
            if each.number < produced:
                tips[each.shard] = max(each.sequence, tips.get(each.shard, 0))

        def stored() -> bool:
            checkpoints = {str(lease.shard_id): lease.checkpoint for lease in self.table.leases()}
            return all(
                checkpoints[shard] > Position(str(tip), SUB_SEQUENCE_MAX) for shard, tip in tips.items()
            )

        self.wait(stored, f"all {produced} records stored")

    def wait_until_nothing_is_stuck(self) -> None:
        """Wait until every lease of an open shard is renewed by a running member, and no handoff is in progress."""
        before = {lease.key: lease.counter for lease in self.table.leases()}

        def served() -> bool:
            return all(
                lease.owner in self.fleet.running
                and not lease.is_in_handoff
                and lease.counter > before.get(lease.key, -1)
                for lease in self.table.unfinished_leases()
            )

        self.wait(served, "every lease is served")

    def wait(self, condition: Any, what: str, deadline_s: float = DEADLINE_S) -> None:
        """Wait until a condition holds. Fails if a member ends by itself."""

        def holds() -> bool:
            self.fleet.check_alive()
            return bool(condition())

        try:
            wait_until(holds, what, deadline_s)
        except AssertionError as error:
            raise AssertionError(f"{error}\n{self._describe()}") from None

    def _produce(self) -> None:
        while not self._end.wait(PUT_EVERY_S):
            with self._producing:
                self.production.put(plain=8, aggregated=8)

    def _describe(self) -> str:
        """The state of the fleet, for the message of a failed test."""
        counts = Counter(each.worker for each in self.fleet.handled())
        leases = "\n".join(
            f"  {each.key} {each.owner} (from {each.checkpoint_owner}) {each.checkpoint} #{each.counter}"
            for each in self.table.leases()
        )
        outputs = "\n".join(
            f"--- {name}\n{self.fleet.output_of(name)[-1500:]}" for name in self.fleet.running
        )
        return f"leader {self.table.leader()}; handled {dict(counts)}\n{leases}\n{outputs}"

    # -- the end ---------------------------------------------------------------------------------------------------

    def conclude(self) -> RunCheck:
        """End production, wait for the last record, check for stuck leases, stop every member, and check all
        promises.
        """
        self.end_production()
        self.wait_until_all_is_handled()
        self.wait_until_nothing_is_stuck()
        for worker in list(self.fleet.running):
            self.stop(worker)
        self._record_lost_leases()
        check = check_run(
            self.fleet.handled(),
            produced=self.production.produced,
            parents=self.production.parents(),
            faults_by_worker=self.faults_by_worker,
        )
        by_worker = Counter(each.worker for each in self.fleet.handled())
        print(
            f"produced {self.production.produced}, handled {dict(by_worker)}, repeated {check.repeated}; "
            f"{self.production.splits} splits, {self.production.merges} merges"
        )
        problems = check.problems + complaints(self.fleet.folder)
        problems += [str(each) for pipeline in self.fleet.pipelines.values() for each in pipeline.problems()]
        assert not problems, "\n".join(problems)
        return check

    def _record_lost_leases(self) -> None:
        """Record lost leases, which explain repetitions: peers of KCL 2.x steal, and on a busy machine heartbeats
        are late.
        """
        for worker in self.fleet.lost_leases():
            self.faults_by_worker[worker].add("lost a lease")


@contextmanager
def start_fleet_run(kinesis: Any, fleet: MixedFleet, dynamodb: Any) -> Iterator[FleetRun]:
    """Create a stream, produce records, and yield a fleet without members."""
    kinesis.create_stream(StreamName=fleet.stream, ShardCount=SHARDS)
    production = RecordProducer(kinesis, fleet.stream, random.Random(6), per_aggregate=4)
    with run_under_load(FleetRun(fleet, FleetTables(dynamodb, fleet.application), production)) as run:
        yield run


@contextmanager
def run_under_load(run: FleetRun) -> Iterator[FleetRun]:
    """Produce records during a test, and kill every member at its end."""
    run.start_production()
    try:
        yield run
    finally:
        run.fleet.kill_all()
        run.end_production()
