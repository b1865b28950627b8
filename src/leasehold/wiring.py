"""The wiring: which adapters stand behind the ports of a worker. The only place in `worker` that names any."""

from __future__ import annotations

import os
import random
import secrets
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Final

from leasehold.adapters.aws import clients
from leasehold.adapters.aws.clients import AwsAccess
from leasehold.adapters.aws.dynamodb_rows import DynamoDbRows, TableSettings
from leasehold.adapters.aws.kinesis_stream import KinesisStream
from leasehold.adapters.cpu import detect_load_meter
from leasehold.adapters.observability import observing
from leasehold.adapters.obstore_objects import open_obstore
from leasehold.adapters.sqlite_rows import SqliteRows
from leasehold.adapters.system_clock import SystemClock
from leasehold.core.coordinator.kcl_rows import (
    COORDINATOR_KEY_ATTRIBUTE,
    COORDINATOR_TABLE_SUFFIX,
    METRICS_KEY_ATTRIBUTE,
    METRICS_TABLE_SUFFIX,
)
from leasehold.core.events import Observer
from leasehold.core.model import StreamIdentifier, WorkerId, is_stream_identifier
from leasehold.fleet.table.lease_table import LeaseTable
from leasehold.worker.dead_letters import DeadLetters, FileDeadLetters, ObjectDeadLetters
from leasehold.worker.engine.run_worker import WorkerPorts
from leasehold.worker.settings import ConnectionSettings, ConsumerSettings

SQLITE: Final = "sqlite:///"


@asynccontextmanager
async def connect(settings: ConsumerSettings, observe: Observer | None = None) -> AsyncIterator[WorkerPorts]:
    """What the settings name, connected; given back on leaving. `observe` is an observer of the user's own."""
    connection, identity = settings.connection, settings.identity
    worker = WorkerId(identity.worker_id or new_worker_id())
    clock = SystemClock()
    dead_letters = open_dead_letters(settings.handling.errors.dead_letters, connection)
    watching = observing(
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
    async with watching as observe_all:
        table = lease_table(connection, identity.application)
        client = clients.kinesis_client(aws_access(connection, connection.kinesis_endpoint))
        streams = {name: open_stream(client, name) for name in identity.initial_positions}
        try:
            # Jitter and ids of holdings, nothing secret; but no two processes may draw alike.
            rng = random.Random(secrets.randbits(128))  # noqa: S311
            yield WorkerPorts(
                worker, table, streams, dead_letters, clock, rng, observe_all, detect_load_meter(os.environ)
            )
        finally:
            for stream in streams.values():
                await stream.close()
            await table.close()


def open_stream(client: Any, name: str) -> KinesisStream:
    """A stream by its name, its ARN or, for a fleet whose Java members have made up their own, its identifier."""
    if is_stream_identifier(name):
        return KinesisStream(client, name.split(":")[1], identifier=StreamIdentifier(name))
    return KinesisStream(client, name)


def lease_table(connection: ConnectionSettings, application: str) -> LeaseTable:
    """The table of leases: in DynamoDB, or in a SQLite file."""
    if connection.leases.startswith(SQLITE):
        return LeaseTable(SqliteRows(Path(connection.leases.removeprefix(SQLITE))))
    client = clients.dynamodb_client(aws_access(connection, connection.dynamodb_endpoint))
    return LeaseTable(
        # Peers look at all leases, so they need no index; next to KCL 2.x there should be none.
        DynamoDbRows(client, connection.lease_table or application, settings=TableSettings(with_index=False)),
        coordinator=DynamoDbRows(
            client, f"{application}{COORDINATOR_TABLE_SUFFIX}", key_attribute=COORDINATOR_KEY_ATTRIBUTE
        ),
        metrics=DynamoDbRows(
            client, f"{application}{METRICS_TABLE_SUFFIX}", key_attribute=METRICS_KEY_ATTRIBUTE
        ),
    )


def open_dead_letters(place: object, connection: ConnectionSettings) -> DeadLetters | None:
    """Where dead letters go: a prefix of an object store, or a file. None for a function, and for nothing at all."""
    if not isinstance(place, str):
        return None
    if "://" not in place:
        return FileDeadLetters(Path(place))
    access = aws_access(connection, connection.s3_endpoint)
    return ObjectDeadLetters(open_obstore(place, access, setting="dead_letters", extra="objects"), place)


def new_worker_id() -> str:
    """Unique, and telling: host, process, and a random part, since both come back after a restart."""
    return f"{socket.gethostname()}:{os.getpid()}:{secrets.token_hex(4)}"


def aws_access(connection: ConnectionSettings, endpoint_url: str | None) -> AwsAccess:
    """How the settings say to reach one service of AWS."""
    return AwsAccess(
        region=connection.region,
        profile=connection.profile,
        endpoint_url=endpoint_url,
        role_arn=connection.role_arn,
        role_external_id=connection.role_external_id,
        role_session_name=connection.role_session_name,
    )
