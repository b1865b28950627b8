"""Compares our assignment strategy with the Java KCL's: six cases, on the same fleets with the same seeds.

Each fleet is balanced with our strategy first. Then the measured strategy takes over, and the case happens: workers
join, stop, fail or become slow, or a shard becomes hot. At the end the other strategy takes over. It should move
nothing in a fleet that is even.

Measured are: the time until the load is even and stays even for five minutes; the leases that moved, and a lower bound
for this number; the leases that moved although the load was even; the leases that the other strategy moved.
"""

from __future__ import annotations

import asyncio
import statistics
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from benchmarks.fleet_stubs import share_parsed_rows
from benchmarks.leaders.loaded_fleet import EVEN_WITHIN, LoadedFleet, LoadedWorker
from leasehold.core.model import ShardId
from leasehold.simulation.environment.process import SimulatedLoop

_TICK_MS: Final = 1_000
_BALANCES_WITHIN_MS: Final = 240_000
_BEFORE_CASE_MS: Final = 90_000
_MEASURE_MS_MAX: Final = 1_200_000
_STAYS_EVEN_MS: Final = 300_000
_OTHER_STRATEGY_MS: Final = 240_000
_HANDOFFS_FINISH_MS: Final = 60_000  # handoffs in progress when the load becomes even may still finish


async def scale_out(fleet: LoadedFleet) -> None:
    """Half as many workers join at once."""
    await fleet.start(len(fleet.workers) // 2)


async def scale_in(fleet: LoadedFleet) -> None:
    """Three workers of ten are stopped at once."""
    for worker in fleet.rng.sample(fleet.workers, 3 * len(fleet.workers) // 10):
        worker.process.stop.set()


async def rolling_deploy(fleet: LoadedFleet) -> None:
    """One worker a minute is replaced: the new one starts, 15 seconds later the old one is stopped."""
    for old in list(fleet.workers):
        await fleet.start(1)
        await asyncio.sleep(15)
        old.process.stop.set()
        await asyncio.sleep(45)


async def lose_tenth(fleet: LoadedFleet) -> None:
    """A tenth of the workers is killed."""
    for worker in fleet.rng.sample(fleet.workers, max(1, len(fleet.workers) // 10)):
        worker.process.kill()


async def hot_shard(fleet: LoadedFleet) -> None:
    """One shard gets as much load as half a worker has."""
    fleet.kbps[fleet.rng.choice(list(fleet.kbps))] = fleet.even_load() / 2


async def skewed_cpu(fleet: LoadedFleet) -> None:
    """Half of the workers become twice as slow."""
    for worker in fleet.rng.sample(fleet.workers, len(fleet.workers) // 2):
        worker.slowness = 2.0


Case = Callable[[LoadedFleet], Awaitable[None]]
CASES: Final[Mapping[str, Case]] = {
    "scale-out": scale_out,
    "scale-in": scale_in,
    "rolling deploy": rolling_deploy,
    "10 % lost": lose_tenth,
    "a hot shard": hot_shard,
    "skewed CPU": skewed_cpu,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class CaseResult:
    """The figures of one run. `even_ms` is None if the load did not become even; `moved_later` is 0 then."""

    case: str
    is_java: bool
    seed: int
    even_ms: int | None
    moved: int
    moved_min: int
    moved_later: int
    moved_by_other: int


def run_case(case: str, *, is_java: bool, seed: int, workers: int, shards: int) -> CaseResult:
    """Run one case with one strategy."""
    loop = SimulatedLoop()
    with share_parsed_rows():
        fleet = LoadedFleet(loop, seed=seed, workers=workers, shards=shards)
        try:
            return loop.run_until_complete(_run(fleet, case, is_java=is_java, seed=seed, workers=workers))
        finally:
            loop.set_exception_handler(lambda *_: None)
            loop.run_until_complete(_close(loop, fleet))
            loop.close()


async def _close(loop: SimulatedLoop, fleet: LoadedFleet) -> None:
    loop.kill_all([worker.process for worker in fleet.workers])


async def _run(fleet: LoadedFleet, case: str, *, is_java: bool, seed: int, workers: int) -> CaseResult:
    await fleet.start(workers)
    await asyncio.sleep(_BALANCES_WITHIN_MS / 1000)
    fleet.change_strategy(to_java=is_java)
    # Java balances once a minute. The case happens at a random second of that minute.
    await asyncio.sleep(fleet.rng.uniform(1, 2) * _BEFORE_CASE_MS / 1000)
    began_ms = fleet.now_ms()
    before = {worker: set(worker.serving) for worker in fleet.workers}
    await CASES[case](fleet)
    happened_ms, moved_min = fleet.now_ms(), count_moves_min(fleet, before)
    even_ms = await _wait_until_even(fleet, happened_ms + _MEASURE_MS_MAX)
    measured_ms = fleet.now_ms()
    fleet.change_strategy(to_java=not is_java)
    await asyncio.sleep(_OTHER_STRATEGY_MS / 1000)
    fleet.raise_errors()
    times_ms = [at_ms for at_ms, _ in fleet.moves if at_ms >= began_ms]
    moved_ms = [at_ms for at_ms in times_ms if at_ms <= measured_ms]
    return CaseResult(
        case=case,
        is_java=is_java,
        seed=seed,
        even_ms=None if even_ms is None else max(0, even_ms - happened_ms),
        moved=len(moved_ms),
        moved_min=moved_min,
        moved_later=0
        if even_ms is None
        else sum(at_ms > even_ms + _HANDOFFS_FINISH_MS for at_ms in moved_ms),
        moved_by_other=len(times_ms) - len(moved_ms),
    )


async def _wait_until_even(fleet: LoadedFleet, until_ms: int) -> int | None:
    """Return when the load became even and stayed even for five minutes; None if it did not."""
    even_ms: int | None = None
    while fleet.now_ms() < until_ms:
        even_ms = (even_ms or fleet.now_ms()) if fleet.is_even() else None
        if even_ms is not None and fleet.now_ms() >= even_ms + _STAYS_EVEN_MS:
            return even_ms
        await asyncio.sleep(_TICK_MS / 1000)
    return None


def count_moves_min(fleet: LoadedFleet, before: Mapping[LoadedWorker, set[ShardId]]) -> int:
    """Return a lower bound for the number of moves: all leases of lost workers, and the excess of the others.

    The heaviest leases that fit into another worker count first, so no strategy needs fewer moves, except by exchanging
    leases to make room for heavier ones.
    """
    most = (1 + EVEN_WITHIN) * fleet.even_load()
    remaining = fleet.remaining()
    loads = {
        worker: worker.slowness * sum(fleet.kbps[shard] for shard in before.get(worker, ()))
        for worker in remaining
    }
    moves = sum(len(shards) for worker, shards in before.items() if worker not in loads)
    for worker, load in loads.items():
        room_kbps = max((most - loads[other]) / other.slowness for other in remaining if other is not worker)
        fitting = sorted(
            (fleet.kbps[shard] for shard in before.get(worker, ()) if fleet.kbps[shard] <= room_kbps),
            reverse=True,
        )
        excess = load - most
        for kbps in fitting:
            if excess <= 0:
                break
            excess -= worker.slowness * kbps
            moves += 1
    return moves


def table_lines(results: Sequence[CaseResult]) -> list[str]:
    """Return the comparison as a table: medians over the seeds, the worst value in brackets."""
    lines = [
        "| case | strategy | even after | leases moved | lower bound | moved when even | moved by the other |",
        "|---|---|---|---|---|---|---|",
    ]
    for case in dict.fromkeys(each.case for each in results):
        for is_java in (False, True):
            rows = [each for each in results if each.case == case and each.is_java is is_java]
            lines.append(f"| {case} | {'Java' if is_java else 'ours'} | {' | '.join(_cells(rows))} |")
    return lines


def _cells(rows: Sequence[CaseResult]) -> list[str]:
    never_ms = 10**9
    even = [never_ms if row.even_ms is None else row.even_ms for row in rows]
    return [
        _median_and_worst(even, lambda ms: "never" if ms == never_ms else f"{ms / 1000:.0f} s"),
        _median_and_worst([row.moved for row in rows]),
        _median_and_worst([row.moved_min for row in rows]),
        _median_and_worst([row.moved_later for row in rows]),
        _median_and_worst([row.moved_by_other for row in rows]),
    ]


def _median_and_worst(values: Sequence[int], show: Callable[[int], str] = str) -> str:
    return f"{show(statistics.median_high(values))} ({show(max(values))})"
