"""`leasehold release`: makes owners hand over leases, so that other workers read these shards."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

import click

from leasehold.adapters.system_clock import SystemClock
from leasehold.cli.connections import Connection, connection_options
from leasehold.cli.output import format_count, print_json, print_line, print_table
from leasehold.cli.steering import (
    Steering,
    confirm,
    describe_kept,
    give_back_on_signals,
    say,
    steering_options,
)
from leasehold.core.model import LeaseKey, WorkerId
from leasehold.core.steering.release_plan import ReleaseRequest
from leasehold.steering.lease_capture import CaptureResult
from leasehold.steering.release import PlannedRelease, plan_release, release_leases

COLUMNS = ("shard", "owner", "next owner")


@dataclass(frozen=True, slots=True, kw_only=True)
class _Options:
    dry_run: bool
    yes: bool
    as_json: bool


@click.command()
@connection_options
@click.argument("shards", nargs=-1, metavar="[SHARD]...")
@click.option("--worker", metavar="NAME", help="Release all leases of this worker.")
@click.option("--all", "is_all", is_flag=True, help="Release all leases.")
@steering_options
@click.option("--dry-run", is_flag=True, help="Only show which leases would be released.")
@click.option("--yes", is_flag=True, help="Do not ask for confirmation. A single shard needs none.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def release(
    *,
    connection: Connection,
    shards: tuple[str, ...],
    worker: str | None,
    is_all: bool,
    steering: Steering,
    **chosen: bool,
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
    options = _Options(**chosen)
    planned, result, given = asyncio.run(_release(connection, request, steering, options))
    _show(planned, given, options)
    if result.kept:
        say(describe_kept(result.kept))
        raise SystemExit(1)


async def _release(
    connection: Connection, request: ReleaseRequest, steering: Steering, options: _Options
) -> tuple[PlannedRelease, CaptureResult, dict[LeaseKey, WorkerId | None]]:
    async with connection.lease_table() as table:
        planned = await plan_release(table, SystemClock(), request)
        if options.dry_run:
            return planned, CaptureResult(frozenset(), frozenset()), {}
        if planned.leases and len(request.shards) != 1:
            _confirm(planned, options)
        capture = steering.capture(table, "release")
        work = release_leases(capture, planned, timeout_ms=steering.timeout_ms)
        return planned, *await give_back_on_signals(work)


def _confirm(planned: PlannedRelease, options: _Options) -> None:
    if not options.yes and not options.as_json:
        print_table(COLUMNS[:2], [(lease.key, str(lease.actual_owner)) for lease in planned.leases])
        print_line("")
    owners = {lease.actual_owner for lease in planned.leases}
    confirm(
        f"Release {format_count(len(planned.leases), 'lease')} of {format_count(len(owners), 'worker')}?",
        yes=options.yes,
    )


def _show(planned: PlannedRelease, given: dict[LeaseKey, WorkerId | None], options: _Options) -> None:
    rows = [
        (lease.key, str(lease.actual_owner), _next_owner(lease.key, given, dry_run=options.dry_run))
        for lease in planned.leases
    ]
    if options.as_json:
        names = ("key", "owner", "next_owner", "is_released")
        leases = [dict(zip(names, (*row, row[0] in given), strict=True)) for row in rows]
        print_json({"dry_run": options.dry_run, "leases": leases})
        return
    if rows:
        print_table(COLUMNS, rows)
        print_line("")
    verb = "would be released" if options.dry_run else "released"
    print_line(f"{format_count(len(rows) if options.dry_run else len(given), 'lease')} {verb}")


def _next_owner(key: LeaseKey, given: dict[LeaseKey, WorkerId | None], *, dry_run: bool) -> str:
    if dry_run:
        return "another worker"
    return str(given[key] or "free") if key in given else "unchanged"
