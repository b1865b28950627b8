"""Finds applications that nobody uses, by watching their tables, and deletes their tables."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Protocol

from leasehold.core.leases.row_writes import Row
from leasehold.core.steering.unused_applications import (
    ApplicationTables,
    JudgedApplication,
    TableShape,
    find_applications,
    judge_application,
)
from leasehold.errors import ConfigError
from leasehold.ports import Clock


class TableDirectory(Protocol):
    """The tables of an account."""

    async def list_names(self) -> Sequence[str]:
        """The names of all tables."""
        ...

    async def describe(self, name: str) -> TableShape:
        """The primary key and the indexes of a table."""
        ...

    async def rows(self, name: str) -> Sequence[Row]:
        """Every row of a table, with the newest writes."""
        ...

    async def delete(self, name: str) -> None:
        """Delete a table."""
        ...


async def judge_applications(
    directory: TableDirectory, clock: Clock, *, prefix: str, watch_ms: int, idle_s: int
) -> list[JudgedApplication]:
    """Read the tables of all applications whose names begin with `prefix` twice, `watch_ms` apart."""
    names = [name for name in await directory.list_names() if name.startswith(prefix)]
    # One after the other: DynamoDB allows few descriptions a second, and nothing is urgent.
    applications = find_applications([await directory.describe(name) for name in names])
    before = {each.lease: await _read(directory, each) for each in applications}
    if applications:
        await clock.sleep_ms(watch_ms)
    return [
        judge_application(
            each,
            before[each.lease],
            await _read(directory, each),
            wall_s=clock.wall_ms() // 1000,
            idle_s=idle_s,
        )
        for each in applications
    ]


def require_unused(found: Iterable[JudgedApplication], name: str) -> JudgedApplication:
    """The application to delete. Raises ConfigError if it is used, or if it is none."""
    application = next((each for each in found if each.tables.lease == name), None)
    if application is None:
        raise ConfigError(
            f"table {name} does not exist, or is not a lease table, which has the key leaseKey and no other index; "
            "nothing is deleted"
        )
    if not application.may_be_deleted:
        raise ConfigError(
            f"application {name} is {application.usage.value}, so nothing is deleted: stop its members and wait, or "
            "lower --idle-for"
        )
    return application


async def delete_application(directory: TableDirectory, application: JudgedApplication) -> None:
    """Delete the tables of an application, if they are still as they were judged. The lease table comes last."""
    now = await _read(directory, application.tables)
    again = judge_application(application.tables, now, now, wall_s=0, idle_s=0)
    if (again.leases, again.owners, again.reported_s) != (
        application.leases,
        application.owners,
        application.reported_s,
    ):
        raise ConfigError(
            f"application {application.tables.lease} has changed meanwhile, so nothing is deleted"
        )
    for name in application.tables.names:
        await directory.delete(name)


async def _read(directory: TableDirectory, tables: ApplicationTables) -> Mapping[str, Sequence[Row]]:
    return {name: await directory.rows(name) for name in tables.names}
