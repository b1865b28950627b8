"""One member of a fleet: joins it in the way that it finds, serves what is its own, and leaves in good order.

The loops are linear code around plans of `core`. Which leases are ours is the business of a way of sharing out
(`peer_mode`, `leader_mode`); to keep and serve them, of `holdings`. A step that the world makes fail is told
(`StepFailed`) and tried again. A bug is not survived: it ends the member, and its leases expire.

Reaches the outside only through ports, a clock and a random source that are passed in. Knows neither handlers nor
Spark: `serve` does something with a lease until it returns, or until it is cancelled because the lease was lost.
"""

from __future__ import annotations

import asyncio
import random
from dataclasses import dataclass, replace
from functools import partial
from typing import Final

from leasehold.core.events import MemberStarted, MemberStopped, Observe
from leasehold.core.fleet_mode import PEERS, FleetMode, Place, conclude_mode
from leasehold.core.leader_assignment import Decide, plan_assignment
from leasehold.core.model import WorkerId
from leasehold.fleet.holdings import Holdings
from leasehold.fleet.holdings import Serve as Serve
from leasehold.fleet.leader_mode import LeaderMode
from leasehold.fleet.leadership import Leadership
from leasehold.fleet.lease_table import LeaseTable
from leasehold.fleet.peer_mode import PeerMode
from leasehold.fleet.reporting import Reporter
from leasehold.fleet.sharing import Sharing
from leasehold.fleet.steps import Steps, cancelled, first_of
from leasehold.fleet.streams import Streams
from leasehold.fleet.tending import Tending
from leasehold.fleet.upgrade import UpgradeWatch
from leasehold.ports import Clock, LoadMeter
from leasehold.settings import FleetSettings, Mode, milliseconds

# After a look that could not take all it wanted, and after the end of a shard, the next look is this far away.
LOOK_AGAIN_AFTER_MS: Final = 300
LOOK_PAUSE_MIN_MS: Final = 100  # even when looks fail, or take longer than they are apart
# A fleet changes over between generations of the KCL once in its life; Java looks for that as often.
CHANGE_OVER_EVERY_MS: Final = 60_000
LOOK_FOR_TABLES_EVERY_MS: Final = 300_000


@dataclass(slots=True)
class _Part:
    """How this member takes part at the moment, and what runs for it."""

    mode: FleetMode
    sharing: Sharing
    reporter: Reporter | None
    tasks: list[asyncio.Task[None]]


class Member:
    """A process's part in its fleet. `run` is its whole life."""

    def __init__(
        self,
        *,
        table: LeaseTable,
        streams: Streams,
        application: str,
        worker: WorkerId,
        serve: Serve,
        settings: FleetSettings,
        clock: Clock,
        rng: random.Random,
        observe: Observe,
        load: LoadMeter | None = None,
        decide: Decide = plan_assignment,
    ) -> None:
        self._table = table
        self._application = application
        self._streams = streams
        self._worker = worker
        self._serve = serve
        self._settings = settings
        self._clock = clock
        self._rng = rng
        self._observe = observe
        self._load = load
        self._decide = decide
        self._steps = Steps(clock, rng, observe)
        self._tending = Tending(table, streams, settings, self._steps)
        self._mode = PEERS

    async def run(self, stop: asyncio.Event) -> None:
        """Live until `stop` is set; then let every shard finish what it has in hand, and give everything back."""
        self._observe(MemberStarted(self._worker, self._application, ",".join(self._streams.names)))
        released = 0
        try:
            await self._steps.until_it_works("start", self._start, stop)
            async with asyncio.TaskGroup() as group:
                holdings = Holdings(
                    table=self._table,
                    worker=self._worker,
                    serve=self._serve,
                    settings=self._settings,
                    steps=self._steps,
                    group=group,
                )
                try:
                    await self._take_part(holdings, group, stop)
                finally:
                    released = holdings.released
        finally:
            self._observe(MemberStopped(self._worker, released))

    async def _start(self) -> None:
        await self._table.prepare()
        self._mode = await self._found_mode()
        await self._tending.join()

    async def _found_mode(self) -> FleetMode:
        common, was_led = self._table.common, self._mode.has_leader
        must_know = self._settings.mode is Mode.AUTO or self._mode.lock_in is Place.OWN_TABLES
        find = common.find_changes if was_led else common.find
        found = await find(must_know=must_know)
        # A fleet that had a leader a moment ago has one still, though its lock may just be free.
        found = replace(found, has_lock=found.has_lock or was_led)
        return conclude_mode(found, self._settings.mode, self._application)

    async def _take_part(self, holdings: Holdings, group: asyncio.TaskGroup, stop: asyncio.Event) -> None:
        part = self._begin_part(self._mode, holdings, group)
        keeping = [
            group.create_task(holdings.renew_for_ever()),
            group.create_task(self._audit_loop(part)),
            group.create_task(self._clean_up_loop(part)),
            group.create_task(self._tending.join_rest()),
            group.create_task(self._change_over_loop(part, holdings, group)),
        ]
        await self._look_loop(part, holdings, stop)
        # First of all nobody should count on us any more; the leases are given back while others look already.
        await cancelled(keeping.pop())
        await self._end_part(part)
        await holdings.drain(await part.sharing.heirs(), part.sharing.tell_heir)
        await self._steps.take("give back the rest", part.sharing.give_back_rest)
        await cancelled(*keeping)

    # -- ways of sharing out -----------------------------------------------------------------------------------

    def _begin_part(self, mode: FleetMode, holdings: Holdings, group: asyncio.TaskGroup) -> _Part:
        sharing = self._led(mode, holdings) if mode.has_leader else self._among_peers(holdings)
        tasks = [group.create_task(sharing.run())]
        reporter = None
        if mode.reports:
            reporter = Reporter(
                common=self._table.common,
                place=mode.reports_in,
                worker=self._worker,
                meter=self._load,
                holdings=holdings,
                steps=self._steps,
            )
            tasks.append(group.create_task(reporter.run()))
        if mode.is_upgrading:
            watch = UpgradeWatch(common=self._table.common, mode=mode, worker=self._worker, steps=self._steps)
            tasks.append(group.create_task(watch.run()))
        return _Part(mode, sharing, reporter, tasks)

    def _among_peers(self, holdings: Holdings) -> Sharing:
        return PeerMode(
            table=self._table,
            streams=self._streams,
            holdings=holdings,
            worker=self._worker,
            settings=self._settings,
            clock=self._clock,
            rng=self._rng,
            observe=self._observe,
        )

    def _led(self, mode: FleetMode, holdings: Holdings) -> Sharing:
        common = self._table.common
        return LeaderMode(
            table=self._table,
            streams=self._streams,
            holdings=holdings,
            mode=mode,
            leadership=Leadership(common, mode.lock_in, self._worker, self._settings, self._steps),
            worker=self._worker,
            settings=self._settings,
            steps=self._steps,
            decide=self._decide,
        )

    async def _end_part(self, part: _Part) -> None:
        await cancelled(*part.tasks)
        if part.reporter is not None:
            await self._steps.take("withdraw the report", part.reporter.withdraw)
        await part.sharing.leave()

    async def _change_over_loop(self, part: _Part, holdings: Holdings, group: asyncio.TaskGroup) -> None:
        """Follow the fleet when it changes over, from peers to a leader or back, or from three tables to one."""
        checked_ms = self._clock.now_ms()
        while self._settings.mode is not Mode.PEER:
            await self._clock.sleep_ms(CHANGE_OVER_EVERY_MS)
            now_ms = self._clock.now_ms()
            # Looks show everything but whether somebody has made tables of KCL 3.0 to 3.4 since.
            if not part.sharing.is_sure_of_mode() or now_ms - checked_ms >= LOOK_FOR_TABLES_EVERY_MS:
                await self._steps.take("change over", partial(self._change_over, part, holdings, group))
                checked_ms = now_ms

    async def _change_over(self, part: _Part, holdings: Holdings, group: asyncio.TaskGroup) -> None:
        mode = await self._found_mode()
        if mode == part.mode:
            part.sharing.note_mode(mode)
        else:
            await self._end_part(part)
            self._mode, begun = mode, self._begin_part(mode, holdings, group)
            part.mode, part.sharing, part.reporter, part.tasks = (
                mode,
                begun.sharing,
                begun.reporter,
                begun.tasks,
            )

    # -- looking -----------------------------------------------------------------------------------------------

    async def _look_loop(self, part: _Part, holdings: Holdings, stop: asyncio.Event) -> None:
        """Look again and again until told to stop. A look that has begun is finished: what it takes is served."""
        look_soon = holdings.look_soon
        while not stop.is_set():
            await self._steps.take("look", part.sharing.look)
            await first_of(stop.wait(), look_soon.wait(), self._time_to_look(part))
            if look_soon.is_set():
                look_soon.clear()
                # Word that was left is about something that has happened; an end is seen a moment later.
                pause_ms = 0 if holdings.is_alert else LOOK_AGAIN_AFTER_MS
                await first_of(stop.wait(), self._clock.sleep_ms(pause_ms))

    async def _time_to_look(self, part: _Part) -> None:
        # What comes in meanwhile may put the next look off, so the time is asked for again when it has come.
        await self._clock.sleep_ms(LOOK_PAUSE_MIN_MS)
        while (wait_ms := part.sharing.next_look_ms() - self._clock.now_ms()) > 0:
            await self._clock.sleep_ms(wait_ms)

    # -- shards ------------------------------------------------------------------------------------------------

    async def _audit_loop(self, part: _Part) -> None:
        await self._clock.sleep_ms(milliseconds(self._settings.first_audit_after))
        while True:
            await self._tending.audit(part.sharing.tenders)
            await self._clock.sleep_ms(milliseconds(self._settings.audit_every))

    async def _clean_up_loop(self, part: _Part) -> None:
        while True:
            await self._clock.sleep_ms(milliseconds(self._settings.clean_up_every))
            await self._tending.clean_up(part.sharing.tenders)
