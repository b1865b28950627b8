"""`leasehold consumers`: lists, registers and deregisters the consumers of a stream for enhanced fan-out."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from typing import Any, TypeVar

import click

from leasehold.cli.connections import Connection, kinesis_connection_options
from leasehold.cli.output import format_count, print_json, print_line, print_table
from leasehold.errors import InUseError
from leasehold.ports import ConsumerDescription, FanOut

COLUMNS = ("name", "status", "created", "arn")

Command = TypeVar("Command", bound=Callable[..., Any])
T = TypeVar("T")


@click.group()
def consumers() -> None:
    """Manage the consumers of a stream for enhanced fan-out.

    A worker with retrieval "fan_out" registers its consumer by itself, under the name of the application. It never
    deregisters it. A registered consumer costs money for each shard and hour, even if nothing reads.
    """


def _options(command: Command) -> Command:
    stream = click.option("--stream", required=True, metavar="NAME", help="Name or ARN of the stream.")
    as_json = click.option("--json", "as_json", is_flag=True, help="Print JSON.")
    decorated: Command = stream(kinesis_connection_options(as_json(command)))
    return decorated


@consumers.command("list")
@_options
def list_consumers(*, stream: str, connection: Connection, as_json: bool) -> None:
    """List the consumers of a stream. A stream has at most 20."""

    async def find(fan_out: FanOut) -> Sequence[ConsumerDescription]:
        return await fan_out.list_consumers()

    found = _run(connection, stream, find)
    if as_json:
        print_json({"consumers": [asdict(each) for each in found]})
        return
    if found:
        print_table(COLUMNS, [_row(each) for each in found])
        print_line("")
    print_line(f"{format_count(len(found), 'consumer')} of {stream}")


@consumers.command()
@click.argument("name")
@_options
def register(*, name: str, stream: str, connection: Connection, as_json: bool) -> None:
    """Register a consumer, unless it exists, and wait until it is ACTIVE."""

    async def register_and_wait(fan_out: FanOut) -> ConsumerDescription:
        try:
            consumer = await fan_out.register_consumer(name)
        except InUseError:
            consumer = await fan_out.describe_consumer(name)
        while not consumer.is_active:
            await asyncio.sleep(1)
            consumer = await fan_out.describe_consumer(consumer.arn)
        return consumer

    consumer = _run(connection, stream, register_and_wait)
    if as_json:
        print_json(asdict(consumer))
    else:
        print_line(f"{consumer.name} is ACTIVE: {consumer.arn}")


@consumers.command()
@click.argument("name")
@click.option("--yes", is_flag=True, help="Do not ask for confirmation.")
@_options
def deregister(*, name: str, yes: bool, stream: str, connection: Connection, as_json: bool) -> None:
    """Delete a consumer, given by name or ARN. Its subscriptions end."""

    async def find(fan_out: FanOut) -> ConsumerDescription:
        return await fan_out.describe_consumer(name)

    async def delete(fan_out: FanOut) -> None:
        await fan_out.deregister_consumer(consumer.arn)

    consumer = _run(connection, stream, find)
    if not yes:
        click.confirm(
            f"Delete the consumer {consumer.name} of {stream}? Its subscriptions end.", abort=True, err=True
        )
    _run(connection, stream, delete)
    if as_json:
        print_json({"deleted": consumer.arn})
    else:
        print_line(f"deleted {consumer.name}: {consumer.arn}")


def _run(connection: Connection, stream: str, use: Callable[[FanOut], Awaitable[T]]) -> T:
    async def main() -> T:
        from leasehold.adapters.aws.kinesis_fan_out import KinesisFanOut  # noqa: PLC0415 - boto3 is slow

        fan_out = KinesisFanOut(connection.kinesis(threads=1), stream, threads=1)
        try:
            return await use(fan_out)
        finally:
            await fan_out.close()

    return asyncio.run(main())


def _row(consumer: ConsumerDescription) -> Sequence[str]:
    return (consumer.name, consumer.status, _time(consumer.created_ms), consumer.arn)


def _time(epoch_ms: int) -> str:
    return datetime.fromtimestamp(epoch_ms // 1000, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
