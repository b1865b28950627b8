"""Does our leader even a fleet out with fewer moves than the Java KCL's, and how long does it think?

Both decide every 20 simulated seconds on the same fleets and the same noise; Java balances in every third run, as it
does. Moves are carried out at once: for whole members and a network see `leasehold simulate --leaders`. `even` is the
time until no load is more than 15 % above the mean; moves are counted over an hour. Run it with
`python benchmarks/assignment.py [--json]`.
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
    """A decision, fed with what the comparison knows."""

    def __init__(self, decide: Decide, kbps: dict[str, float]) -> None:
        self._decide, self._kbps, self.memory, self._observations = decide, kbps, LeaderMemory(), {}
        self._steps = 0
        self.took_s = 0.0

    def decide(self, owners: Owners, cpu: dict[str, list[float]]) -> list[tuple[str, str]]:
        """The leases to move, and where to."""
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


Story = Callable[[int, Owners, list[str]], None]


def run(
    leader: str, story: Story, *, kbps: dict[str, float], points: float, noise: float, seed: int
) -> tuple[int, int, float]:
    """Play one fleet for an hour: moves, seconds until it was even, and how even it was at the end."""
    rng = random.Random(seed)
    workers = [f"w{number:02}" for number in range(10)]
    keys = list(kbps)
    owners: Owners = {key: workers[place % 10] for place, key in enumerate(keys)}
    per_kbps = points / max(1e-9, sum(kbps.values()) / 10)
    samples: dict[str, list[float]] = {}
    decider = Leader(plan_assignment if leader == "ours" else java_leader(seed), kbps)
    moves, even_s, worst = 0, -1, 1.0
    for step in range(HOUR_STEPS):
        story(step, owners, workers)
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
    """The other leader, leading."""
    leader = JavaLeader(random.Random(seed))
    leader.lead(is_leading=True)
    return leader


def nothing(_: int, __: Owners, ___: list[str]) -> None:
    """A fleet at rest."""


def five_join(step: int, _: Owners, workers: list[str]) -> None:
    """Ten minutes in, five workers join."""
    if step == 30:
        workers += [f"x{number}" for number in range(5)]


def one_dies(step: int, owners: Owners, workers: list[str]) -> None:
    """Ten minutes in, a worker dies, and both leaders have noticed."""
    if step == 30:
        dead = workers.pop(0)
        owners.update({key: None for key, owner in owners.items() if owner == dead})


def rolling(step: int, owners: Owners, workers: list[str]) -> None:
    """Ten minutes in, one worker after the other is replaced, a minute apart."""
    if step >= 30 and step % 3 == 0 and (old := next((name for name in workers if name[0] == "w"), None)):
        workers.remove(old)
        workers.append(old.replace("w", "y"))
        owners.update({key: None for key, owner in owners.items() if owner == old})


def even(number: int = 100, each: float = 100.0) -> dict[str, float]:
    """Leases of one throughput."""
    return {f"l{place:03}": each for place in range(number)}


FLEETS: list[tuple[str, Story, dict[str, float], float, float]] = [
    ("at rest, 50 % busy", nothing, even(), 48, 2.0),
    ("at rest, 5 % busy", nothing, even(), 3, 0.5),
    ("an idle stream", nothing, even(each=0.0), 0, 0.3),
    ("five join ten", five_join, even(), 48, 1.0),
    ("one of ten dies", one_dies, even(), 48, 1.0),
    ("skewed shards", nothing, {f"l{place:03}": 600 / (place + 1) ** 0.5 for place in range(100)}, 40, 1.0),
    ("rolling replacement", rolling, even(), 48, 1.0),
]


def decision_ms() -> float:
    """One decision for 10,000 leases and 1,000 workers, half of them new."""
    kbps = {f"l{place:05}": 100.0 + place % 900 for place in range(10_000)}
    owners: Owners = {key: f"w{place % 500:04}" for place, key in enumerate(kbps)}
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
    for name, story, kbps, points, noise in FLEETS:
        row: dict[str, object] = {"fleet": name}
        for leader in ("ours", "java"):
            played = [
                run(leader, story, kbps=dict(kbps), points=points, noise=noise, seed=seed)
                for seed in range(SEEDS)
            ]
            moves, even_s, worst = (statistics.median(column) for column in zip(*played, strict=True))
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
