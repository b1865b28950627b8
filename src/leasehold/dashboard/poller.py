"""Reads the fleet at an interval, whatever the number of browsers, and publishes a view of each read."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace

from leasehold.core.observing.dashboard.fleet_history import FleetHistory
from leasehold.core.observing.dashboard.fleet_view import (
    ReadCosts,
    ViewSettings,
    judge_fleet,
    pause_ms,
    view_fleet,
    with_problem,
)
from leasehold.core.observing.dashboard.view_changes import View
from leasehold.dashboard.recording import Recorder
from leasehold.dashboard.view_hub import ViewHub
from leasehold.errors import LeaseholdError
from leasehold.inspection.fleet_watch import FleetRead, FleetWatch
from leasehold.inspection.worker_status import read_workers
from leasehold.ports import Clock


class Poller:
    """One loop of reads."""

    def __init__(
        self,
        watch: FleetWatch,
        hub: ViewHub,
        history: FleetHistory,
        settings: ViewSettings,
        clock: Clock,
        *,
        status: Sequence[str] = (),
        recorder: Recorder | None = None,
    ) -> None:
        self._watch = watch
        self._hub = hub
        self._history = history
        self._settings = settings
        self._clock = clock
        self._status = status
        self._recorder = recorder
        self._before: tuple[int, FleetRead] | None = None
        self._lost_recording: tuple[str, ...] = ()

    async def run(self) -> None:
        """Read until cancelled. A read that fails is shown, and repeated after the interval."""
        while True:
            began_ms = self._clock.now_ms()
            wait_ms = self._settings.every_ms
            try:
                read = await self.read_once()
            except LeaseholdError as error:
                self._publish(with_problem(self._hub.view, f"the fleet cannot be read: {error}"))
            else:
                wait_ms = pause_ms(self._settings, len(read.facts.after.leases))
            await self._clock.sleep_ms(max(0, wait_ms - (self._clock.now_ms() - began_ms)))

    async def read_once(self) -> FleetRead:
        """Read the fleet and publish its view."""
        workers = await asyncio.to_thread(read_workers, self._status)
        read = await self._watch.read(workers.findings, workers.idle_ms)
        costs = replace(self._costs(read), worker_calls=workers.calls if self._status else None)
        self._before = (self._clock.now_ms(), read)
        # Ten thousand shards take a second. On a thread, it delays no browser.
        judged = await asyncio.to_thread(judge_fleet, read.facts, self._settings)
        view = view_fleet(
            read.facts,
            judged,
            self._history,
            self._settings,
            costs=costs,
            wall_ms=self._clock.wall_ms(),
        )
        self._publish(view)
        return read

    def _costs(self, read: FleetRead) -> ReadCosts:
        problems = (*read.problems, *self._lost_recording)
        if self._before is None:
            return ReadCosts(problems=problems)
        before_ms, before = self._before
        seconds = max(0.001, (self._clock.now_ms() - before_ms) / 1000)
        return ReadCosts(
            table_reads_per_s=(read.table_reads - before.table_reads) / seconds,
            kinesis_calls_per_s=(read.kinesis_calls - before.kinesis_calls) / seconds,
            problems=problems,
        )

    def _publish(self, view: View) -> None:
        self._hub.publish(view)
        if self._recorder is None:
            return
        try:
            self._recorder.add(view)
        except OSError as error:
            # A full disk must not end the page in the middle of an incident.
            self._lost_recording = (f"the recording has ended: {error.strerror}",)
            self._recorder = None
