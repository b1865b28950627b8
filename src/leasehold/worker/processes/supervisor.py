"""Runs several worker processes as one: starts them, restarts crashed ones, stops all on a signal, merges their status.

Each process is a member of the fleet of its own. The supervisor reads no stream and imports no user code. If it ends,
however that happens, the processes see the end of their links and stop cleanly.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Callable, Coroutine, Sequence
from contextlib import ExitStack
from typing import Any, Final

from leasehold.adapters.status_server import Response, Route, StatusServer
from leasehold.core.observing.merged_status import START_MS_MAX, process_finding
from leasehold.core.supervision.restarts import (
    NOT_STARTED_CODE,
    Finished,
    GiveUp,
    ProcessEnd,
    Restart,
    decide_after_end,
)
from leasehold.errors import LeaseholdError
from leasehold.ports import Clock
from leasehold.tasks import all_of, first_of
from leasehold.worker.processes.member_process import Command, MemberProcess, Slot
from leasehold.worker.processes.merged_routes import health_response, metrics_response, status_response

LOGGER: Final = logging.getLogger("leasehold.processes")
STATUS_TIMEOUT_S: Final = 4.0  # longer than a process may take to answer


class Supervisor:
    """Keeps `count` worker processes running until a signal, or until one ends for good."""

    def __init__(self, command: Command, count: int, *, clock: Clock, rng: random.Random) -> None:
        self._command = command
        self._slots = [Slot(number) for number in range(count)]
        self._clock = clock
        self._rng = rng
        self._stopping = asyncio.Event()
        self._failures: list[str] = []
        self._closing = ExitStack()
        self._is_serving = False

    async def run(self) -> list[str]:
        """Run until all processes have ended. Returns why those failed that did, each reason once."""
        with self._closing:
            await all_of(*(self._keep_running(slot) for slot in self._slots))
        return list(dict.fromkeys(self._failures))

    def stop(self) -> None:
        """Stop all processes cleanly. A second call does nothing: a second signal would end a process at once."""
        if self._stopping.is_set():
            return
        self._stopping.set()
        for slot in self._slots:
            if slot.member is not None:
                slot.member.stop()

    def kill(self) -> None:
        """End all processes at once."""
        for slot in self._slots:
            if slot.member is not None:
                slot.member.kill()

    async def _keep_running(self, slot: Slot) -> None:
        while not self._stopping.is_set():
            end = await self._run_once(slot)
            slot.last_end = str(end)
            is_stopping = self._stopping.is_set()
            match decide_after_end(end, slot.recent, self._rng.random(), is_stopping=is_stopping):
                case Finished():
                    LOGGER.info("process finished process=%s", slot.number)
                    return
                case GiveUp(reason):
                    LOGGER.error("process failed process=%s end=%r", slot.number, str(end))
                    self._failures.append(end.sentence or f"process {slot.number}: {reason}")
                    self.stop()
                    return
                case Restart(wait_ms, recent):
                    slot.recent = recent
                    LOGGER.warning(
                        "process ended process=%s end=%r restart_in_ms=%s", slot.number, str(end), wait_ms
                    )
                    slot.is_waiting = True
                    await first_of(self._clock.sleep_ms(wait_ms), self._stopping.wait())
                    slot.is_waiting = False

    async def _run_once(self, slot: Slot) -> ProcessEnd:
        slot.starts += 1
        try:
            slot.member = await MemberProcess.start(slot.number, self._command, self._clock)
        except OSError as error:  # for example no memory, or too many processes: it may pass
            LOGGER.warning("process cannot be started process=%s error=%r", slot.number, error.strerror)
            return ProcessEnd(NOT_STARTED_CODE, 0, has_connected=False)
        LOGGER.info("process started process=%s pid=%s", slot.number, slot.member.pid)
        if self._stopping.is_set():  # the signal came while the process was started
            slot.member.stop()
        reporting = asyncio.ensure_future(self._after_connected(slot.member))
        watching = asyncio.ensure_future(self._watch_start(slot, slot.member))
        try:
            return await slot.member.wait()
        finally:
            reporting.cancel()
            watching.cancel()
            slot.member = None

    # -- status ------------------------------------------------------------------------------------------------

    async def _watch_start(self, slot: Slot, member: MemberProcess) -> None:
        """Log a start that hangs, and its end. If all starts hang, nobody serves the status, so the log must say it."""
        while (left_ms := START_MS_MAX - member.age_ms) > 0:
            await self._clock.sleep_ms(left_ms)
        finding = process_finding(slot.status()) if not member.has_connected else None
        if finding is not None:
            LOGGER.warning("%s -> %s", finding.text, finding.remedy)
            await asyncio.shield(member.connected)
            LOGGER.info("process has started after all process=%s age_ms=%s", slot.number, member.age_ms)

    async def _after_connected(self, member: MemberProcess) -> None:
        """Serve the status of all processes where the settings of the first one that connects say."""
        connected = await asyncio.shield(member.connected)
        if self._is_serving or connected.status_port is None:
            return
        self._is_serving = True
        try:
            server = StatusServer(
                connected.status_host,
                connected.status_port,
                {
                    "/health": self._route(health_response),
                    "/metrics": self._route(metrics_response),
                    "/status": self._route(status_response),
                },
            )
        except LeaseholdError as error:
            self._failures.append(str(error))
            self.stop()
            return
        self._closing.callback(server.close)
        LOGGER.info("status served url=%s", server.url)

    def _route(self, respond: Callable[[Sequence[Slot]], Coroutine[Any, Any, Response]]) -> Route:
        """A route for the threads of the status server. The processes are asked on our event loop."""
        loop = asyncio.get_running_loop()
        return lambda: asyncio.run_coroutine_threadsafe(respond(self._slots), loop).result(STATUS_TIMEOUT_S)
