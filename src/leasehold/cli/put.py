"""`leasehold put`: puts records into a stream, from its arguments or from lines of standard input."""

from __future__ import annotations

import sys
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import IO, Any, Final

import click

from leasehold.cli.connections import Connection, kinesis_connection_options, wait_for_local_server
from leasehold.cli.output import format_count, print_line
from leasehold.core.record import PutEntry
from leasehold.errors import ThrottledError

# The limits of one PutRecords call.
RECORDS_MAX: Final = 500
BYTES_MAX: Final = 5 * 1024 * 1024
# A shard accepts 1 MB and 1,000 records a second. What is refused above that is put again.
ATTEMPTS_MAX: Final = 20
RETRY_S: Final = 0.5
_CHUNK_BYTES: Final = 1024 * 1024


@click.command()
@click.argument("stream")
@click.argument("data", nargs=-1)
@click.option(
    "--partition-key",
    metavar="KEY",
    help="Partition key of all records, which decides their shard. [default: a new one for each record]",
)
@kinesis_connection_options
def put(*, connection: Connection, stream: str, data: tuple[str, ...], partition_key: str | None) -> None:
    """Put records into a stream.

    Each DATA is one record. Without DATA, each line of standard input that is not empty is one record; lines are put
    as they arrive. For streams of development and tests: use the AWS SDK in a program. The command waits some seconds
    for a server on this machine that has just been started.
    """
    wait_for_local_server(connection.settings.kinesis_endpoint)
    client = connection.kinesis(threads=1)
    records = [[each.encode() for each in data]] if data else _read_lines(sys.stdin.buffer)
    if not data and sys.stdin.isatty():
        click.echo("One record a line; Ctrl-D ends.", err=True)
    shards: Counter[str] = Counter()
    for group in records:
        entries = [PutEntry(each, partition_key or _new_key()) for each in group]
        for call in calls(entries):
            shards.update(_put(client, stream, call))
    print_line(f"{format_count(shards.total(), 'record')} put into {stream}")
    for shard, number in sorted(shards.items()):
        print_line(f"  {shard}: {number}")


def _new_key() -> str:
    from secrets import token_hex  # noqa: PLC0415 - not needed for --help

    return token_hex(8)


def _read_lines(source: IO[bytes]) -> Iterator[list[bytes]]:
    """Yield the lines that are available, without their line breaks, until the input ends."""
    rest = b""
    while chunk := source.read1(_CHUNK_BYTES):  # type: ignore[attr-defined] # standard input is buffered
        *lines, rest = (rest + chunk).split(b"\n")
        yield [line for each in lines if (line := each.removesuffix(b"\r"))]
    if rest:
        yield [rest]


def calls(entries: Sequence[PutEntry]) -> Iterator[list[PutEntry]]:
    """Divide records into calls that are within the limits of Kinesis."""
    call: list[PutEntry] = []
    size = 0
    for entry in entries:
        entry_size = len(entry.data) + len(entry.partition_key.encode())
        if call and (len(call) == RECORDS_MAX or size + entry_size > BYTES_MAX):
            yield call
            call, size = [], 0
        call.append(entry)
        size += entry_size
    if call:
        yield call


def _put(client: Any, stream: str, entries: Sequence[PutEntry]) -> Iterator[str]:
    """Put records with one call, and repeat the call for those that were refused. Yields the shard of each record."""
    for _ in range(ATTEMPTS_MAX):
        results = _call(client, stream, entries)
        yield from (each["ShardId"] for each in results if "ShardId" in each)
        refused = [entry for entry, each in zip(entries, results, strict=True) if "ShardId" not in each]
        if not refused:
            return
        entries = refused
        time.sleep(RETRY_S)
    raise ThrottledError(
        f"{format_count(len(entries), 'record')} could not be put into {stream}: its shards refuse more; put fewer "
        "records a second, or add shards"
    )


def _call(client: Any, stream: str, entries: Sequence[PutEntry]) -> Sequence[dict[str, str]]:
    from botocore.exceptions import BotoCoreError, ClientError  # noqa: PLC0415 - boto3 is slow

    from leasehold.adapters.aws.error_translation import translate_error  # noqa: PLC0415

    name = {"StreamARN": stream} if stream.startswith("arn:") else {"StreamName": stream}
    records = [{"Data": each.data, "PartitionKey": each.partition_key} for each in entries]
    try:
        found: Sequence[dict[str, str]] = client.put_records(Records=records, **name)["Records"]
    except (BotoCoreError, ClientError) as error:
        raise translate_error(error, f"PutRecords into {stream}") from error
    return found
