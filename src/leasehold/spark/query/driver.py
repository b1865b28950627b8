"""The driver's side of a streaming query: plain calls for Spark's reader, answered by the query's fleet member.

Spark calls from one thread and may end the process at any time. The member renews its leases on a thread of its own.
"""

from __future__ import annotations

import logging
import os
import secrets
from collections.abc import Mapping
from typing import Any, Final

from leasehold.adapters.logs import LogObserver
from leasehold.adapters.system_clock import SystemClock
from leasehold.core.exactly_once.slice_limits import BatchLimits
from leasehold.garbage_collection import tune_garbage_collection
from leasehold.loop_thread import LoopThread
from leasehold.spark.dashboard_command import dashboard_command
from leasehold.spark.options import SourceOptions
from leasehold.spark.query.batch_load import BatchLoad, batch_end_file
from leasehold.spark.query.driver_lock import DriverLock
from leasehold.spark.query.pinned_slices import SlicePlan
from leasehold.spark.query.query_member import QueryPorts
from leasehold.spark.query.query_run import QueryRun
from leasehold.spark.query.task_resources import open_consumer, open_source_streams
from leasehold.wiring import new_rng, open_lease_table

LOGGER: Final = logging.getLogger("leasehold.spark")
STOP_WAIT_S: Final = 20.0


class QueryDriver:
    """Runs one query on a thread, from the first plan to the stop. A driver has one for each application."""

    def __init__(self, options: SourceOptions) -> None:
        options.require_application()
        self._options = options
        self._lock = DriverLock(options.application, str(options.connection))
        self._loop: LoopThread | None = None
        self._run: QueryRun | None = None
        self._is_available_now = False

    def read_available_now(self) -> None:
        """Read each shard to its tip once, from now on."""
        self._is_available_now = True
        if self._run is not None:
            self._run.is_available_now = True

    def plan(self, start: Mapping[str, Any], limits: BatchLimits, *, wait_for_all: bool) -> Mapping[str, Any]:
        """Plan the offset after `start`, which is committed. Returns `start` itself if there are no new records."""
        loop, run = self._start()
        return loop.run(run.plan(start, limits, wait_for_all=wait_for_all))

    def slices(self, start: Mapping[str, Any], end: Mapping[str, Any]) -> list[list[SlicePlan]]:
        """Return the slices of a generation: one list for each task."""
        loop, run = self._start()
        return loop.run(run.slices(start, end))

    def report(self) -> dict[str, Any] | None:
        """Return the lag of each shard, or None before the member has started."""
        return None if self._run is None else self._run.report()

    def stop(self) -> None:
        """Release the leases and stop the member. Further calls do nothing."""
        run, self._run = self._run, None
        if run is not None and self._loop is not None:
            stopping = self._loop.submit(run.stop())
            try:
                stopping.result(STOP_WAIT_S)
            except Exception:  # noqa: BLE001 - the leases of a member that cannot release them expire
                stopping.cancel()
        self._lock.release()

    def _start(self) -> tuple[LoopThread, QueryRun]:
        if self._loop is None or self._run is None:
            self._lock.acquire()
            self._loop = self._loop or LoopThread("leasehold-member")
            ports = self._loop.run(_open_ports(self._options))
            self._run = QueryRun(self._options, ports, lambda: secrets.token_hex(8))
            self._run.is_available_now = self._is_available_now
            tune_garbage_collection()  # Spark gives each reader a process of its own
            LOGGER.info("to see the fleet in the browser: %s", dashboard_command(self._options))
        return self._loop, self._run


async def _open_ports(options: SourceOptions) -> QueryPorts:
    connection, clock = options.connection, SystemClock()
    return QueryPorts(
        table=open_lease_table(connection, options.application),
        streams=open_source_streams(options),
        clock=clock,
        rng=new_rng(),
        observe=LogObserver(clock.now_ms),
        load=BatchLoad(clock, batch_end_file(os.getppid())),
        consumers=[open_consumer(options, each) for each in options.names]
        if options.fan_out.is_fan_out
        else [],
    )
