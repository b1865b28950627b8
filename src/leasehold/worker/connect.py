"""Connects a worker: opens the adapters that the settings name and closes them at the end."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from leasehold.adapters.aws import clients
from leasehold.adapters.cpu import detect_load_meter
from leasehold.adapters.observability import run_observers
from leasehold.adapters.obstore_objects import open_put
from leasehold.adapters.system_clock import SystemClock
from leasehold.config.connection import ConnectionSettings
from leasehold.core.events import Observer
from leasehold.core.model import WorkerId
from leasehold.ports import FanOut
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
async def connect(settings: ConsumerSettings, observe: Observer | None = None) -> AsyncIterator[WorkerPorts]:
    """Open all ports of a worker. `observe` is an additional observer of the program."""
    connection, identity = settings.connection, settings.identity
    worker = WorkerId(identity.worker_id or new_worker_id())
    clock = SystemClock()
    dead_letters = open_dead_letters(settings.handling.errors.dead_letters, connection)
    observers = run_observers(
        settings.observe,
        application=identity.application,
        worker=worker,
        failover_after=settings.fleet.failover_after,
        clock=clock,
        cloudwatch_client=lambda: clients.cloudwatch_client(
            aws_access(connection, connection.cloudwatch_endpoint)
        ),
        also=observe,
    )
    async with observers as observe_all:
        table = open_lease_table(connection, identity.application)
        streams = open_streams(connection, identity.initial_positions)
        directory = open_directory(connection) if identity.is_discovering else None
        http2 = settings.fan_out.http2
        fan_outs = (
            dict(open_fan_outs(connection, streams, http2=http2)) if settings.fan_out.is_fan_out else {}
        )

        def open_fan_out(name: str) -> FanOut:
            if name not in fan_outs:  # a stream that was discovered later
                fan_outs.update(open_fan_outs(connection, [name], http2=http2))
            return fan_outs[name]

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
                open_fan_out,
            )
        finally:
            for stream in streams.values():
                await stream.close()
            for fan_out in fan_outs.values():
                await fan_out.close()
            if directory is not None:
                await directory.close()
            await table.close()


def open_dead_letters(target: object, connection: ConnectionSettings) -> DeadLetters | None:
    """Open the file or object store prefix for dead letters. Returns None for a function and for None."""
    if not isinstance(target, str):
        return None
    if "://" not in target:
        return FileDeadLetters(Path(target))
    access = aws_access(connection, connection.s3_endpoint)
    return ObjectDeadLetters(open_put(target, access, setting="dead_letters", extra="objects"), target)
