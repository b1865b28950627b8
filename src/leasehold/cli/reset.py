"""`leasehold reset`: sets leases of a running fleet to another position."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any, Final

import click

from leasehold.adapters.system_clock import SystemClock
from leasehold.cli.connections import Connection, connection_options
from leasehold.cli.leases import stream_name
from leasehold.cli.option_values import refuse_values
from leasehold.cli.output import format_count, print_json, print_line, print_table
from leasehold.cli.steering import (
    Steering,
    confirm,
    describe_kept,
    give_back_on_signals,
    say,
    steering_options,
)
from leasehold.core.model import Lease, LeaseKey, ShardId, StreamIdentifier, parse_lease_key
from leasehold.core.steering.reset_plan import ResetPlan, plan_to_json, plan_to_rows
from leasehold.core.steering.reset_target import ToRecord, parse_reset_target
from leasehold.errors import LeaseholdError
from leasehold.fleet.table.lease_table import LeaseTable
from leasehold.steering.reset import (
    ReadReset,
    ResetOutcome,
    ResetRequest,
    apply_reset,
    read_reset,
    require_retained,
)
from leasehold.steering.shard_positions import CONCURRENT_READS_MAX, ShardPositions

COLUMNS = ("shard", "owner", "now", "new", "effect")
_PLANS_MAX: Final = 5  # a plan is made again if a shard ends while its owner hands over
_TELL_EVERY: Final = 100


@dataclass(frozen=True, slots=True, kw_only=True)
class _Options:
    """What the command shall do with a plan."""

    dry_run: bool
    yes: bool
    as_json: bool


@click.command()
@connection_options
@click.option(
    "--stream", metavar="NAME", help="The stream. Required if the leases do not name it, or name several."
)
@click.option(
    "--to",
    required=True,
    metavar="POSITION",
    help="latest, trim-horizon, a time with its zone, or with --shard the sequence number of a record.",
)
@click.option("--shard", metavar="SHARD", help="Reset only this shard, and its descendants if it had ended.")
@steering_options
@click.option("--dry-run", is_flag=True, help="Only show what would change.")
@click.option("--yes", is_flag=True, help="Do not ask for confirmation.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON, with complete sequence numbers.")
def reset(
    *,
    connection: Connection,
    stream: str | None,
    to: str,
    shard: str | None,
    steering: Steering,
    **chosen: bool,
) -> None:
    """Set leases to another position while the fleet runs.

    The owners finish their batches and hand over. Then one write for each shard moves its position, and the fleet reads
    on from there: exactly the records after the new position come again, or are skipped. A position is that of the
    last record that counts as done.

    \b
    Exit codes:
      0         all leases are at the new position, or had read past it
      1         owners kept some leases, or an error, which is named
      2         wrong options
      130, 143  ended by Ctrl-C or SIGTERM; the leases are given back
    """  # noqa: D301 - click needs the character
    with refuse_values():
        target = parse_reset_target(to)
    if isinstance(target, ToRecord) and shard is None:
        raise click.UsageError("A sequence number belongs to one shard: add --shard SHARD.")
    options = _Options(**chosen)
    asyncio.run(
        _reset(connection, stream, ResetRequest(target, ShardId(shard) if shard else None), steering, options)
    )


async def _reset(
    connection: Connection, stream: str | None, request: ResetRequest, steering: Steering, options: _Options
) -> None:
    async with connection.lease_table() as table:
        leases = (await table.list()).leases
        identifier, name = _choose_stream(leases, stream or connection.stream, request.shard)
        shard = None if request.shard is None else parse_lease_key(LeaseKey(request.shard))[1]
        request = ResetRequest(request.target, shard, identifier)
        async with _positions(connection, name) as positions:
            with refuse_values():
                require_retained(request.target, positions)
            read = await read_reset(table, positions, request, tell=_tell)
            _show_plan(read.plan, options)
            if options.dry_run or read.plan.is_empty:
                return
            changed = len(read.plan.moves) + len(read.plan.create)
            confirm(f"Reset {format_count(changed, 'shard')} of {name}?", yes=options.yes)
            outcome = await give_back_on_signals(_apply(table, positions, request, steering, read))
    _show_outcome(outcome, options)


async def _apply(
    table: LeaseTable, positions: ShardPositions, request: ResetRequest, steering: Steering, read: ReadReset
) -> ResetOutcome:
    """Apply the plan. For shards that have ended in the meantime it is made again."""
    total = ResetOutcome()
    for _ in range(_PLANS_MAX):
        outcome = await apply_reset(steering.capture(table, "reset"), read, timeout_ms=steering.timeout_ms)
        total.moved |= outcome.moved
        total.forward |= outcome.forward
        total.past |= outcome.past
        total.created |= outcome.created
        total.kept = (*total.kept, *outcome.kept)
        total.outdated = outcome.outdated
        if not outcome.outdated:
            break
        say(f"planning {format_count(len(outcome.outdated), 'shard')} again, because the fleet has changed")
        read = await read_reset(table, positions, request, only=outcome.outdated)
    return total


def _choose_stream(
    leases: tuple[Lease, ...], stream: str | None, shard: str | None
) -> tuple[StreamIdentifier | None, str]:
    """The stream to reset, in the leases and by name. A table of several streams needs --stream, or a lease key."""
    named: Mapping[StreamIdentifier, str] = {
        lease.stream: name
        for lease in leases
        if lease.stream is not None and (name := stream_name(lease)) is not None
    }
    if not named:
        if stream is None:
            raise click.UsageError(
                "The leases do not name their stream: add --stream NAME, or set LEASEHOLD_STREAM."
            )
        return None, stream
    of_key = None if shard is None else parse_lease_key(LeaseKey(shard))[0]
    wanted = [
        (identifier, name)
        for identifier, name in named.items()
        if identifier == of_key or (of_key is None and stream in {None, identifier, name})
    ]
    if len(wanted) != 1:
        names = ", ".join(sorted(named.values()))
        raise click.UsageError(f"The leases belong to the streams {names}: choose one with --stream.")
    return wanted[0]


@asynccontextmanager
async def _positions(connection: Connection, name: str) -> AsyncIterator[ShardPositions]:
    from leasehold.wiring import new_rng  # noqa: PLC0415 - boto3 is slow

    stream = connection.stream_opener(threads=CONCURRENT_READS_MAX)(name)
    try:
        yield ShardPositions(
            stream=stream, clock=SystemClock(), rng=new_rng(), retention_ms=await stream.get_retention_ms()
        )
    finally:
        await stream.close()


def _show_plan(plan: ResetPlan, options: _Options) -> None:
    if options.as_json:
        if options.dry_run or plan.is_empty:
            print_json({"dry_run": options.dry_run, **plan_to_json(plan)})
        return
    rows = plan_to_rows(plan)
    if rows:
        print_table(COLUMNS, rows)
        print_line("")
    same = sum(move.is_same_position for move in plan.moves)
    parts = [f"{format_count(len(plan.moves) - same, 'lease')} to move"]
    parts += [f"{same} to take from the owner at the same position"] if same else []
    parts += [f"{len(plan.create)} to create"] if plan.create else []
    parts += [f"{len(plan.unchanged)} already there"] if plan.unchanged else []
    print_line(", ".join(parts))
    if forward := sum(move.is_forward for move in plan.moves):
        print_line(
            f"Warning: {format_count(forward, 'lease')} would move forward, and unread records would be skipped."
        )
    if skipping := sum(new.is_forward for new in plan.create):
        print_line(
            f"Warning: {format_count(skipping, 'new lease')} would begin after records that no lease shows as read, "
            "and these records would be skipped."
        )
    if any(move.lease.generations and not move.is_forward for move in plan.moves):
        print_line(
            "A Spark query has read these shards. It stops with an error when they are set back, unless it runs with "
            "onLeasesBehind=leases."
        )


def _show_outcome(outcome: ResetOutcome, options: _Options) -> None:
    fields: dict[str, Any] = {
        "moved": sorted(outcome.moved),
        "forward": sorted(outcome.forward),
        "created": sorted(outcome.created),
        "past": sorted(outcome.past),
        "unchanged": sorted({each.key for each in outcome.kept}),
    }
    if options.as_json:
        print_json({"dry_run": False, **fields})
    else:
        parts = [f"{format_count(len(outcome.moved), 'lease')} moved"]
        parts += [f"{len(outcome.created)} created"] if outcome.created else []
        parts += [f"{len(outcome.past)} had read past the position by then"] if outcome.past else []
        print_line(", ".join(parts))
        if moved := outcome.forward - outcome.created:
            print_line(
                f"Warning: {format_count(len(moved), 'lease')} moved forward, and unread records were skipped."
            )
        if begun := outcome.forward & outcome.created:
            print_line(
                f"Warning: {format_count(len(begun), 'new lease')} began after records that no lease showed as read, "
                "and these records were skipped."
            )
    if outcome.kept:
        say(describe_kept(outcome.kept))
    if outcome.outdated:
        raise LeaseholdError(
            f"{format_count(len(outcome.outdated), 'shard')} changed again and again while they were reset: run the "
            "command again"
        )
    if outcome.kept:
        raise SystemExit(1)


def _tell(done: int) -> None:
    if done % _TELL_EVERY == 0:
        say(f"{done} shards read")
