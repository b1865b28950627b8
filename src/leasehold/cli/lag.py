"""`leasehold lag`: shows how far the checkpoint of each shard is behind the tip. It only reads."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Mapping, Sequence
from contextlib import AsyncExitStack
from typing import Any

import click

from leasehold.adapters.system_clock import SystemClock
from leasehold.cli.connections import Connection, connection_options
from leasehold.cli.leases import belongs_to_stream, stream_name
from leasehold.cli.output import format_count, print_json, print_line, print_table, progress_lines
from leasehold.core.finding import format_duration
from leasehold.core.leases.lease_view import (
    LeaseState,
    LeaseView,
    position_to_json,
    short_position,
    view_leases,
)
from leasehold.errors import NotFoundError, UnavailableError
from leasehold.fleet.reading.checkpoint_probe import ShardLag
from leasehold.inspection.lag_probe import CONCURRENT_PROBES_MAX, measure_lags
from leasehold.ports import Stream
from leasehold.tasks import all_of


@click.command()
@connection_options
@click.option("--stream", metavar="NAME", help="The stream. Required if the leases do not name it.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON, with complete sequence numbers.")
def lag(*, connection: Connection, stream: str | None, as_json: bool) -> None:
    """Show how far each shard is behind.

    The shard furthest behind comes first. Shards that have ended are left out. The command reads each shard once.
    """
    with progress_lines(lambda: "waiting for responses"):
        found = sorted(asyncio.run(_measure(connection, stream)), key=_furthest_first)
    if as_json:
        print_json({"shards": [_to_json(*each) for each in found]})
        return
    if found:
        print_table(
            ("shard", "behind", "state", "owner", "checkpoint", "note"), [_row(*each) for each in found]
        )
        print_line("")
    known = [each.millis_behind for _, each in found if each.millis_behind is not None]
    print_line(
        f"{format_count(len(found), 'shard')}; furthest behind: {format_duration(max(known)) if known else 'unknown'}"
    )


async def _measure(connection: Connection, stream: str | None) -> Sequence[tuple[LeaseView, ShardLag]]:
    async with connection.lease_table() as table:
        listing = await table.list()
    views = [view for view in view_leases(listing.leases) if view.state is not LeaseState.ENDED]
    by_stream: defaultdict[str, list[LeaseView]] = defaultdict(list)
    for view in views:
        if belongs_to_stream(view.lease, stream):
            by_stream[stream_name(view.lease) or _require_stream(stream or connection.stream)].append(view)
    async with AsyncExitStack() as stack:
        open_stream = connection.stream_opener(threads=CONCURRENT_PROBES_MAX)
        probes = []
        for name, members in by_stream.items():
            opened = open_stream(name)
            stack.push_async_callback(opened.close)
            probes.append(_probe_stream(opened, members, streams=len(by_stream)))
        measured = await all_of(*probes)
    found = [each for part in measured for each in part]
    _require_response([each for _, each in found])
    return found


def _require_response(lags: Sequence[ShardLag]) -> None:
    """Refuse to show a table without a single lag if the reason is that Kinesis did not respond."""
    failures = [each.note for each in lags if each.is_unavailable]
    if failures and all(each.millis_behind is None for each in lags):
        raise UnavailableError(f"no shard could be measured: {failures[0]}")


async def _probe_stream(
    stream: Stream, views: Sequence[LeaseView], *, streams: int
) -> Sequence[tuple[LeaseView, ShardLag]]:
    """Measure one of several streams. If it does not exist, the others are still shown."""
    leases = [view.lease for view in views]
    try:
        lags = await measure_lags(stream, leases, SystemClock())
    except NotFoundError:
        if streams == 1:
            raise
        lags = [ShardLag(lease, None, "the stream does not exist") for lease in leases]
    return list(zip(views, lags, strict=True))


def _require_stream(stream: str | None) -> str:
    if stream is None:
        raise click.UsageError(
            "The leases do not name their stream: add --stream NAME, or set LEASEHOLD_STREAM."
        )
    return stream


def _furthest_first(found: tuple[LeaseView, ShardLag]) -> tuple[bool, int, str]:
    _, lag_ = found
    return lag_.millis_behind is None, -(lag_.millis_behind or 0), lag_.lease.key


def _row(view: LeaseView, lag_: ShardLag) -> Sequence[str]:
    return (
        lag_.lease.key,
        "unknown" if lag_.millis_behind is None else format_duration(lag_.millis_behind),
        view.state.value,
        lag_.lease.actual_owner or "-",
        short_position(lag_.lease.checkpoint),
        lag_.note,
    )


def _to_json(view: LeaseView, lag_: ShardLag) -> Mapping[str, Any]:
    lease = lag_.lease
    return {
        "key": lease.key,
        "shard": lease.shard_id,
        "stream": lease.stream,
        "state": view.state.value,
        "owner": lease.actual_owner,
        "checkpoint": position_to_json(lease.checkpoint),
        "millis_behind": lag_.millis_behind,
        "note": lag_.note,
    }
