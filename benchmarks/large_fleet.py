"""A fleet of very many members and shards: how long until it rests, how many leases move, how many calls it makes.

The members and the lease table are the real ones; nobody reads records: a shard is *served* by a stub that says that it
is alive. Rows that have not changed are taken apart once, for all members together; real ones do it each for itself.
"""

from __future__ import annotations

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
from leasehold.simulation.network import Network, NetworkConditions
from leasehold.simulation.ownership import Ownerships, lease_change, session_in
from leasehold.simulation.process import ProcessState, SimulatedLoop, SimulatedProcess
from leasehold.simulation.table import ProcessRows, RowChange, SimulatedTable

_ALIVE_EVERY_MS: Final = 30_000
_TICK_MS: Final = 1_000
_HOUR_MS: Final = 3_600_000
_START_WITHIN_MS: Final = 10_000


@dataclass(slots=True)
class FleetReport:
    """What a large fleet did."""

    workers: int
    shards: int
    simulated_ms: int = 0
    took_s: float = 0.0
    all_served_ms: int | None = None
    converged_ms: int | None = None
    killed: int = 0
    recovered_ms: int | None = None
    unserved: int = 0
    moves: int = 0
    moves_least: int = 0
    doubled: int = 0
    spread: tuple[int, int] = (0, 0)
    calls: Counter[str] = field(default_factory=Counter)

    def lines(self) -> list[str]:
        """The report, for people."""
        shard_hours = self.shards * self.simulated_ms / _HOUR_MS
        return [
            f"{self.workers:,} members, {self.shards:,} shards, no records: shards are served by a stub",
            f"{self.simulated_ms / 60_000:.1f} simulated minutes in {self.took_s:.0f} s",
            f"every shard served after {_seconds(self.all_served_ms)}, balanced after {_seconds(self.converged_ms)}",
            f"{self.killed} members killed; every shard served again after {_seconds(self.recovered_ms)}",
            f"{self.moves:,} leases changed hands, {self.moves_least:,} at least had to",
            f"leases a member: {self.spread[0]} to {self.spread[1]}; unserved at the end: {self.unserved}",
            f"served twice at one time: {self.doubled}",
            *(
                f"{count / shard_hours:,.0f} {name} calls a shard-hour"
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
    """Start a fleet, let it settle, kill a tenth of it at half time, and look how it recovers."""
    loop = SimulatedLoop()
    began_s = perf_counter()
    with share_parsed_rows():
        fleet = _LargeFleet(loop, FleetReport(workers, shards), seed=seed, mode=mode, show=show)
        try:
            loop.run_until_complete(fleet.live(round(minutes * 60_000)))
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
        # A table of this size is looked at less often; the failover time grows with it.
        self._settings = FleetSettings(
            mode=mode, failover_after=timedelta(seconds=30), refresh_every=timedelta(seconds=5)
        )
        self._stream = ListedStream(even_shards(report.shards))
        self._network = Network(loop, NetworkConditions(random.Random(f"{seed}:weather")))
        self._table = SimulatedTable(self._now_ms, self._rng)
        self._table.on_change = self._row_changed
        self._ownerships = Ownerships()
        self._processes: list[SimulatedProcess] = []

    async def live(self, time_ms: int) -> None:
        """Until the time is over, with a catastrophe in the middle."""
        for number in range(self.report.workers):
            self._network.call_later(self._rng.uniform(0, _START_WITHIN_MS), partial(self._start, number))
        await self._watch(time_ms // 2, is_recovering=False)
        self._kill_a_tenth()
        await self._watch(time_ms, is_recovering=True)
        self._sum_up()

    async def close_tasks(self) -> None:
        """The end of the world."""
        self._loop.kill_all(self._processes)

    async def _watch(self, until_ms: int, *, is_recovering: bool) -> None:
        report, began_ms = self.report, self._now_ms()
        while self._now_ms() < until_ms:
            await asyncio.sleep(_TICK_MS / 1000)
            served = self._served()
            total = sum(served.values())
            if is_recovering:
                if report.recovered_ms is None and total == report.shards:
                    report.recovered_ms = self._now_ms() - began_ms
                continue
            if report.all_served_ms is None and total == report.shards:
                report.all_served_ms = self._now_ms()
                self._show(f"{self._now_ms() / 1000:9.1f}s  every shard is served")
            if total == report.shards and max(served.values()) - min(served.values()) <= 1:
                report.converged_ms = report.converged_ms or self._now_ms()
            elif total == report.shards:
                report.converged_ms = None

    def _kill_a_tenth(self) -> None:
        victims = self._rng.sample(self._running(), max(1, self.report.workers // 10))
        orphans = sum(self._served()[victim] for victim in victims)
        self.report.moves_least += orphans
        self.report.killed = len(victims)
        self._show(f"{self._now_ms() / 1000:9.1f}s  {len(victims)} members killed, with {orphans} leases")
        for victim in victims:
            victim.kill()

    def _sum_up(self) -> None:
        report, served = self.report, self._served()
        report.simulated_ms = self._now_ms()
        report.unserved = report.shards - sum(served.values())
        report.spread = (min(served.values()), max(served.values()))
        report.moves_least += report.shards
        for (dependency, _), count in self._network.calls.items():
            report.calls[dependency.value] += count

    def _served(self) -> Counter[SimulatedProcess]:
        served = Counter(dict.fromkeys(self._running(), 0))
        served.update(each.process for each in self._ownerships.current.values() if each.process.is_alive)
        return served

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
            current = self._ownerships.current.get(held.shard)
            if held.is_valid() and (current is None or current.process is not process):
                self.report.doubled += 1
            waiting = asyncio.ensure_future(held.draining.wait())
            await asyncio.wait({waiting}, timeout=_ALIVE_EVERY_MS / 1000)
            waiting.cancel()

    def _observe(self, process: SimulatedProcess, event: Event) -> None:
        if process.is_alive and isinstance(event, LeaseTaken):
            self.report.moves += 1

    def _row_changed(self, change: RowChange) -> None:
        if session_in(change.before) != session_in(change.after):  # a heartbeat changes nothing here
            self._ownerships.apply(lease_change(change), 0)

    def _now_ms(self) -> int:
        return round(self._loop.time() * 1000)
