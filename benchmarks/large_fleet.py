"""A simulated fleet with very many members and shards: how fast it balances and recovers, and how many calls it makes.

    python -m benchmarks.large_fleet [--workers 1000] [--shards 10000] [--minutes 6] [--mode leader] [--seed 0]

The members are the shipped ones; time is virtual. No records are read: a stub serves each shard and reports progress.
Unchanged rows are parsed once for all members, which real members cannot do. A tenth of the members is killed at half
time.
"""

from __future__ import annotations

import argparse
import asyncio
import random
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import timedelta
from functools import partial
from time import perf_counter
from typing import Final

from benchmarks.fleet_stubs import ListedStream, even_shards, share_parsed_rows
from leasehold.config.settings import FleetSettings, Mode
from leasehold.core.events import Event, LeaseTaken
from leasehold.core.model import InitialPosition, WorkerId
from leasehold.core.position import TRIM_HORIZON
from leasehold.fleet.held_lease import HeldLease
from leasehold.fleet.member import Member, MemberPorts
from leasehold.fleet.streams import Streams
from leasehold.fleet.table.lease_table import LeaseTable
from leasehold.simulation.environment.network import Network, NetworkConditions
from leasehold.simulation.environment.ownership import Ownerships, lease_change, session_in
from leasehold.simulation.environment.process import ProcessState, SimulatedLoop, SimulatedProcess
from leasehold.simulation.environment.table import ProcessRows, RowChange, SimulatedTable

_PROGRESS_EVERY_MS: Final = 30_000
_TICK_MS: Final = 1_000
_HOUR_MS: Final = 3_600_000
_START_WITHIN_MS: Final = 10_000


@dataclass(slots=True)
class FleetReport:
    """The figures of one run."""

    workers: int
    shards: int
    simulated_ms: int = 0
    took_s: float = 0.0
    all_owned_ms: int | None = None
    balanced_ms: int | None = None
    killed: int = 0
    recovered_ms: int | None = None
    unowned: int = 0
    moves: int = 0
    moves_min: int = 0
    owned_twice: int = 0
    spread: tuple[int, int] = (0, 0)
    calls: Counter[str] = field(default_factory=Counter)

    def lines(self) -> list[str]:
        """Return the report as text."""
        shard_hours = self.shards * self.simulated_ms / _HOUR_MS
        return [
            f"{self.workers:,} members, {self.shards:,} shards, no records: a stub serves each shard",
            f"{self.simulated_ms / 60_000:.1f} simulated minutes in {self.took_s:.0f} s",
            f"every shard owned after {_seconds(self.all_owned_ms)}, balanced after {_seconds(self.balanced_ms)}",
            f"{self.killed} members killed; every shard owned again after {_seconds(self.recovered_ms)}",
            f"{self.moves:,} leases taken; at least {self.moves_min:,} had to be",
            f"leases per member: {self.spread[0]} to {self.spread[1]}; without an owner at the end: {self.unowned}",
            f"served by two members at a time: {self.owned_twice}",
            *(
                f"{count / shard_hours:,.0f} calls to {name} per shard-hour"
                for name, count in sorted(self.calls.items())
            ),
        ]


def _seconds(time_ms: int | None) -> str:
    return "never" if time_ms is None else f"{time_ms / 1000:.0f} s"


def simulate_large_fleet(
    *,
    seed: int,
    workers: int,
    shards: int,
    minutes: float,
    mode: Mode = Mode.LEADER,
    show: Callable[[str], object] = lambda _: None,
) -> FleetReport:
    """Start a fleet, kill a tenth of it at half time, and measure how it balances and recovers."""
    loop = SimulatedLoop()
    began_s = perf_counter()
    with share_parsed_rows():
        fleet = _LargeFleet(loop, FleetReport(workers, shards), seed=seed, mode=mode, show=show)
        try:
            loop.run_until_complete(fleet.run(round(minutes * 60_000)))
        finally:
            loop.set_exception_handler(lambda *_: None)
            loop.run_until_complete(fleet.close_tasks())
            loop.close()
    fleet.report.took_s = perf_counter() - began_s
    return fleet.report


class _LargeFleet:
    def __init__(
        self,
        loop: SimulatedLoop,
        report: FleetReport,
        *,
        seed: int,
        mode: Mode,
        show: Callable[[str], object],
    ) -> None:
        self.report = report
        self._loop = loop
        self._seed = seed
        self._show = show
        self._rng = random.Random(f"{seed}:fleet")
        # A large table is read less often, so the failover time is longer.
        self._settings = FleetSettings(
            mode=mode, failover_after=timedelta(seconds=30), refresh_every=timedelta(seconds=5)
        )
        self._stream = ListedStream(even_shards(report.shards))
        self._network = Network(loop, NetworkConditions(random.Random(f"{seed}:weather")))
        self._table = SimulatedTable(self._now_ms, self._rng)
        self._table.on_change = self._row_changed
        self._ownerships = Ownerships()
        self._processes: list[SimulatedProcess] = []

    async def run(self, time_ms: int) -> None:
        """Run the fleet, and kill a tenth of it at half time."""
        for number in range(self.report.workers):
            self._network.call_later(self._rng.uniform(0, _START_WITHIN_MS), partial(self._start, number))
        await self._measure(time_ms // 2, is_recovering=False)
        self._kill_tenth()
        await self._measure(time_ms, is_recovering=True)
        self._complete_report()

    async def close_tasks(self) -> None:
        """Kill all members and close their tasks."""
        self._loop.kill_all(self._processes)

    async def _measure(self, until_ms: int, *, is_recovering: bool) -> None:
        report, began_ms = self.report, self._now_ms()
        while self._now_ms() < until_ms:
            await asyncio.sleep(_TICK_MS / 1000)
            owned = self._count_owned()
            total = sum(owned.values())
            if is_recovering:
                if report.recovered_ms is None and total == report.shards:
                    report.recovered_ms = self._now_ms() - began_ms
                continue
            if report.all_owned_ms is None and total == report.shards:
                report.all_owned_ms = self._now_ms()
                self._show(f"{self._now_ms() / 1000:9.1f}s  every shard has an owner")
            if total == report.shards and max(owned.values()) - min(owned.values()) <= 1:
                report.balanced_ms = report.balanced_ms or self._now_ms()
            elif total == report.shards:
                report.balanced_ms = None

    def _kill_tenth(self) -> None:
        victims = self._rng.sample(self._running(), max(1, self.report.workers // 10))
        orphans = sum(self._count_owned()[victim] for victim in victims)
        self.report.moves_min += orphans
        self.report.killed = len(victims)
        self._show(f"{self._now_ms() / 1000:9.1f}s  {len(victims)} members killed, with {orphans} leases")
        for victim in victims:
            victim.kill()

    def _complete_report(self) -> None:
        report, owned = self.report, self._count_owned()
        report.simulated_ms = self._now_ms()
        report.unowned = report.shards - sum(owned.values())
        report.spread = (min(owned.values()), max(owned.values()))
        report.moves_min += report.shards
        for (dependency, _), count in self._network.calls.items():
            report.calls[dependency.value] += count

    def _count_owned(self) -> Counter[SimulatedProcess]:
        owned = Counter(dict.fromkeys(self._running(), 0))
        owned.update(each.process for each in self._ownerships.current.values() if each.process.is_alive)
        return owned

    def _running(self) -> list[SimulatedProcess]:
        return [process for process in self._processes if process.state is ProcessState.RUNNING]

    def _start(self, number: int) -> None:
        process = SimulatedProcess(f"p{number}", WorkerId(f"w-{number}"), self._loop)
        self._processes.append(process)
        process.start(lambda: self._member(process).run(process.stop))

    def _member(self, process: SimulatedProcess) -> Member:
        return Member(
            MemberPorts(
                table=LeaseTable(ProcessRows(self._table, self._network, process)),
                streams=Streams.single(self._stream, "orders", InitialPosition(TRIM_HORIZON)),
                clock=process.clock,
                rng=random.Random(f"{self._seed}:{process.name}"),
                observe=lambda event: self._observe(process, event),
            ),
            application="billing",
            worker=process.worker,
            serve=lambda held: self._serve(process, held),
            settings=self._settings,
        )

    async def _serve(self, process: SimulatedProcess, held: HeldLease) -> None:
        while not held.draining.is_set():
            held.note_progress()
            current = self._ownerships.current.get(held.lease.key)
            if held.is_valid() and (current is None or current.process is not process):
                self.report.owned_twice += 1
            waiting = asyncio.ensure_future(held.draining.wait())
            await asyncio.wait({waiting}, timeout=_PROGRESS_EVERY_MS / 1000)
            waiting.cancel()

    def _observe(self, process: SimulatedProcess, event: Event) -> None:
        if process.is_alive and isinstance(event, LeaseTaken):
            self.report.moves += 1

    def _row_changed(self, change: RowChange) -> None:
        if session_in(change.before) != session_in(change.after):  # a heartbeat changes nothing here
            self._ownerships.apply(lease_change(change), 0)

    def _now_ms(self) -> int:
        return round(self._loop.time() * 1000)


def main() -> None:
    """Run and print the report."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--workers", type=int, default=1_000)
    parser.add_argument("--shards", type=int, default=10_000)
    parser.add_argument("--minutes", type=float, default=6.0, help="simulated minutes")
    parser.add_argument("--mode", choices=[mode.value for mode in (Mode.PEER, Mode.LEADER)], default="leader")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    report = simulate_large_fleet(
        seed=options.seed,
        workers=options.workers,
        shards=options.shards,
        minutes=options.minutes,
        mode=Mode(options.mode),
        show=print,
    )
    print("\n".join(report.lines()))


if __name__ == "__main__":
    main()
