"""What leases weigh, and how heavily each worker is loaded with them. A ledger for one decision of a leader.

Of a lease's weight, nineteen parts are its throughput and one part is the average: number matters a little, and an idle
lease is not free. One whose throughput is unknown weighs like an average one; if nothing flows at all, they all weigh
the same. A worker's load is what leads *to* it: a lease that is being handed over counts for its next owner.
"""

from __future__ import annotations

import heapq
from bisect import bisect_left, insort
from collections.abc import Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from typing import Final

from leasehold.core.model import Lease, LeaseKey, WorkerId

# A heartbeat's throughput hangs on how many polls fell between two of them; what matters is what lasts.
STEADY_OVER_MS: Final = 20_000
SHARE_OF_COUNT: Final = 0.05
IDLE_BELOW: Final = 0.01  # of the average


@dataclass(frozen=True, slots=True)
class Weights:
    """What each lease weighs, and which are idle while others are not."""

    of: Mapping[LeaseKey, float]
    kbps: Mapping[LeaseKey, float]
    idle: AbstractSet[LeaseKey] = frozenset()


def smoothed_kbps(
    before: Mapping[LeaseKey, float], leases: Iterable[Lease], passed_ms: int
) -> dict[LeaseKey, float]:
    """What each lease delivers in the long run, where it is known: as before, and a step towards what it says now."""
    share = passed_ms / (passed_ms + STEADY_OVER_MS)
    now = {lease.key: float(lease.throughput_kbps) for lease in leases if lease.throughput_kbps is not None}
    return {
        key: kbps if key not in before else (1 - share) * before[key] + share * kbps
        for key, kbps in now.items()
    }


def weigh_leases(leases: Sequence[Lease], known_kbps: Mapping[LeaseKey, float], *, by_count: bool) -> Weights:
    """The weights of leases that can be read now."""
    average = sum(known_kbps.values()) / len(known_kbps) if known_kbps else 0.0
    kbps = {lease.key: known_kbps.get(lease.key, average) for lease in leases}
    if by_count or average == 0:
        return Weights({lease.key: 1.0 for lease in leases}, kbps)
    weights = {key: (1 - SHARE_OF_COUNT) * value + SHARE_OF_COUNT * average for key, value in kbps.items()}
    return Weights(weights, kbps, {key for key, value in kbps.items() if value < IDLE_BELOW * average})


@dataclass(frozen=True, slots=True)
class Caps:
    """What no worker should be given more than."""

    leases_max: int | None = None
    kbps_max: int | None = None


class WorkerLoads:
    """Loads while a decision is being made. Mutable, and thrown away after it."""

    def __init__(
        self,
        workers: Iterable[WorkerId],
        costs: Mapping[WorkerId, float],
        *,
        hot: AbstractSet[WorkerId],
        doubtful: AbstractSet[WorkerId],
        weights: Weights,
        caps: Caps,
    ) -> None:
        self.loads: dict[WorkerId, float] = dict.fromkeys(sorted(workers), 0.0)
        self._costs = costs
        self._hot = hot
        self._last = hot | doubtful
        self._weights = weights
        self._caps = caps
        self._counts = dict.fromkeys(self.loads, 0)
        self._kbps = dict.fromkeys(self.loads, 0.0)
        self._movable: dict[WorkerId, list[tuple[float, LeaseKey]]] = {worker: [] for worker in self.loads}
        self._light = [self._entry(worker) for worker in self.loads]
        self._heavy: list[tuple[bool, float, WorkerId]] = []
        heapq.heapify(self._light)

    @property
    def mean(self) -> float:
        """The load that each would have if all were even.

        A worker with a single lease above the mean cannot be relieved; it is left out, or nobody would ever seem even.
        """
        loads = dict(self.loads)
        while True:
            mean = sum(loads.values()) / max(1, len(loads))
            alone = [worker for worker, load in loads.items() if load > mean and self._counts[worker] == 1]
            if not alone or len(alone) == len(loads):
                return mean
            for worker in alone:
                del loads[worker]

    def cost(self, worker: WorkerId) -> float:
        """How much more than others a worker pays for the same weight."""
        return self._costs.get(worker, 1.0)

    def added(self, worker: WorkerId, key: LeaseKey) -> float:
        """The load of a worker if it had this lease too."""
        return self.loads[worker] + self.cost(worker) * self._weights.of[key]

    def has_room(self, worker: WorkerId) -> bool:
        """Whether the caps let a worker have one more. The one for throughput is soft, as the KCL's is."""
        caps = self._caps
        return (caps.leases_max is None or self._counts[worker] < caps.leases_max) and (
            caps.kbps_max is None or self._kbps[worker] <= caps.kbps_max
        )

    def put(self, worker: WorkerId, key: LeaseKey, *, movable: bool = False) -> None:
        """Count a lease for a worker."""
        self._change(worker, key, 1)
        if movable:
            insort(self._movable[worker], (self._weights.of[key], key))

    def move(self, key: LeaseKey, source: WorkerId, to: WorkerId) -> None:
        """Count a movable lease for another worker; it will not be moved again in this decision."""
        self._movable[source].remove((self._weights.of[key], key))
        self._change(source, key, -1)
        self._change(to, key, 1)

    def lightest(self, *, but: WorkerId | None = None) -> WorkerId | None:
        """The worker with the smallest load that has room; those above their range, or perhaps dead, come last.

        Ties go to the one with fewer leases, then by name. `but` is passed over.
        """
        passed: list[tuple[bool, float, int, WorkerId]] = []
        found = None
        while self._light and found is None:
            entry = heapq.heappop(self._light)
            worker = entry[-1]
            if entry != self._entry(worker):
                continue  # an older entry of a worker whose load has changed
            if worker != but and self.has_room(worker):
                found = worker
            if worker == but or found is not None:
                passed.append(entry)  # stays in the queue; a full worker leaves it until its load changes
        for entry in passed:
            heapq.heappush(self._light, entry)
        return found

    def rank_heaviest(self) -> None:
        """Begin to name the heaviest workers, those above their range first."""
        self._heavy = [self._heavy_entry(worker) for worker in self.loads if self._movable[worker]]
        heapq.heapify(self._heavy)

    def next_heaviest(self) -> WorkerId | None:
        """The heaviest worker that has movable leases. It is not named again until `put_back`."""
        while self._heavy:
            entry = heapq.heappop(self._heavy)
            if entry == self._heavy_entry(entry[-1]) and self._movable[entry[-1]]:
                return entry[-1]
        return None

    def put_back(self, workers: Iterable[WorkerId]) -> None:
        """Name these workers again."""
        for worker in workers:
            heapq.heappush(self._heavy, self._heavy_entry(worker))

    def nearest(self, source: WorkerId, weight: float) -> list[tuple[float, LeaseKey]]:
        """The movable leases of a worker whose weights are next to `weight`, below and above."""
        movable = self._movable[source]
        at = bisect_left(movable, (weight, LeaseKey("")))
        return movable[max(0, at - 1) : at + 1]

    def _change(self, worker: WorkerId, key: LeaseKey, sign: int) -> None:
        self.loads[worker] += sign * self.cost(worker) * self._weights.of[key]
        self._kbps[worker] += sign * self._weights.kbps[key]
        self._counts[worker] += sign
        heapq.heappush(self._light, self._entry(worker))

    def _entry(self, worker: WorkerId) -> tuple[bool, float, int, WorkerId]:
        return (worker in self._last, self.loads[worker], self._counts[worker], worker)

    def _heavy_entry(self, worker: WorkerId) -> tuple[bool, float, WorkerId]:
        return (worker not in self._hot, -self.loads[worker], worker)
