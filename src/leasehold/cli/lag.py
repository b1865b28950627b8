"""`leasehold lag`: shows how far the checkpoint of each shard is behind the tip. It only reads.

For each shard it reads the record at the checkpoint. Kinesis returns how far this record is behind the tip. The read
counts as one of the five reads a second that a shard allows.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from typing import Any, Final

import click

from leasehold.cli.connections import Connection, connection_options
from leasehold.cli.leases import belongs_to_stream, stream_name
from leasehold.cli.output import format_count, print_json, print_line, print_table
from leasehold.core.leases.lease_view import (
    LeaseState,
    LeaseView,
    position_to_json,
    short_position,
    view_leases,
)
from leasehold.core.model import InitialPosition, Lease
from leasehold.core.position import AT_TIMESTAMP, LATEST, TRIM_HORIZON
from leasehold.core.records.iterators import IteratorStart, gap_before, iterator_start
from leasehold.errors import NotFoundError, ThrottledError, UnavailableError
from leasehold.ports import Page, Stream
from leasehold.tasks import all_of

CONCURRENT_PROBES_MAX: Final = 16
ATTEMPTS_MAX: Final = 5
RETRY_S: Final = 0.4  # a worker uses most of the five reads a second; two of ours fit beside it


@dataclass(frozen=True, slots=True)
class ShardLag:
    """The lag of one shard. If it is unknown, `note` gives the reason."""

    view: LeaseView
    millis_behind: int | None
    note: str = ""


@click.command()
@connection_options
@click.option("--stream", metavar="NAME", help="The stream. Required if the leases do not name it.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON, with complete sequence numbers.")
def lag(*, connection: Connection, stream: str | None, as_json: bool) -> None:
    """Show how far each shard is behind.

    The shard furthest behind comes first. Shards that have ended are left out. The command reads each shard once.
    """
    found = sorted(asyncio.run(_measure(connection, stream)), key=_furthest_first)
    if as_json:
        print_json({"shards": [_to_json(each) for each in found]})
        return
    if found:
        print_table(
            ("shard", "behind", "state", "owner", "checkpoint", "note"), [_row(each) for each in found]
        )
        print_line("")
    known = [each.millis_behind for each in found if each.millis_behind is not None]
    print_line(
        f"{format_count(len(found), 'shard')}; furthest behind: {_format_duration(max(known)) if known else 'unknown'}"
    )


async def _measure(connection: Connection, stream: str | None) -> Sequence[ShardLag]:
    async with connection.lease_table() as table:
        listing = await table.list()
    views = [view for view in view_leases(listing.leases) if view.state is not LeaseState.ENDED]
    by_stream: defaultdict[str, list[LeaseView]] = defaultdict(list)
    for view in views:
        if belongs_to_stream(view.lease, stream):
            by_stream[stream_name(view.lease) or _require_stream(stream or connection.stream)].append(view)
    async with AsyncExitStack() as stack:
        client = connection.kinesis(threads=CONCURRENT_PROBES_MAX) if by_stream else None
        probes = []
        for name, members in by_stream.items():
            opened = _open_stream(client, name)
            stack.push_async_callback(opened.close)
            probes.append(_probe_stream(opened, members, streams=len(by_stream)))
        measured = await all_of(*probes)
    return [each for part in measured for each in part]


async def _probe_stream(stream: Stream, views: Sequence[LeaseView], *, streams: int) -> Sequence[ShardLag]:
    """Measure one of several streams. If it does not exist, the others are still shown."""
    try:
        return await measure_lags(stream, views)
    except NotFoundError:
        if streams == 1:
            raise
        return [ShardLag(view, None, "the stream does not exist") for view in views]


def _require_stream(stream: str | None) -> str:
    if stream is None:
        raise click.UsageError(
            "The leases do not name their stream: add --stream NAME, or set LEASEHOLD_STREAM."
        )
    return stream


def _open_stream(client: Any, name: str) -> Stream:
    from leasehold.adapters.aws.kinesis_stream import KinesisStream  # noqa: PLC0415 - boto3 is slow

    return KinesisStream(client, name, threads=CONCURRENT_PROBES_MAX)


async def measure_lags(stream: Stream, views: Sequence[LeaseView]) -> Sequence[ShardLag]:
    """Measure the shards of one stream concurrently. A failure is reported in the note of its shard."""
    semaphore = asyncio.Semaphore(CONCURRENT_PROBES_MAX)

    async def probe(view: LeaseView) -> ShardLag | NotFoundError:
        async with semaphore:
            try:
                return await _probe(stream, view)
            except NotFoundError as error:
                return error

    results = await all_of(*map(probe, views))
    missing = [result for result in results if isinstance(result, NotFoundError)]
    if len(missing) == len(results):
        raise missing[0]  # no shard is known, so the stream is the wrong one
    return [
        ShardLag(view, None, "the stream has no such shard") if isinstance(result, NotFoundError) else result
        for view, result in zip(views, results, strict=True)
    ]


async def _probe(stream: Stream, view: LeaseView) -> ShardLag:
    lease = view.lease
    if lease.checkpoint == LATEST:
        return ShardLag(view, 0, "not started; starts at the tip")
    if lease.checkpoint == AT_TIMESTAMP:
        return ShardLag(view, None, "not started; starts at a time that only the workers know")
    start = iterator_start(lease.checkpoint, InitialPosition(TRIM_HORIZON))
    for attempt in range(1, ATTEMPTS_MAX + 1):
        try:
            return await _read_one(stream, view, start)
        except (ThrottledError, UnavailableError) as error:
            if attempt == ATTEMPTS_MAX:
                return ShardLag(view, None, str(error))
            await asyncio.sleep(RETRY_S)
    raise AssertionError("unreachable: the last attempt returns or raises")


async def _read_one(stream: Stream, view: LeaseView, start: IteratorStart) -> ShardLag:
    lease = view.lease
    page = await stream.get_records(await stream.get_iterator(lease.shard_id, start), limit=1)
    return ShardLag(view, page.millis_behind, _note(lease, page))


def _note(lease: Lease, page: Page) -> str:
    records = page.records
    if not records and page.next_iterator is None:
        return "the shard has ended and has no retained records: unprocessed records are lost"
    if lease.checkpoint.is_sentinel:
        return "not started"
    if records and gap_before(lease.checkpoint, records[0].sequence_number, None):
        return "the record at the checkpoint has been trimmed, and maybe others after it"
    return ""


def _furthest_first(each: ShardLag) -> tuple[bool, int, str]:
    return each.millis_behind is None, -(each.millis_behind or 0), each.view.lease.key


def _row(each: ShardLag) -> Sequence[str]:
    lease = each.view.lease
    return (
        lease.key,
        "unknown" if each.millis_behind is None else _format_duration(each.millis_behind),
        each.view.state.value,
        lease.actual_owner or "-",
        short_position(lease.checkpoint),
        each.note,
    )


def _to_json(each: ShardLag) -> Mapping[str, Any]:
    lease = each.view.lease
    return {
        "key": lease.key,
        "shard": lease.shard_id,
        "stream": lease.stream,
        "state": each.view.state.value,
        "owner": lease.actual_owner,
        "checkpoint": position_to_json(lease.checkpoint),
        "millis_behind": each.millis_behind,
        "note": each.note,
    }


def _format_duration(duration_ms: int) -> str:
    """Format a duration with its two largest units.

    >>> _format_duration(0), _format_duration(1_500), _format_duration(90_000), _format_duration(90_000_000)
    ('0 s', '1.5 s', '1 min 30 s', '1 d 1 h')
    """
    if duration_ms < 60_000:
        return f"{duration_ms / 1000:.3g} s"
    seconds = duration_ms // 1000
    for size, large, small_size, small in (
        (86_400, "d", 3_600, "h"),
        (3_600, "h", 60, "min"),
        (60, "min", 1, "s"),
    ):
        if seconds >= size:
            return f"{seconds // size} {large} {seconds % size // small_size} {small}"
    raise AssertionError("unreachable: the duration is at least a minute")
