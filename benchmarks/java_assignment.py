"""The decision of the Java KCL's default strategy, written from its description, to be compared with ours. Not shipped.

Workers report processor use; a lease is (owner, throughput). Only what the comparison needs: no caps, one metric, range
100, threshold 10 %, dampening 60 %, overshoot on.
"""

from __future__ import annotations

import heapq
import random
from dataclasses import dataclass, field

THRESHOLD, DAMPENING, RANGE = 0.1, 0.6, 100.0


@dataclass
class _Run:
    """What one decision works on: loads as they would be after each line of it, and the queue of receivers."""

    owners: dict[str, str | None]
    values: dict[str, float]
    mean: float
    target: float
    queue: list[tuple[float, str]]


@dataclass
class JavaLeader:
    """One decision at a time. `owners` maps leases to live owners, or to None if they are expired or free."""

    rng: random.Random
    kbps: dict[str, float]
    runs: int = 0
    moves: list[tuple[str, str]] = field(default_factory=list)

    def decide(self, owners: dict[str, str | None], cpu: dict[str, float]) -> list[tuple[str, str]]:
        """The leases to move, and where to. Balances in every third run."""
        self.moves = []
        mean = sum(cpu.values()) / len(cpu)
        queue = [(-_headroom(cpu[worker], mean), worker) for worker in sorted(cpu)]
        heapq.heapify(queue)
        run = _Run(dict(owners), dict(cpu), mean, sum(self.kbps.values()) / len(cpu), queue)
        for lease in [lease for lease, owner in owners.items() if owner is None]:
            self._give(lease, heapq.heappop(queue)[1], run)
        if self.runs % 3 == 0:
            self._balance(run)
        self.runs += 1
        return self.moves

    def _give(self, lease: str, to: str, run: _Run) -> None:
        run.values[to] += self._added(lease, run)
        run.owners[lease] = to
        self.moves.append((lease, to))
        heapq.heappush(run.queue, (-_headroom(run.values[to], run.mean), to))

    def _added(self, lease: str, run: _Run) -> float:
        if run.target > 0:
            return self.kbps[lease] * run.mean / run.target
        return run.mean / max(1, len(self.kbps) // len(run.values))

    def _balance(self, run: _Run) -> None:
        values, mean = run.values, run.mean
        upper, lower = mean * (1 + THRESHOLD), mean * (1 - THRESHOLD)
        if all(lower <= value <= upper and value <= RANGE for value in values.values()):
            return
        sources = [worker for worker, value in values.items() if value >= upper or value > RANGE]
        sources = sources or [max(values, key=lambda worker: values[worker])]
        held = {
            worker: [lease for lease, owner in run.owners.items() if owner == worker] for worker in sources
        }
        take = {
            worker: self._excess(held[worker], values[worker], mean) for worker in sources if values[worker]
        }
        for source in sorted(take, key=lambda worker: -take[worker]):
            for lease in self._chosen(held[source], take[source]):
                if not run.queue:
                    return
                _, to = heapq.heappop(run.queue)
                if values[to] + self._added(lease, run) > min(mean, RANGE):
                    break  # this receiver is gone for the rest of the run, and so is the source
                if to == source:
                    heapq.heappush(run.queue, (-_headroom(values[to], mean), to))
                else:
                    self._give(lease, to, run)

    def _excess(self, leases: list[str], value: float, mean: float) -> float:
        return sum(self.kbps[lease] for lease in leases) * (value - mean) / value * DAMPENING

    def _chosen(self, leases: list[str], take: float) -> list[str]:
        if not leases:
            return []
        if not sum(self.kbps[lease] for lease in leases):
            return leases[:1]
        leases, chosen = self.rng.sample(leases, len(leases)), []
        for lease in leases:
            if take - self.kbps[lease] > 0:
                take -= self.kbps[lease]
                chosen.append(lease)
        return chosen or [min(leases, key=lambda lease: self.kbps[lease])]


def _headroom(value: float, mean: float) -> float:
    return 1.0 if value == 0 else (mean - value) / value
