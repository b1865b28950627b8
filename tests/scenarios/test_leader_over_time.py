"""Plays the scenarios of a leader over time: which leases it moves in a fleet whose processor use follows from them.

A worker has leases, written as in `test_leader.py`: `5x100` is five of 100 KiB/s. `5x100*3` costs three times the
processor use. `percent_per_100kbps` is what 100 KiB/s cost on this worker. `other` is processor use that no lease
causes, from a minute on: `{"0": 45, "20": 0}`. `range` is its operating range. `noise` is the standard deviation of
each report, in points. `later` changes the throughput of leases from a minute on: `{"20": {"A0": 500}}`. Reports are
written every thirty seconds, and the leader decides every ten seconds.

`first_move_s` is the latest time of the first move, `moves_max` limits all moves, and no lease moves after
`calm_after_min`. `has` is the number of leases at the end, `cpu_max` the highest processor use at the end, and
`cpu_spread_max` the difference between the highest and the lowest.
"""

import random
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from decimal import Decimal

from leasehold.core.assignment.leader_assignment import (
    Decide,
    LeaderLimits,
    LeaderMemory,
    LeaderPlan,
    LeaderView,
    plan_assignment,
)
from leasehold.core.coordinator.worker_metrics import CPU, SAMPLES_KEPT_MAX, WorkerReport
from leasehold.core.leases.liveness import Observations, next_observations
from leasehold.core.model import Lease, LeaseKey, LeaseSessionId, ShardId, WorkerId
from leasehold.core.position import Position
from tests.scenarios.scenario_files import Scenario, only, scenarios

DECIDE_EVERY_S = 10
REPORT_EVERY_S = 30
BASE_PERCENT = 2.0
GIVEN = ("workers", "minutes", "later", "noise", "seed")
WORKER = ("leases", "percent_per_100kbps", "other", "range")
EXPECT = ("first_move_s", "moves_max", "calm_after_min", "has", "cpu_max", "cpu_spread_max")


@dataclass(frozen=True)
class Machine:
    """A worker: what a kilobyte costs on it, what else it does, and its operating range."""

    percent_per_kbps: float
    other: tuple[tuple[int, float], ...]
    range: int

    def other_percent(self, now_s: int) -> float:
        """The processor use at this time that no lease causes."""
        return next((percent for from_s, percent in reversed(self.other) if now_s >= from_s), 0.0)


@dataclass
class PlayedFleet:
    """A fleet in which every planned move succeeds before the next decision."""

    machines: dict[WorkerId, Machine]
    leases: dict[LeaseKey, Lease]
    intensity: dict[LeaseKey, float]
    limits: LeaderLimits
    later: dict[str, dict[str, int]]
    noise: float
    rng: random.Random
    decide: Decide = plan_assignment
    now_s: int = 0
    moves: list[tuple[int, LeaseKey]] = field(default_factory=list)
    _samples: dict[WorkerId, tuple[float, ...]] = field(default_factory=dict)
    _reported_s: dict[WorkerId, int] = field(default_factory=dict)
    _observations: Observations = field(default_factory=dict)
    _memory: LeaderMemory = field(default_factory=LeaderMemory)

    def play(self, minutes: int) -> None:
        """Decide and execute, again and again."""
        while self.now_s < 60 * minutes:
            for key, kbps in self.later.get(f"{self.now_s / 60:g}", {}).items():
                lease = self.leases[LeaseKey(key)]
                self.leases[lease.key] = replace(lease, throughput_kbps=Decimal(kbps))
            self._report()
            self._execute(self.decide(self._view(), self.limits))
            self.now_s += DECIDE_EVERY_S

    def cpu(self, worker: WorkerId) -> float:
        """The processor use of a worker now, without noise."""
        machine = self.machines[worker]
        kbps = sum(
            float(lease.throughput_kbps or 0) * self.intensity[lease.key]
            for lease in self.leases.values()
            if lease.owner == worker
        )
        percent = BASE_PERCENT + machine.other_percent(self.now_s) + machine.percent_per_kbps * kbps
        return min(100.0, percent)

    def _report(self) -> None:
        for number, worker in enumerate(self.machines):
            if (self.now_s // DECIDE_EVERY_S) % (REPORT_EVERY_S // DECIDE_EVERY_S) != number % 3:
                continue
            percent = max(0.0, min(100.0, self.cpu(worker) + self.rng.gauss(0, self.noise)))
            self._samples[worker] = (*self._samples.get(worker, ()), percent)[-SAMPLES_KEPT_MAX:]
            self._reported_s[worker] = self.now_s

    def _view(self) -> LeaderView:
        leases = [replace(lease, counter=lease.counter + 1) for lease in self.leases.values()]
        self.leases = {lease.key: lease for lease in leases}
        self._observations = next_observations(self._observations, leases, 1000 * self.now_s)
        reports = [
            WorkerReport(
                worker=worker,
                updated_s=self._reported_s[worker],
                samples={CPU: samples},
                ranges={CPU: (self.machines[worker].range,)},
            )
            for worker, samples in self._samples.items()
        ]
        return LeaderView(
            now_ms=1000 * self.now_s,
            wall_s=self.now_s,
            leases=leases,
            observations=self._observations,
            reports=reports,
            memory=self._memory,
        )

    def _execute(self, plan: LeaderPlan) -> None:
        self._memory = plan.memory
        for line in plan.assign + plan.hand_off:
            self.moves.append((self.now_s, line.lease.key))
            session = LeaseSessionId(f"{len(self.moves)}")
            self.leases[line.lease.key] = replace(line.lease, owner=line.to, session=session)


@scenarios("leader_over_time")
def test_leader_over_time(scenario: Scenario) -> None:
    """A fleet is relieved by these moves, and is calm then."""
    fleet = played(scenario)
    expect = only(scenario.expect, optional=EXPECT)
    assert len(fleet.moves) <= expect.get("moves_max", 0), fleet.moves
    if "first_move_s" in expect:
        assert fleet.moves, "no lease moved"
        assert fleet.moves[0][0] <= expect["first_move_s"]
    if "calm_after_min" in expect:
        assert not [move for move in fleet.moves if move[0] > 60 * expect["calm_after_min"]]
    if "has" in expect:
        counts = Counter(str(lease.owner) for lease in fleet.leases.values())
        assert {str(worker): counts[worker] for worker in fleet.machines} == expect["has"]
    use = [fleet.cpu(worker) for worker in fleet.machines]
    assert max(use) <= expect.get("cpu_max", 100), use
    assert max(use) - min(use) <= expect.get("cpu_spread_max", 100), use


def played(scenario: Scenario, decide: Decide = plan_assignment) -> PlayedFleet:
    """The fleet of a scenario after its time."""
    given = only(scenario.given, required=["workers", "minutes"], optional=GIVEN)
    leases: dict[LeaseKey, Lease] = {}
    intensity: dict[LeaseKey, float] = {}
    machines: dict[WorkerId, Machine] = {}
    for name, described in given["workers"].items():
        worker = only(described, optional=WORKER)
        machines[WorkerId(name)] = Machine(
            worker.get("percent_per_100kbps", 10) / 100,
            tuple(sorted((60 * int(minute), percent) for minute, percent in worker.get("other", {}).items())),
            worker.get("range", 100),
        )
        for number, (kbps, times) in enumerate(_groups(worker.get("leases", []))):
            lease = _lease(f"{name}{number}", name, kbps)
            leases[lease.key], intensity[lease.key] = lease, times
    limits = LeaderLimits(failover_ms=10_000, handoff_timeout_ms=30_000)
    fleet = PlayedFleet(
        machines,
        leases,
        intensity,
        limits,
        given.get("later", {}),
        given.get("noise", 1.0),
        random.Random(given.get("seed", 1)),
        decide,
    )
    fleet.play(given["minutes"])
    return fleet


def _groups(groups: list[str]) -> Iterator[tuple[str, float]]:
    for group in groups:
        number, _, rest = group.partition("x")
        kbps, _, times = rest.partition("*")
        yield from [(kbps, float(times or 1))] * int(number)


def _lease(key: str, owner: str, kbps: str) -> Lease:
    return Lease(
        key=LeaseKey(key),
        shard_id=ShardId(key),
        checkpoint=Position("100"),
        owner=WorkerId(owner),
        throughput_kbps=Decimal(kbps),
        session=LeaseSessionId("first"),
    )
