"""Fleets as the dashboard sees them over some minutes, made without a server: facts, and the views of them."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from decimal import Decimal

from leasehold.core.coordinator.leader_lock import LeaderLock
from leasehold.core.coordinator.worker_metrics import WorkerReport
from leasehold.core.exactly_once.pinned_batch import GenerationId, PinMetadata, pin_metadata_to_bytes
from leasehold.core.leases.row_writes import text
from leasehold.core.model import HashRange, Lease, LeaseKey, LeaseSessionId, Pin, Shard, ShardId, WorkerId
from leasehold.core.observing.dashboard.fleet_history import FleetHistory
from leasehold.core.observing.dashboard.fleet_view import ReadCosts, ViewSettings, judge_fleet, view_fleet
from leasehold.core.observing.dashboard.view_changes import View
from leasehold.core.observing.explain.facts import FleetFacts, LagRead, StreamFacts, TableRead
from leasehold.core.position import SHARD_END, TRIM_HORIZON, Position
from leasehold.errors import MalformedRowError

START_MS = 1_790_000_000_000
STEP_MS = 5_000
HASH_KEYS = 2**128
SETTINGS = ViewSettings(application="orders-archive", watch_ms=15_000, every_ms=STEP_MS)
COSTS = ReadCosts(
    table_reads_per_s=0.2,
    kinesis_calls_per_s=1.2,
    worker_calls={"ListShards": (0.01, 0.0), "GetRecords": (14.4, 0.5)},
)


def shard_id(number: int) -> ShardId:
    return ShardId(f"shardId-{number:012}")


@dataclass(frozen=True, kw_only=True)
class SampleShard:
    """One shard. `lag` gives its lag in milliseconds at a step; a frozen one neither moves nor is renewed."""

    number: int
    low: float
    high: float
    owner: str | None = "worker-1"
    parents: tuple[int, ...] = ()
    lag: Callable[[int], int] = lambda _step: 0
    kbps: float | None = 120.0
    is_done: bool = False
    is_closed: bool = False
    has_started: bool = True
    is_frozen: bool = False
    is_stuck: bool = False
    next_owner: str | None = None
    is_trimmed: bool = False
    session: str | None = None
    pinned: int | None = None  # the records of a batch that is not complete

    @property
    def hash_range(self) -> HashRange:
        return HashRange(round(self.low * HASH_KEYS), round(self.high * HASH_KEYS) - 1)

    def shard(self) -> Shard:
        return Shard(
            shard_id(self.number),
            self.hash_range,
            "1",
            "9" if self.is_done or self.is_closed else None,
            tuple(map(shard_id, self.parents)),
        )

    def lease(self, step: int) -> Lease:
        moved = 0 if self.is_frozen or self.is_stuck else step
        position = Position(str(49590338271490256608559692538361571095921575989136588898 + moved))
        return Lease(
            key=LeaseKey(shard_id(self.number)),
            shard_id=shard_id(self.number),
            checkpoint=SHARD_END if self.is_done else position if self.has_started else TRIM_HORIZON,
            counter=7 if self.is_frozen else 7 + step,
            owner=WorkerId(self.next_owner or self.owner) if self.owner else None,
            checkpoint_owner=WorkerId(self.owner) if self.next_owner and self.owner else None,
            owner_switches=3,
            parents=frozenset(map(shard_id, self.parents)),
            hash_range=self.hash_range,
            throughput_kbps=None if self.kbps is None else Decimal(str(round(self.kbps, 2))),
            session=None if self.session is None else LeaseSessionId(self.session),
            pin=None if self.pinned is None else self.pin(self.pinned),
        )

    def pin(self, records: int) -> Pin:
        """The pin of a Spark task."""
        metadata = PinMetadata(GenerationId("q" * 32, 7), records=records)
        end = Position("51540338271490256608559692538361571095921575989128070146")
        return Pin(end, pin_metadata_to_bytes(metadata))


@dataclass(frozen=True, kw_only=True)
class SampleFleet:
    """Shards and workers. `busy` is the processor use of each worker that reports; None for one that is gone."""

    shards: Sequence[SampleShard]
    busy: dict[str, float | None] = field(default_factory=dict)
    leader: str | None = "worker-1"
    rejected: tuple[MalformedRowError, ...] = ()
    retention_ms: int = 86_400_000
    start_ms: int = START_MS

    def wall_ms(self, step: int) -> int:
        return self.start_ms + step * STEP_MS

    def read(self, step: int) -> TableRead:
        lock = None if self.leader is None else LeaderLock(WorkerId(self.leader), text(str(step)), 120_000)
        reports = tuple(
            WorkerReport(
                worker=WorkerId(name),
                updated_s=self.wall_ms(step) // 1000 - (5 if used is not None else 400),
                samples={"C": (used or 0.0,)},
                ranges={"C": (100,)},
            )
            for name, used in self.busy.items()
        )
        leases = tuple(each.lease(step) for each in self.shards)
        return TableRead(
            at_ms=step * STEP_MS, leases=leases, rejected=self.rejected, lock=lock, reports=reports
        )

    def facts(self, step: int) -> FleetFacts:
        lags = {
            LeaseKey(shard_id(each.number)): tuple(
                LagRead(at_ms=at * STEP_MS, behind_ms=each.lag(at), is_trimmed=each.is_trimmed)
                for at in range(max(0, step - 3), step + 1)
            )
            for each in self.shards
            if not each.is_done
        }
        return FleetFacts(
            before=self.read(max(0, step - 3)),
            after=self.read(step),
            wall_s=self.wall_ms(step) // 1000,
            has_leader=self.leader is not None,
            streams={
                None: StreamFacts(
                    name="orders",
                    shards=tuple(each.shard() for each in self.shards),
                    retention_ms=self.retention_ms,
                )
            },
            lags=lags,
        )


def view_at(fleet: SampleFleet, step: int, history: FleetHistory) -> View:
    """The view of one step. Adds the step to the history."""
    facts = fleet.facts(step)
    judged = judge_fleet(facts, SETTINGS)
    return view_fleet(facts, judged, history, SETTINGS, costs=COSTS, wall_ms=fleet.wall_ms(step))


def view_after(fleet: SampleFleet, steps: int, *, first: int = 0) -> tuple[View, FleetHistory]:
    """The view after some steps, with the history of all of them."""
    history = FleetHistory()
    view: View = {}
    for step in range(first, steps):
        view = view_at(fleet, step, history)
    return view, history


def wave(low_ms: int, high_ms: int, phase: float) -> Callable[[int], int]:
    """A lag that rises and falls."""
    return lambda step: round(low_ms + (high_ms - low_ms) * (0.5 + 0.5 * math.sin(step / 9 + phase)))


def small_fleet() -> SampleFleet:
    """Three shards, two workers, all well."""
    owners = ("orders-7d4f9c-x2x9k", "orders-7d4f9c-m4tzq", "orders-7d4f9c-x2x9k")
    return SampleFleet(
        shards=[
            SampleShard(
                number=number,
                low=number / 3,
                high=(number + 1) / 3,
                owner=owners[number],
                lag=wave(0, 1_800 * (number + 1), number),
                kbps=96.0 + 41 * number,
            )
            for number in range(3)
        ],
        busy={owners[0]: 41.0, owners[1]: 27.5},
        leader=owners[1],
    )


def resharded_fleet() -> SampleFleet:
    """Two hundred shards that are read after splits and merges: parents that are done, children that wait."""
    workers = [f"orders-7d4f9c-{name}" for name in ("x2x9k", "m4tzq", "8hwpl", "q9ncv", "b6rds")]
    shards: list[SampleShard] = []
    children: list[SampleShard] = []
    number_of_child = 120
    for number in range(120):
        low, high = number / 120, (number + 1) / 120
        is_split, is_slow = number < 88, number in {30, 31, 32, 57}
        shards.append(
            SampleShard(
                number=number,
                low=low,
                high=high,
                owner=None if is_split and not is_slow else workers[number % 5],
                is_done=is_split and not is_slow,
                is_closed=is_split,
                lag=wave(20_000, 95_000, number) if is_slow else wave(0, 4_000, number),
                kbps=60 + number % 17 * 11,
            )
        )
        if is_split:
            middle = (low + high) / 2
            for part in ((low, middle), (middle, high)):
                children.append(
                    SampleShard(
                        number=number_of_child,
                        low=part[0],
                        high=part[1],
                        parents=(number,),
                        owner=None if is_slow else workers[number_of_child % 5],
                        has_started=not is_slow,
                        lag=wave(0, 3_000, number_of_child),
                        kbps=None if is_slow else 40 + number_of_child % 13 * 9,
                        next_owner=workers[(number_of_child + 1) % 5] if number_of_child == 151 else None,
                    )
                )
                number_of_child += 1
    merged = children[:8]
    children[:8] = [replace(each, is_done=True, is_closed=True, owner=None) for each in merged]
    for pair in range(4):
        left, right = merged[2 * pair], merged[2 * pair + 1]
        children.append(
            SampleShard(
                number=number_of_child + pair,
                low=left.low,
                high=right.high,
                parents=(left.number, right.number),
                owner=workers[pair],
                lag=wave(0, 2_500, pair),
                kbps=88,
            )
        )
    busy: dict[str, float | None] = {name: 38.0 + 9 * place for place, name in enumerate(workers)}
    return SampleFleet(shards=[*shards, *children], busy=busy, leader=workers[0])


def unhealthy_fleet() -> SampleFleet:
    """A silent owner, a stuck handler, records about to be lost, a free lease, a row that cannot be read."""

    def at(number: int, owner: str | None, lag_ms: int, rate: float = 0.0, **more: object) -> SampleShard:
        made = SampleShard(
            number=number,
            low=number / 12,
            high=(number + 1) / 12,
            owner=owner,
            lag=lambda step: max(0, round(lag_ms + rate * step * STEP_MS)),
        )
        return replace(made, **more)  # type: ignore[arg-type]

    shards = [
        *(at(number, "worker-1", 1_200) for number in range(3)),
        at(3, "worker-2", 900_000, 1.0, is_frozen=True),
        at(4, "worker-2", 840_000, 1.0, is_frozen=True),
        at(5, "worker-3", 5_400_000, 1.0, is_stuck=True),
        at(6, "worker-3", 71_000_000, -0.4),
        at(7, None, 300_000, 1.0, is_frozen=True),
        at(8, "worker-3", 95_000, 0.6),
        at(9, "worker-1", 400, kbps=910.0),
        at(10, "worker-1", 600_000, -6.0),
        at(11, "worker-3", 90_000_000, 0.0, is_trimmed=True),
    ]
    return SampleFleet(
        shards=shards,
        busy={"worker-1": 62.0, "worker-2": None, "worker-3": 97.0},
        leader="worker-1",
        rejected=(MalformedRowError("shardId-000000000012", "leaseCounter: expected a number"),),
    )


def killed_query(killed_at: int = 6) -> SampleFleet:
    """A Spark query that was killed: its only worker, which led the fleet, sends nothing after this step."""
    owner = "spark-deb7d58e209b7dcd"
    shards = [
        SampleShard(
            number=number,
            low=number / 2,
            high=(number + 1) / 2,
            owner=owner,
            kbps=0.3 + number / 10,
            lag=lambda step: max(0, step - killed_at) * STEP_MS,
            is_frozen=True,
            session="before",
            pinned=40 + number,
        )
        for number in range(2)
    ]
    return SampleFleet(shards=shards, busy={owner: None}, leader=owner)


def killed_and_restarted(restart_at: int = 12) -> tuple[View, FleetHistory]:
    """The views of a query that runs, is killed, and begins again with the same name: the last view."""
    killed = killed_query()
    owner = killed.shards[0].owner or ""
    running = replace(
        killed,
        shards=[replace(each, is_frozen=False, is_stuck=True) for each in killed.shards],
        busy={owner: 12.0},
    )
    again = replace(
        running, shards=[replace(each, session="after", lag=lambda _step: 800) for each in running.shards]
    )
    history = FleetHistory()
    view: View = {}
    for step in range(restart_at + 6):
        fleet = running if step < 6 else killed if step < restart_at else again
        view = view_at(fleet, step, history)
    return view, history


def large_fleet(shards: int = 10_000, workers: int = 400) -> SampleFleet:
    """Ten thousand shards. A few are behind, two workers are gone."""

    def made(number: int) -> SampleShard:
        worker = number % workers
        is_slow = number % 97 == 5
        return SampleShard(
            number=number,
            low=number / shards,
            high=(number + 1) / shards,
            owner=f"orders-{worker:03}",
            lag=wave(30_000, 900_000, number) if is_slow else lambda _step: number % 9 * 700,
            kbps=20 + number % 40,
            is_frozen=worker in {17, 203},
        )

    busy: dict[str, float | None] = {
        f"orders-{number:03}": None if number in {17, 203} else 20.0 + number % 60
        for number in range(workers)
    }
    return SampleFleet(shards=[made(number) for number in range(shards)], busy=busy, leader="orders-000")
