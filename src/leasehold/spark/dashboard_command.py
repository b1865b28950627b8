"""The command that shows the fleet of a query in the browser."""

from __future__ import annotations

import shlex

from leasehold.config.connection import DYNAMODB
from leasehold.spark.options import SourceOptions


def dashboard_command(options: SourceOptions) -> str:
    """`leasehold dashboard`, with the options that find the leases and the stream of this query. It has no secrets."""
    connection = options.connection
    named = {
        "--application": options.application,
        "--stream": options.stream,  # leases of several streams name their streams
        "--leases": None if connection.leases == DYNAMODB else connection.leases,
        "--table": connection.lease_table,
        "--region": connection.region,
        "--profile": connection.profile,
        "--kinesis-endpoint-url": connection.kinesis_endpoint,
        "--dynamodb-endpoint-url": connection.dynamodb_endpoint,
    }
    given = [part for name, value in named.items() if value for part in (name, value)]
    return shlex.join(["leasehold", "dashboard", *given])
