"""Opens the adapters that the connection settings name: lease tables, streams, access to AWS.

The worker and the Spark source build their ports with it.
"""

from __future__ import annotations

import os
import random
import secrets
import socket
from collections.abc import Iterable
from typing import Any

from leasehold.adapters.aws import clients
from leasehold.adapters.aws.call_counts import KinesisCalls
from leasehold.adapters.aws.clients import AwsAccess
from leasehold.adapters.aws.dynamodb_rows import DynamoDbRows, TableSettings
from leasehold.adapters.aws.kinesis_directory import KinesisDirectory
from leasehold.adapters.aws.kinesis_fan_out import KinesisFanOut
from leasehold.adapters.aws.kinesis_stream import KinesisStream
from leasehold.adapters.sqlite_rows import SqliteRows
from leasehold.config.connection import ConnectionSettings
from leasehold.core.coordinator.kcl_rows import (
    COORDINATOR_KEY_ATTRIBUTE,
    COORDINATOR_TABLE_SUFFIX,
    METRICS_KEY_ATTRIBUTE,
    METRICS_TABLE_SUFFIX,
)
from leasehold.core.model import StreamIdentifier, is_stream_identifier
from leasehold.fleet.table.lease_table import LeaseTable


def open_streams(
    connection: ConnectionSettings, names: Iterable[str], calls: KinesisCalls | None = None
) -> dict[str, KinesisStream]:
    """Open streams that share one client, each by its name, its ARN or its KCL stream identifier.

    An identifier is needed only if the Java members of the fleet use identifiers of their own.
    """
    client = _kinesis_client(connection)
    return {
        name: KinesisStream(
            client,
            kinesis_name(name),
            identifier=StreamIdentifier(name) if is_stream_identifier(name) else None,
            protocol=connection.kinesis_protocol,
            calls=calls,
        )
        for name in names
    }


def open_fan_outs(
    connection: ConnectionSettings,
    names: Iterable[str],
    *,
    http2: bool = False,
    calls: KinesisCalls | None = None,
) -> dict[str, KinesisFanOut]:
    """Open enhanced fan-out of streams that share one client, each named as in `open_streams`."""
    client = _kinesis_client(connection)
    return {name: KinesisFanOut(client, kinesis_name(name), http2=http2, calls=calls) for name in names}


def open_directory(connection: ConnectionSettings, calls: KinesisCalls | None = None) -> KinesisDirectory:
    """Open the list of streams of an account."""
    return KinesisDirectory(_kinesis_client(connection), connection.kinesis_protocol, calls)


def open_stream(connection: ConnectionSettings, name: str) -> KinesisStream:
    """Open one stream with a client of its own."""
    return open_streams(connection, [name])[name]


def open_lease_table(connection: ConnectionSettings, application: str) -> LeaseTable:
    """Open the lease table of an application, in DynamoDB or in a SQLite file."""
    if connection.lease_file is not None:
        return LeaseTable(
            SqliteRows(connection.lease_file, table=connection.lease_table or application or None)
        )
    access = aws_access(connection, connection.dynamodb_endpoint)
    client = clients.dynamodb_client(access, response_s=connection.dynamodb_timeout.total_seconds())
    return LeaseTable(
        DynamoDbRows(client, connection.lease_table or application, settings=_table_settings(connection)),
        coordinator=DynamoDbRows(
            client,
            connection.coordinator_table or f"{application}{COORDINATOR_TABLE_SUFFIX}",
            key_attribute=COORDINATOR_KEY_ATTRIBUTE,
        ),
        metrics=DynamoDbRows(
            client,
            connection.worker_metrics_table or f"{application}{METRICS_TABLE_SUFFIX}",
            key_attribute=METRICS_KEY_ATTRIBUTE,
        ),
    )


def _table_settings(connection: ConnectionSettings) -> TableSettings:
    return TableSettings(
        # Without an index: peers scan the table, and a table that is shared with KCL 2.x should have none.
        with_index=False,
        read_capacity=connection.table_read_capacity,
        write_capacity=connection.table_write_capacity,
        deletion_protection=connection.table_deletion_protection,
        point_in_time_recovery=connection.table_point_in_time_recovery,
        tags=dict(connection.table_tags),
        scan_segments=connection.scan_segments,
    )


def _kinesis_client(connection: ConnectionSettings) -> Any:
    access = aws_access(connection, connection.kinesis_endpoint)
    return clients.kinesis_client(access, response_s=connection.kinesis_timeout.total_seconds())


def kinesis_name(name: str) -> str:
    """The name or ARN of a stream that may be named by its KCL stream identifier."""
    return name.split(":")[1] if is_stream_identifier(name) else name


def aws_access(connection: ConnectionSettings, endpoint_url: str | None) -> AwsAccess:
    """Return the access settings for one AWS service."""
    return AwsAccess(
        region=connection.region,
        profile=connection.profile,
        endpoint_url=endpoint_url,
        role_arn=connection.role_arn,
        role_external_id=connection.role_external_id,
        role_session_name=connection.role_session_name,
    )


def new_worker_id() -> str:
    """Return a unique id of host, process and a random part, since host and process may repeat after a restart."""
    return f"{socket.gethostname()}:{os.getpid()}:{secrets.token_hex(4)}"


def new_rng() -> random.Random:
    """Return a random source for jitter and session ids. No two processes draw the same numbers."""
    return random.Random(secrets.randbits(128))  # noqa: S311 - nothing secret is drawn from it
