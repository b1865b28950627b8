"""Does our strategy balance a fleet with fewer moves than the Java KCL's, and how long does a decision take?

    python -m benchmarks.assignment [--json]

Both strategies decide every 20 simulated seconds, on the same fleets with the same noise. Java balances in every third
run, as the KCL does. Moves happen at once; `benchmarks.leaders` compares whole members with a network. `even` is the
time until no load is more than 15 % above the mean. Moves are counted over an hour.
"""

from __future__ import annotations

import argparse
import json
import platform
import random
import statistics
import time
from collections.abc import Callable
from dataclasses import replace
from decimal import Decimal

from benchmarks.leaders.java_leader import JavaLeader
from leasehold.core.assignment.leader_assignment import (
    Decide,
    LeaderLimits,
    LeaderMemory,
    LeaderView,
    plan_assignment,
)
from leasehold.core.coordinator.worker_metrics import CPU, WorkerReport
from leasehold.core.leases.liveness import next_observations
from leasehold.core.model import Lease, LeaseKey, ShardId, WorkerId
from leasehold.core.position import Position

STEP_S, HOUR_STEPS, SEEDS = 20, 180, 8
WALL_S = 1_790_000_000
LIMITS = LeaderLimits(failover_ms=10_000, handoff_timeout_ms=30_000)
Owners = dict[str, str | None]


class Leader:
    """A strategy with the state that it needs between two decisions."""

    def __init__(self, decide: Decide, kbps: dict[str, float]) -> None:
        self._decide, self._kbps, self.memory, self._observations = decide, kbps, LeaderMemory(), {}
        self._steps = 0
        self.took_s = 0.0

    def decide(self, owners: Owners, cpu: dict[str, list[float]]) -> list[tuple[str, str]]:
        """Return the leases to move, and the worker that gets each."""
        self._steps += 1
        now_ms = 1_000_000 + self._steps * STEP_S * 1000
        leases = [
            Lease(
                key=LeaseKey(key),
                shard_id=ShardId(key),
                checkpoint=Position("1"),
                counter=6 * self._steps,  # heartbeats
                owner=None if owner is None else WorkerId(owner),
                throughput_kbps=Decimal(str(round(self._kbps[key], 6))),
            )
            for key, owner in owners.items()
        ]
        self._observations = next_observations(self._observations, leases, now_ms)
        reports = [
            WorkerReport(
                worker=WorkerId(worker),
                updated_s=WALL_S + now_ms // 1000,
                samples={CPU: tuple(samples)},
                ranges={CPU: (100,)},
            )
            for worker, samples in cpu.items()
        ]
        view = LeaderView(
            now_ms=now_ms,
            wall_s=WALL_S + now_ms // 1000,
            leases=leases,
            observations=self._observations,
            reports=reports,
            memory=self.memory,
        )
        began_s = time.process_time()
        plan = self._decide(view, LIMITS)
        self.took_s = time.process_time() - began_s
        self.memory = plan.memory
        return [(line.lease.key, line.to) for line in plan.assign + plan.hand_off]


Change = Callable[[int, Owners, list[str]], None]


def run(
    leader: str, change: Change, *, kbps: dict[str, float], points: float, noise: float, seed: int
) -> tuple[int, int, float]:
    """Run one fleet for an hour. Returns moves, seconds until the load was even, and max/mean load at the end."""
    rng = random.Random(seed)
    workers = [f"w{number:02}" for number in range(10)]
    keys = list(kbps)
    owners: Owners = {key: workers[index % 10] for index, key in enumerate(keys)}
    per_kbps = points / max(1e-9, sum(kbps.values()) / 10)
    samples: dict[str, list[float]] = {}
    decider = Leader(plan_assignment if leader == "ours" else java_leader(seed), kbps)
    moves, even_s, worst = 0, -1, 1.0
    for step in range(HOUR_STEPS):
        change(step, owners, workers)
        loads = {worker: sum(kbps[key] for key in keys if owners[key] == worker) for worker in workers}
        for worker in workers:
            figure = min(100.0, max(0.0, 2 + per_kbps * loads[worker] + rng.gauss(0, noise)))
            samples[worker] = [*samples.get(worker, []), figure][-10:]
        samples = {worker: samples[worker] for worker in workers}
        worst = max(loads.values()) / max(1e-9, sum(loads.values()) / len(loads))
        if even_s < 0 and step > 30 and worst <= 1.15:
            even_s = (step - 30) * STEP_S
        for key, to in decider.decide(dict(owners), samples):
            moves += owners[key] != to
            owners[key] = to
    return moves, even_s, worst


def java_leader(seed: int) -> JavaLeader:
    """Return Java's strategy, as the leader."""
    leader = JavaLeader(random.Random(seed))
    leader.set_leading(is_leading=True)
    return leader


def no_change(_: int, __: Owners, ___: list[str]) -> None:
    """The fleet stays as it is."""


def five_join(step: int, _: Owners, workers: list[str]) -> None:
    """Five workers join after ten minutes."""
    if step == 30:
        workers += [f"x{number}" for number in range(5)]


def one_dies(step: int, owners: Owners, workers: list[str]) -> None:
    """A worker fails after ten minutes, and both leaders know it."""
    if step == 30:
        dead = workers.pop(0)
        owners.update({key: None for key, owner in owners.items() if owner == dead})


def rolling(step: int, owners: Owners, workers: list[str]) -> None:
    """After ten minutes, one worker a minute is replaced."""
    if step >= 30 and step % 3 == 0 and (old := next((name for name in workers if name[0] == "w"), None)):
        workers.remove(old)
        workers.append(old.replace("w", "y"))
        owners.update({key: None for key, owner in owners.items() if owner == old})


def even(number: int = 100, each: float = 100.0) -> dict[str, float]:
    """Return leases with the same throughput."""
    return {f"l{index:03}": each for index in range(number)}


FLEETS: list[tuple[str, Change, dict[str, float], float, float]] = [
    ("at rest, 50 % busy", no_change, even(), 48, 2.0),
    ("at rest, 5 % busy", no_change, even(), 3, 0.5),
    ("an idle stream", no_change, even(each=0.0), 0, 0.3),
    ("five join ten", five_join, even(), 48, 1.0),
    ("one of ten dies", one_dies, even(), 48, 1.0),
    ("skewed shards", no_change, {f"l{index:03}": 600 / (index + 1) ** 0.5 for index in range(100)}, 40, 1.0),
    ("rolling replacement", rolling, even(), 48, 1.0),
]


def decision_ms() -> float:
    """One decision for 10,000 leases and 1,000 workers, half of them new."""
    kbps = {f"l{index:05}": 100.0 + index % 900 for index in range(10_000)}
    owners: Owners = {key: f"w{index % 500:04}" for index, key in enumerate(kbps)}
    cpu = {f"w{number:04}": [50.0] for number in range(1000)}
    leader = Leader(plan_assignment, kbps)
    leader.decide(owners, cpu)
    leader.memory = replace(leader.memory, members_since_ms=0, uneven_since_ms=0)
    assert leader.decide(owners, cpu)
    return leader.took_s * 1000


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", action="store_true")
    as_json = parser.parse_args().json
    rows = []
    for name, change, kbps, points, noise in FLEETS:
        row: dict[str, object] = {"fleet": name}
        for leader in ("ours", "java"):
            results = [
                run(leader, change, kbps=dict(kbps), points=points, noise=noise, seed=seed)
                for seed in range(SEEDS)
            ]
            moves, even_s, worst = (statistics.median(column) for column in zip(*results, strict=True))
            row |= {
                f"{leader} moves": moves,
                f"{leader} even_s": even_s,
                f"{leader} max/mean": round(worst, 3),
            }
        rows.append(row)
    result = {"python": platform.python_version(), "decision_ms": round(decision_ms(), 1), "fleets": rows}
    if as_json:
        print(json.dumps(result))
        return
    print(
        f"one decision, 10,000 leases and 1,000 workers: {result['decision_ms']} ms (Python {result['python']})"
    )
    for row in rows:
        print("  ".join(f"{name}: {value}" for name, value in row.items()))


if __name__ == "__main__":
    main()
