"""Our leader and the Java KCL's, in the same fleets on the same seeds: six stories, and what each makes of them.

A fleet comes to rest under our leader. Then the one that is looked at takes over, and something happens. In the end the
other one takes over: in a fleet that is even it should find nothing to move.

What is told: when the fleet was even and stayed so for five minutes, counted from the last thing that happened to it;
how many leases moved, and how many at least had to; how many moved when it was even already, and how many when the
other leader took over.
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
from leasehold.simulation.process import SimulatedLoop

_TICK_MS: Final = 1_000
_COMES_TO_REST_MS: Final = 240_000
_TAKES_OVER_MS: Final = 90_000
_WATCHED_MS: Final = 1_200_000  # at most
_STAYS_EVEN_MS: Final = 300_000  # and then it is believed to rest
_OTHER_LEADS_MS: Final = 240_000
_STILL_MOVING_MS: Final = 60_000  # handoffs that are under way when a fleet becomes even may end


async def scale_out(fleet: LoadedFleet) -> None:
    """Half as many workers join, at once."""
    await fleet.start(len(fleet.workers) // 2)


async def scale_in(fleet: LoadedFleet) -> None:
    """Three of ten are told to stop, at once."""
    for worker in fleet.rng.sample(fleet.workers, 3 * len(fleet.workers) // 10):
        worker.process.stop.set()


async def rolling_deploy(fleet: LoadedFleet) -> None:
    """Worker after worker is replaced, one a minute: the new one starts, and then the old one stops."""
    for old in list(fleet.workers):
        await fleet.start(1)
        await asyncio.sleep(15)
        old.process.stop.set()
        await asyncio.sleep(45)


async def loss(fleet: LoadedFleet) -> None:
    """A tenth of the workers is killed."""
    for worker in fleet.rng.sample(fleet.workers, max(1, len(fleet.workers) // 10)):
        worker.process.kill()


async def hot_shard(fleet: LoadedFleet) -> None:
    """One shard delivers as much as half a worker has to do."""
    fleet.kbps[fleet.rng.choice(list(fleet.kbps))] = fleet.even_load() / 2


async def skewed_cpu(fleet: LoadedFleet) -> None:
    """Half of the workers become twice as slow."""
    for worker in fleet.rng.sample(fleet.workers, len(fleet.workers) // 2):
        worker.slowness = 2.0


Story = Callable[[LoadedFleet], Awaitable[None]]
STORIES: Final[Mapping[str, Story]] = {
    "scale-out": scale_out,
    "scale-in": scale_in,
    "rolling deploy": rolling_deploy,
    "10 % lost": loss,
    "a hot shard": hot_shard,
    "skewed CPU": skewed_cpu,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class StoryResult:
    """What became of one fleet. `even_ms` is None if it did not become even; there is no later then."""

    story: str
    is_java: bool
    seed: int
    even_ms: int | None
    moved: int
    moved_least: int
    moved_later: int
    moved_by_other: int


def run_story(story: str, *, is_java: bool, seed: int, workers: int, shards: int) -> StoryResult:
    """Let one story happen to one fleet under one leader."""
    loop = SimulatedLoop()
    with share_parsed_rows():
        fleet = LoadedFleet(loop, seed=seed, workers=workers, shards=shards)
        try:
            return loop.run_until_complete(_live(fleet, story, is_java=is_java, seed=seed, workers=workers))
        finally:
            loop.set_exception_handler(lambda *_: None)
            loop.run_until_complete(_bury(loop, fleet))
            loop.close()


async def _bury(loop: SimulatedLoop, fleet: LoadedFleet) -> None:
    loop.kill_all([worker.process for worker in fleet.workers])


async def _live(fleet: LoadedFleet, story: str, *, is_java: bool, seed: int, workers: int) -> StoryResult:
    await fleet.start(workers)
    await asyncio.sleep(_COMES_TO_REST_MS / 1000)
    fleet.change_leader(to_java=is_java)
    # Java balances once a minute: what happens must not happen at the same moment of that minute in each seed.
    await asyncio.sleep(fleet.rng.uniform(1, 2) * _TAKES_OVER_MS / 1000)
    began_ms = fleet.now_ms()
    before = {worker: set(worker.serving) for worker in fleet.workers}
    await STORIES[story](fleet)
    happened_ms, least = fleet.now_ms(), least_moves(fleet, before)
    even_ms = await _watched(fleet, happened_ms + _WATCHED_MS)
    watched_ms = fleet.now_ms()
    fleet.change_leader(to_java=not is_java)
    await asyncio.sleep(_OTHER_LEADS_MS / 1000)
    fleet.raise_bugs()
    times_ms = [at_ms for at_ms, _ in fleet.moves if at_ms >= began_ms]
    moved_ms = [at_ms for at_ms in times_ms if at_ms <= watched_ms]
    return StoryResult(
        story=story,
        is_java=is_java,
        seed=seed,
        even_ms=None if even_ms is None else max(0, even_ms - happened_ms),
        moved=len(moved_ms),
        moved_least=least,
        moved_later=0 if even_ms is None else sum(at_ms > even_ms + _STILL_MOVING_MS for at_ms in moved_ms),
        moved_by_other=len(times_ms) - len(moved_ms),
    )


async def _watched(fleet: LoadedFleet, until_ms: int) -> int | None:
    """When the fleet became even, and stayed so for five minutes; None if it did not in time."""
    even_ms: int | None = None
    while fleet.now_ms() < until_ms:
        even_ms = (even_ms or fleet.now_ms()) if fleet.is_even() else None
        if even_ms is not None and fleet.now_ms() >= even_ms + _STAYS_EVEN_MS:
            return even_ms
        await asyncio.sleep(_TICK_MS / 1000)
    return None


def least_moves(fleet: LoadedFleet, before: Mapping[LoadedWorker, set[ShardId]]) -> int:
    """How many leases have to move at least: all of workers that left, and of the others what is above the band.

    The heaviest that another has room for count first: nobody can do with fewer, but by making room for heavier ones.
    """
    most = (1 + EVEN_WITHIN) * fleet.even_load()
    staying = fleet.staying()
    loads = {
        worker: worker.slowness * sum(fleet.kbps[shard] for shard in before.get(worker, ()))
        for worker in staying
    }
    moves = sum(len(shards) for worker, shards in before.items() if worker not in loads)
    for worker, load in loads.items():
        room_kbps = max((most - loads[other]) / other.slowness for other in staying if other is not worker)
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


def table_lines(played: Sequence[StoryResult]) -> list[str]:
    """The comparison as a table: medians over the seeds, the worst in brackets."""
    lines = [
        "| story | leader | even after | leases moved | at least | moved when even | moved by the other |",
        "|---|---|---|---|---|---|---|",
    ]
    for story in dict.fromkeys(each.story for each in played):
        for is_java in (False, True):
            rows = [each for each in played if each.story == story and each.is_java is is_java]
            lines.append(f"| {story} | {'Java' if is_java else 'ours'} | {' | '.join(_cells(rows))} |")
    return lines


def _cells(rows: Sequence[StoryResult]) -> list[str]:
    never_ms = 10**9
    even = [never_ms if row.even_ms is None else row.even_ms for row in rows]
    return [
        _median_and_worst(even, lambda ms: "never" if ms == never_ms else f"{ms / 1000:.0f} s"),
        _median_and_worst([row.moved for row in rows]),
        _median_and_worst([row.moved_least for row in rows]),
        _median_and_worst([row.moved_later for row in rows]),
        _median_and_worst([row.moved_by_other for row in rows]),
    ]


def _median_and_worst(values: Sequence[int], show: Callable[[int], str] = str) -> str:
    return f"{show(statistics.median_high(values))} ({show(max(values))})"
