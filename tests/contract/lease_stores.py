"""The stores for all lease tests, and how to open the same table from a second process."""

import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from leasehold.adapters.aws.dynamodb_rows import DynamoDbRows, TableSettings
from leasehold.adapters.memory.rows import MemoryRows
from leasehold.adapters.sqlite_rows import SqliteRows
from leasehold.core.leases.row_writes import PutRow, Row
from leasehold.ports import RowStore
from tests.servers import Server

SERVERS = ("dynamodb_local", "ministack")
SHARED = ("sqlite", *SERVERS)  # stores that several processes can open
ALL = ("memory", *SHARED)


@dataclass(frozen=True, slots=True)
class TableLocation:
    """The location of a table: enough to open it in this process or in another."""

    kind: str
    url: str
    table: str

    def open(self, settings: TableSettings | None = None) -> RowStore:
        """Open the store at this location."""
        match self.kind:
            case "memory":
                return MemoryRows()
            case "sqlite":
                return SqliteRows(self.table)
            case _:
                client: Any = Server(self.kind, self.url, Path()).client("dynamodb")
                return DynamoDbRows(client, self.table, settings=settings)


def new_location(request: pytest.FixtureRequest, kind: str, folder: Path) -> TableLocation:
    """The location of a new table on this kind of store."""
    if kind in SERVERS:
        server: Server = request.getfixturevalue(kind)
        return TableLocation(kind, server.url, f"leases-{uuid.uuid4().hex}")
    return TableLocation(kind, "", str(folder / "leases.sqlite"))


async def create_filled(open_store: Callable[[], RowStore], rows: Sequence[Row]) -> RowStore:
    """A prepared store with these rows."""
    store = open_store()
    await store.prepare()
    for row in rows:
        await store.write(PutRow(row["leaseKey"]["S"], row))
    return store
