"""Checks the source of a pipeline before Spark starts: its region, its credentials, and whether its streams exist."""

from __future__ import annotations

from typing import Any

from botocore.exceptions import BotoCoreError, ClientError

from leasehold.adapters.aws.clients import dynamodb_client, kinesis_client
from leasehold.adapters.aws.error_translation import translate_error
from leasehold.errors import ConfigError, LeaseholdError, NotFoundError
from leasehold.spark.options import SourceOptions
from leasehold.wiring import aws_access, kinesis_name


def check_source(source: SourceOptions) -> LeaseholdError | None:
    """Return what fails now and may work later, such as a server that does not respond.

    Raises ConfigError if the settings cannot work, and NotFoundError if there is no such stream. The member of a query
    would wait for the stream, and report that in Spark's log only.
    """
    connection = source.connection
    if connection.lease_file is None:
        dynamodb_client(aws_access(connection, connection.dynamodb_endpoint)).close()
    client = kinesis_client(aws_access(connection, connection.kinesis_endpoint), threads=1, response_s=5)
    try:
        problems = [_check_stream(client, name) for name in source.names]
    finally:
        client.close()
    return next((each for each in problems if each is not None), None)


def _check_stream(client: Any, stream: str) -> LeaseholdError | None:
    name = kinesis_name(stream)
    try:
        client.list_shards(**{"StreamARN" if name.startswith("arn:") else "StreamName": name}, MaxResults=1)
    except (BotoCoreError, ClientError) as failure:
        error = translate_error(failure, f"stream {stream}, list_shards")
        if isinstance(error, NotFoundError):
            raise NotFoundError(
                f"stream {stream} does not exist ({client.meta.region_name}): create it, or check its name, the "
                "region and the endpoint"
            ) from failure
        if isinstance(error, ConfigError):
            raise error from failure
        return error
    return None
