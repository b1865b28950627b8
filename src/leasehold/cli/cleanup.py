"""`leasehold cleanup`: lists the lease tables of applications that nobody uses, and deletes them."""

from __future__ import annotations

import asyncio
from typing import Final

import click

from leasehold.adapters.system_clock import SystemClock
from leasehold.cli.connections import Connection, dynamodb_connection_options
from leasehold.cli.option_values import Seconds
from leasehold.cli.output import format_count, print_json, print_line, print_table, progress_lines
from leasehold.cli.steering import confirm, say
from leasehold.core.steering.unused_applications import JudgedApplication, application_to_json
from leasehold.core.time_text import format_time
from leasehold.steering.unused_tables import delete_application, judge_applications, require_unused

COLUMNS = ("application", "use", "leases", "owners", "last report", "tables")
WATCH_S: Final = 60.0
IDLE_DAYS: Final = 7.0
_DAY_S: Final = 86_400


@click.command()
@dynamodb_connection_options
@click.option("--prefix", default="", metavar="TEXT", help="Only tables whose names begin with this text.")
@click.option(
    "--watch",
    type=Seconds(min=1),
    default=WATCH_S,
    show_default=True,
    metavar="SECONDS",
    help="How long to watch the tables. Use more than the failover time and the interval of reports (30 s).",
)
@click.option(
    "--idle-for",
    type=Seconds(min=0),
    default=IDLE_DAYS,
    show_default=True,
    metavar="DAYS",
    help="An application with a younger report of a worker counts as recent.",
)
@click.option("--delete", metavar="NAME", help="Delete the tables of this application, if it is unused.")
@click.option("--yes", is_flag=True, help="Do not ask for confirmation.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def cleanup(
    *,
    connection: Connection,
    prefix: str,
    watch: float,
    idle_for: float,
    delete: str | None,
    yes: bool,
    as_json: bool,
) -> None:
    """List the lease tables of applications that nobody uses, and delete one.

    The command reads every table with the key of a lease table twice. An application counts as unused if no row
    changed in between and its last report is old. A table with a row that is not the KCL's is never deleted. Without
    --delete the command writes nothing.
    """
    asyncio.run(
        _clean_up(connection, delete or prefix, watch, idle_for, delete=delete, yes=yes, as_json=as_json)
    )


async def _clean_up(
    connection: Connection,
    prefix: str,
    watch: float,
    idle_for: float,
    *,
    delete: str | None,
    yes: bool,
    as_json: bool,
) -> None:
    from leasehold.adapters.aws.clients import dynamodb_client  # noqa: PLC0415 - boto3 is slow
    from leasehold.adapters.aws.dynamodb_tables import DynamoDbTables  # noqa: PLC0415
    from leasehold.wiring import aws_access  # noqa: PLC0415

    directory = DynamoDbTables(
        dynamodb_client(aws_access(connection.settings, connection.settings.dynamodb_endpoint))
    )
    try:
        say(f"watching the tables for {watch:g} s")
        with progress_lines(lambda: "still watching the tables"):
            found = await judge_applications(
                directory,
                SystemClock(),
                prefix=prefix,
                watch_ms=round(watch * 1000),
                idle_s=round(idle_for * _DAY_S),
            )
        if delete is None:
            _show(found, as_json=as_json)
            return
        application = require_unused(found, delete)
        tables = ", ".join(application.tables.names)
        confirm(
            f"Delete {tables}? The checkpoints of {delete} are lost ({application.usage.value}).", yes=yes
        )
        await delete_application(directory, application)
    finally:
        await directory.close()
    if as_json:
        print_json({"deleted": list(application.tables.names)})
    else:
        print_line(f"deleted {tables}")


def _show(found: list[JudgedApplication], *, as_json: bool) -> None:
    if as_json:
        print_json({"applications": [application_to_json(each) for each in found]})
        return
    if found:
        print_table(COLUMNS, [_row(each) for each in found])
        print_line("")
    unused = sum(each.may_be_deleted for each in found)
    print_line(f"{format_count(len(found), 'application')}; {unused} unused")


def _row(each: JudgedApplication) -> tuple[str, ...]:
    return (
        each.tables.lease,
        each.usage.value,
        str(each.leases),
        str(len(each.owners)),
        "-" if each.reported_s is None else format_time(each.reported_s * 1000),
        str(len(each.tables.names)),
    )
