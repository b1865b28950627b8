"""Connects a worker: opens the adapters that the settings name and closes them at the end."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from leasehold.adapters.aws import clients
from leasehold.adapters.aws.call_counts import KinesisCalls, report_calls
from leasehold.adapters.cpu import detect_load_meter
from leasehold.adapters.observability import ObserverPorts, OfferStatus, run_observers
from leasehold.adapters.obstore_objects import open_put
from leasehold.adapters.system_clock import SystemClock
from leasehold.archive.history import with_archive
from leasehold.config.connection import ConnectionSettings
from leasehold.core.events import Observer
from leasehold.core.model import WorkerId
from leasehold.ports import Clock, FanOut
from leasehold.wiring import (
    aws_access,
    new_rng,
    new_worker_id,
    open_directory,
    open_fan_outs,
    open_lease_table,
    open_streams,
)
from leasehold.worker.dead_letters import DeadLetters, FileDeadLetters, ObjectDeadLetters
from leasehold.worker.engine.run_worker import WorkerPorts
from leasehold.worker.settings import ConsumerSettings


@asynccontextmanager
async def connect(
    settings: ConsumerSettings, observe: Observer | None = None, offer_status: OfferStatus | None = None
) -> AsyncIterator[WorkerPorts]:
    """Open all ports of a worker. `observe` is an additional observer of the program.

    `offer_status` gets the routes of the status, if another process serves them.
    """
    connection, identity = settings.connection, settings.identity
    worker = WorkerId(identity.worker_id or new_worker_id())
    clock = SystemClock()
    dead_letters = open_dead_letters(settings.handling.errors.dead_letters, connection)
    observers = run_observers(
        settings.observe,
        application=identity.application,
        worker=worker,
        failover_after=settings.fleet.failover_after,
        ports=_observer_ports(connection, clock, observe, offer_status),
    )
    calls = KinesisCalls()
    async with observers as observe_all, report_calls(calls, observe_all, clock):
        table = open_lease_table(connection, identity.application)
        streams = {
            name: with_archive(stream, name, connection)
            for name, stream in open_streams(connection, identity.initial_positions, calls).items()
        }
        directory = open_directory(connection, calls) if identity.is_discovering else None
        fan_outs = _FanOuts(connection, calls, http2=settings.fan_out.http2)
        if settings.fan_out.is_fan_out:
            fan_outs.open_all(streams)
        try:
            yield WorkerPorts(
                worker,
                table,
                streams,
                dead_letters,
                clock,
                new_rng(),
                observe_all,
                detect_load_meter(os.environ) if settings.process.measure_load else None,
                directory,
                fan_outs.open,
            )
        finally:
            for stream in streams.values():
                await stream.close()
            await fan_outs.close()
            if directory is not None:
                await directory.close()
            await table.close()


class _FanOuts:
    """Enhanced fan-out of each stream that is read by it."""

    def __init__(self, connection: ConnectionSettings, calls: KinesisCalls, *, http2: bool) -> None:
        self._connection = connection
        self._calls = calls
        self._http2 = http2
        self._opened: dict[str, FanOut] = {}

    def open_all(self, names: Iterable[str]) -> None:
        """Open these streams with one client."""
        self._opened |= open_fan_outs(self._connection, names, http2=self._http2, calls=self._calls)

    def open(self, name: str) -> FanOut:
        """The fan-out of a stream, also of one that was discovered later."""
        if name not in self._opened:
            self.open_all([name])
        return self._opened[name]

    async def close(self) -> None:
        for fan_out in self._opened.values():
            await fan_out.close()


def _observer_ports(
    connection: ConnectionSettings, clock: Clock, also: Observer | None, offer_status: OfferStatus | None
) -> ObserverPorts:
    def cloudwatch_client() -> Any:
        return clients.cloudwatch_client(aws_access(connection, connection.cloudwatch_endpoint))

    return ObserverPorts(clock, cloudwatch_client, also, offer_status)


def open_dead_letters(target: object, connection: ConnectionSettings) -> DeadLetters | None:
    """Open the file or object store prefix for dead letters. Returns None for a function and for None."""
    if not isinstance(target, str):
        return None
    if "://" not in target:
        return FileDeadLetters(Path(target))
    access = aws_access(connection, connection.s3_endpoint)
    return ObjectDeadLetters(open_put(target, access, setting="dead_letters", extra="objects"), target)
