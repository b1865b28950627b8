"""`leasehold leases`: shows the owner and the checkpoint of each shard. It only reads."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Sequence

import click

from leasehold.cli.connections import Connection, connection_options
from leasehold.cli.option_values import Seconds
from leasehold.cli.output import (
    format_count,
    print_json,
    print_line,
    print_table,
    progress_lines,
)
from leasehold.core.leases.lease_row import LeaseListing
from leasehold.core.leases.lease_view import (
    LeaseState,
    LeaseView,
    leases_without_heartbeat,
    short_position,
    view_leases,
    view_to_json,
)
from leasehold.core.leases.rejected_row import consequence_of
from leasehold.core.model import Lease, LeaseKey
from leasehold.core.shown_text import shown, shown_sentence
from leasehold.errors import MalformedRowError

COLUMNS = ("shard", "state", "owner", "checkpoint", "counter", "pin", "parents", "children", "handoff")


@click.command()
@connection_options
@click.option("--stream", metavar="NAME", help="Show only leases of this stream.")
@click.option(
    "--watch",
    type=Seconds(min=0, min_open=True),
    metavar="SECONDS",
    help="Read the table twice, this many seconds apart, and mark leases without a heartbeat in between as silent.",
)
@click.option("--json", "as_json", is_flag=True, help="Print JSON, with complete sequence numbers.")
def leases(*, connection: Connection, stream: str | None, watch: float | None, as_json: bool) -> None:
    """Show the leases of a fleet.

    For every shard: its state, owner, checkpoint, parents and children.
    """
    with progress_lines(
        lambda: "still reading the lease table" if watch is None else "still watching the leases"
    ):
        listing, views = asyncio.run(_read_leases(connection, stream, watch))
    if as_json:
        rejected, ignored = (
            [{"key": error.key, "problem": error.problem} for error in errors]
            for errors in (listing.rejected, listing.ignored)
        )
        print_json(
            {"leases": [view_to_json(view) for view in views], "rejected": rejected, "ignored": ignored}
        )
        return
    if views:
        print_table(COLUMNS, [_row(view) for view in views])
        print_line("")
    print_line(_summary(views, len(listing.rejected)))
    for error in listing.rejected:
        consequence = consequence_of(error.key)
        print_line(f"rejected: {_shown_key(error)}: {shown_sentence(error.problem)}; {consequence}")
    for error in listing.ignored:
        print_line(
            f"ignored: {_shown_key(error)}: it is not a lease and blocks nothing; a KCL 2.x cannot list such a table"
        )


async def _read_leases(
    connection: Connection, stream: str | None, watch: float | None
) -> tuple[LeaseListing, tuple[LeaseView, ...]]:
    async with connection.lease_table() as table:
        listing = await table.list()
        silent: frozenset[LeaseKey] = frozenset()
        if watch is not None:
            await asyncio.sleep(watch)
            before, listing = listing, await table.list()
            silent = leases_without_heartbeat(before.leases, listing.leases)
    views = view_leases(listing.leases, silent=silent)
    return listing, tuple(view for view in views if belongs_to_stream(view.lease, stream))


def belongs_to_stream(lease: Lease, stream: str | None) -> bool:
    """True if a lease belongs to a stream, given by name, ARN or identifier, or if the lease names no stream."""
    if stream is None or lease.stream is None:
        return True
    return stream == lease.stream or stream.rpartition("/")[2] == stream_name(lease)


def stream_name(lease: Lease) -> str | None:
    """Return the stream name in account:stream:epoch, or None in single-stream mode."""
    return None if lease.stream is None else lease.stream.split(":")[1]


def _shown_key(error: MalformedRowError) -> str:
    """The key of a row, as it can be shown on a terminal. Escaped here, because the problem quotes parts of the row."""
    return shown(error.key) or "(no key)"


def _row(view: LeaseView) -> Sequence[str]:
    lease = view.lease
    return (
        lease.key,
        view.state.value,
        lease.actual_owner or "-",
        short_position(lease.checkpoint),
        str(lease.counter),
        short_position(lease.pin.end) if lease.pin else "-",
        ",".join(sorted(lease.parents)) or "-",
        ",".join(sorted(lease.children)) or "-",
        f"to {lease.owner}" if lease.is_in_handoff else "-",
    )


def _summary(views: Sequence[LeaseView], rejected: int) -> str:
    states = Counter(view.state for view in views)
    owners = {view.lease.actual_owner for view in views} - {None}
    parts = [f"{states[state]} {state.value}" for state in LeaseState if states[state]]
    text = format_count(len(views), "lease") + (f": {', '.join(parts)}" if parts else "")
    text += f"; {format_count(len(owners), 'worker')}"
    return text + (f"; {format_count(rejected, 'row')} rejected" if rejected else "")
