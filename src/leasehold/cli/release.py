"""`leasehold release`: makes owners hand over leases, so that other workers read these shards."""

from __future__ import annotations

import asyncio

import click

from leasehold.adapters.system_clock import SystemClock
from leasehold.cli.connections import Connection, connection_options
from leasehold.cli.output import format_count, print_json, print_line, print_table
from leasehold.cli.steering import Steering, describe_kept, give_back_on_signals, say, steering_options
from leasehold.core.model import LeaseKey, WorkerId
from leasehold.core.steering.release_plan import ReleaseRequest
from leasehold.steering.lease_capture import CaptureResult
from leasehold.steering.release import PlannedRelease, plan_release, release_leases

COLUMNS = ("shard", "owner", "next owner")


@click.command()
@connection_options
@click.argument("shards", nargs=-1, metavar="[SHARD]...")
@click.option("--worker", metavar="NAME", help="Release all leases of this worker.")
@click.option("--all", "is_all", is_flag=True, help="Release all leases.")
@steering_options
@click.option("--dry-run", is_flag=True, help="Only show which leases would be released.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def release(
    *,
    connection: Connection,
    shards: tuple[str, ...],
    worker: str | None,
    is_all: bool,
    steering: Steering,
    dry_run: bool,
    as_json: bool,
) -> None:
    """Release leases, so that other workers read the shards.

    The owners finish their batches, store their progress and hand over, so no record is repeated. The command names
    other workers as the next owners if the fleet has a leader; peers take the leases by themselves. A worker that runs
    on gets shards again when the fleet balances: to take it out of service, stop it.

    \b
    Exit codes:
      0         all these leases were released
      1         owners kept some leases, or an error, which is named
      2         wrong options
      130, 143  ended by Ctrl-C or SIGTERM; the leases are given back
    """  # noqa: D301 - click needs the character
    if [bool(shards), worker is not None, is_all].count(True) != 1:
        raise click.UsageError("Give either shards, or --worker NAME, or --all.")
    request = ReleaseRequest(
        shards=shards, worker=None if worker is None else WorkerId(worker), is_all=is_all
    )
    planned, result, given = asyncio.run(_release(connection, request, steering, dry_run=dry_run))
    rows = [
        (lease.key, str(lease.actual_owner), _next_owner(lease.key, given, dry_run=dry_run))
        for lease in planned.leases
    ]
    if as_json:
        names = ("key", "owner", "next_owner", "is_released")
        leases = [dict(zip(names, (*row, row[0] in given), strict=True)) for row in rows]
        print_json({"dry_run": dry_run, "leases": leases})
    else:
        if rows:
            print_table(COLUMNS, rows)
            print_line("")
        verb = "would be released" if dry_run else "released"
        print_line(f"{format_count(len(rows) if dry_run else len(given), 'lease')} {verb}")
    if result.kept:
        say(describe_kept(result.kept))
        raise SystemExit(1)


async def _release(
    connection: Connection, request: ReleaseRequest, steering: Steering, *, dry_run: bool
) -> tuple[PlannedRelease, CaptureResult, dict[LeaseKey, WorkerId | None]]:
    async with connection.lease_table() as table:
        planned = await plan_release(table, SystemClock(), request)
        if dry_run:
            return planned, CaptureResult(frozenset(), frozenset()), {}
        capture = steering.capture(table, "release")
        work = release_leases(capture, planned, timeout_ms=steering.timeout_ms)
        return planned, *await give_back_on_signals(work)


def _next_owner(key: LeaseKey, given: dict[LeaseKey, WorkerId | None], *, dry_run: bool) -> str:
    if dry_run:
        return "another worker"
    return str(given[key] or "free") if key in given else "unchanged"
