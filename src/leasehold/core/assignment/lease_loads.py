"""The weight of each lease, and the load of each worker while a leader makes one decision.

The weight of a lease is 95% its throughput and 5% the average throughput: the number of leases counts a little, and an
idle lease is not free. A lease of unknown throughput weighs as much as an average one. If no lease has any throughput,
all weigh the same. A lease in handoff counts for its next owner. The load of a worker is the weight of its leases times
its cost, and the load that no lease causes.
"""

from __future__ import annotations

import heapq
from bisect import bisect_left, insort
from collections.abc import Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from typing import Final

from leasehold.core.model import Lease, LeaseKey, WorkerId

# The throughput in a row depends on how many polls fell between two heartbeats, so it is averaged over this time.
SMOOTH_OVER_MS: Final = 20_000
SHARE_OF_COUNT: Final = 0.05
IDLE_BELOW: Final = 0.01  # of the average


@dataclass(frozen=True, slots=True)
class Weights:
    """The weight and throughput of each lease. `idle` leases have almost no throughput while others have some."""

    of: Mapping[LeaseKey, float]
    kbps: Mapping[LeaseKey, float]
    idle: AbstractSet[LeaseKey] = frozenset()


def smoothed_kbps(
    before: Mapping[LeaseKey, float], leases: Iterable[Lease], passed_ms: int
) -> dict[LeaseKey, float]:
    """The long-term throughput of each lease: the value before, moved a step towards the current one."""
    share = passed_ms / (passed_ms + SMOOTH_OVER_MS)
    now = {lease.key: float(lease.throughput_kbps) for lease in leases if lease.throughput_kbps is not None}
    return {
        key: kbps if key not in before else (1 - share) * before[key] + share * kbps
        for key, kbps in now.items()
    }


def weigh_leases(leases: Sequence[Lease], known_kbps: Mapping[LeaseKey, float], *, by_count: bool) -> Weights:
    """The weights of leases that can be read now. With `by_count` all weigh the same."""
    average = sum(known_kbps.values()) / len(known_kbps) if known_kbps else 0.0
    kbps = {lease.key: known_kbps.get(lease.key, average) for lease in leases}
    if by_count or average == 0:
        return Weights({lease.key: 1.0 for lease in leases}, kbps)
    weights = {key: (1 - SHARE_OF_COUNT) * value + SHARE_OF_COUNT * average for key, value in kbps.items()}
    return Weights(weights, kbps, {key for key, value in kbps.items() if value < IDLE_BELOW * average})


@dataclass(frozen=True, slots=True)
class Cost:
    """What one unit of weight costs a worker, and its load that no lease causes."""

    factor: float = 1.0
    other: float = 0.0


USUAL_COST: Final = Cost()


@dataclass(slots=True)
class Caps:
    """The most leases and the most throughput that one worker may be assigned. `closed` workers get none for now."""

    leases_max: int | None = None
    kbps_max: int | None = None
    closed: set[WorkerId] = field(default_factory=set)


class WorkerLoads:
    """The load of each worker while a decision is made. Mutable; discarded after the decision.

    Workers that are `above_range` or `unreliable` are the last choice for another lease. `most` is the load at which a
    worker reaches its operating range: balancing adds no lease above it.
    """

    def __init__(
        self,
        workers: Iterable[WorkerId],
        costs: Mapping[WorkerId, Cost],
        *,
        above_range: AbstractSet[WorkerId],
        unreliable: AbstractSet[WorkerId],
        weights: Weights,
        caps: Caps,
    ) -> None:
        self.of = {worker: costs.get(worker, USUAL_COST).other for worker in sorted(workers)}
        self.most: Mapping[WorkerId, float] = {}
        self.above_range = above_range
        self._last_choice = above_range | unreliable
        self._costs = costs
        self._weights = weights
        self._caps = caps
        self._counts = dict.fromkeys(self.of, 0)
        self._kbps = dict.fromkeys(self.of, 0.0)
        self._movable: dict[WorkerId, list[tuple[float, LeaseKey]]] = {worker: [] for worker in self.of}
        self._lightest = [self._light_entry(worker) for worker in self.of]
        self._heaviest: list[tuple[bool, float, WorkerId]] = []
        heapq.heapify(self._lightest)

    @property
    def mean(self) -> float:
        """The load of each worker if all were even.

        A worker above the mean that has no lease, or only one, cannot be relieved. It is left out, because with it the
        fleet would never be even.
        """
        loads = dict(self.of)
        while True:
            mean = sum(loads.values()) / max(1, len(loads))
            single = [worker for worker, load in loads.items() if load > mean and self._counts[worker] <= 1]
            if not single or len(single) == len(loads):
                return mean
            for worker in single:
                del loads[worker]

    def cost(self, worker: WorkerId) -> float:
        """The load of this worker for one unit of weight; 1.0 is usual."""
        return self._costs.get(worker, USUAL_COST).factor

    def count(self, worker: WorkerId) -> int:
        """How many leases a worker has."""
        return self._counts[worker]

    def is_last_choice(self, worker: WorkerId) -> bool:
        """Whether the worker should get another lease only if no other worker can."""
        return worker in self._last_choice

    def make_last_choice(self, worker: WorkerId) -> None:
        """Choose the worker only if no other worker can take a lease."""
        self._last_choice = self._last_choice | {worker}
        heapq.heappush(self._lightest, self._light_entry(worker))

    def load_with(self, worker: WorkerId, key: LeaseKey) -> float:
        """The load of a worker if it had this lease too."""
        return self.of[worker] + self.cost(worker) * self._weights.of[key]

    def has_room(self, worker: WorkerId) -> bool:
        """Whether the caps allow one more lease. As in the KCL, the last lease may exceed the cap on throughput."""
        caps = self._caps
        if worker in caps.closed:
            return False
        return (caps.leases_max is None or self._counts[worker] < caps.leases_max) and (
            caps.kbps_max is None or self._kbps[worker] <= caps.kbps_max
        )

    def close(self, worker: WorkerId) -> None:
        """Add no more leases to a worker, until `open_all`."""
        self._caps.closed.add(worker)

    def open_all(self) -> None:
        """Allow all workers to get leases again."""
        for worker in self._caps.closed:
            heapq.heappush(self._lightest, self._light_entry(worker))
        self._caps.closed.clear()

    def add(self, worker: WorkerId, key: LeaseKey, *, movable: bool = False) -> None:
        """Count a lease for a worker."""
        self._change(worker, key, 1)
        if movable:
            insort(self._movable[worker], (self._weights.of[key], key))

    def move(self, key: LeaseKey, source: WorkerId, to: WorkerId) -> None:
        """Count a movable lease for another worker. It cannot be moved again in this decision."""
        self._movable[source].remove((self._weights.of[key], key))
        self._change(source, key, -1)
        self._change(to, key, 1)

    def lightest(self, *, but: WorkerId | None = None) -> WorkerId | None:
        """The worker with the smallest load that has room, other than `but`. Last choices come last.

        Among equals, the worker with fewer leases wins, then the lower name.
        """
        keep: list[tuple[bool, float, int, WorkerId]] = []
        found = None
        while self._lightest and found is None:
            entry = heapq.heappop(self._lightest)
            worker = entry[-1]
            if entry != self._light_entry(worker):
                continue  # outdated: the load of the worker has changed since
            if worker != but and self.has_room(worker):
                found = worker
            if worker == but or found is not None:
                keep.append(entry)  # a worker without room leaves the queue until its load changes
        for entry in keep:
            heapq.heappush(self._lightest, entry)
        return found

    def rank_heaviest(self) -> None:
        """Start the queue of `next_heaviest`: workers above their range first, then by load."""
        self._heaviest = [self._heavy_entry(worker) for worker in self.of if self._movable[worker]]
        heapq.heapify(self._heaviest)

    def next_heaviest(self) -> WorkerId | None:
        """Take the heaviest worker that has movable leases from the queue. `put_back` returns it to the queue."""
        while self._heaviest:
            entry = heapq.heappop(self._heaviest)
            if entry == self._heavy_entry(entry[-1]) and self._movable[entry[-1]]:
                return entry[-1]
        return None

    def put_back(self, workers: Iterable[WorkerId]) -> None:
        """Return workers to the queue of `next_heaviest`."""
        for worker in workers:
            heapq.heappush(self._heaviest, self._heavy_entry(worker))

    def nearest(self, source: WorkerId, weight: float) -> list[tuple[float, LeaseKey]]:
        """The two movable leases of a worker with the weights next to `weight`, one below and one above."""
        movable = self._movable[source]
        at = bisect_left(movable, (weight, LeaseKey("")))
        return movable[max(0, at - 1) : at + 1]

    def _change(self, worker: WorkerId, key: LeaseKey, sign: int) -> None:
        self.of[worker] += sign * self.cost(worker) * self._weights.of[key]
        self._kbps[worker] += sign * self._weights.kbps[key]
        self._counts[worker] += sign
        heapq.heappush(self._lightest, self._light_entry(worker))

    def _light_entry(self, worker: WorkerId) -> tuple[bool, float, int, WorkerId]:
        return (worker in self._last_choice, self.of[worker], self._counts[worker], worker)

    def _heavy_entry(self, worker: WorkerId) -> tuple[bool, float, WorkerId]:
        return (worker not in self.above_range, -self.of[worker], worker)
