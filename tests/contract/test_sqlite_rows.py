"""Rows in SQLite: durable, and safe against damaged files."""

import asyncio
from pathlib import Path

import pytest

from leasehold.adapters.sqlite_rows import SqliteRows
from leasehold.core.leases import lease_rules
from leasehold.core.leases.lease_row import lease_to_row
from leasehold.core.leases.row_writes import Row
from leasehold.core.model import (
    LeaseKey,
)
from leasehold.errors import (
    ConfigError,
    MalformedRowError,
    NotFoundError,
)
from leasehold.fleet.table.lease_table import LeaseTable
from leasehold.ports import Refused
from tests.contract.lease_samples import S1, A, new_lease
from tests.contract.lease_stores import create_filled


def test_sqlite_leases_are_durable(tmp_path: Path) -> None:
    """A second connection reads the rows of the first, with bytes and unknown attributes."""

    async def scenario() -> None:
        path = tmp_path / "leases.sqlite"
        row: Row = {
            "leaseKey": {"S": "x"},
            "entityType": {"S": "NEW"},
            "state": {"B": b"\x00\xff"},
            "nested": {"M": {"list": {"L": [{"B": b"\x01"}, {"NULL": True}]}, "set": {"BS": [b"\x02"]}}},
        }
        first = await create_filled(lambda: SqliteRows(path), [row])
        await first.close()
        second = SqliteRows(path)
        assert await second.get("x") == row
        await second.close()

    asyncio.run(scenario())


def test_sqlite_refuses_other_files(tmp_path: Path) -> None:
    """Another file format, and a missing table, are different errors that name the file."""

    async def scenario() -> None:
        other = tmp_path / "notes.txt"
        other.write_text("not a database, but long enough to be mistaken for one " * 20)
        store = SqliteRows(other)
        with pytest.raises(ConfigError, match=r"notes\.txt"):
            await store.prepare()
        await store.close()
        empty = SqliteRows(tmp_path / "empty.sqlite")
        with pytest.raises(NotFoundError, match="prepare"):
            await empty.get("x")
        await empty.close()

    asyncio.run(scenario())
    with pytest.raises(ConfigError, match="file"):
        SqliteRows(":memory:")


DAMAGED = (
    "[]",
    "{",
    '{"leaseCounter": 7}',
    '{"leaseKey": {"S": "shardId-bad"}, "checkpoint": {"B": "?"}}',
    '{"leaseKey": {"S": "shardId-bad"}, "x": {"N": 1}}',
    '{"leaseKey": {"S": "shardId-bad"}, "x": ' + '{"L":[' * 3000 + "]}" * 3000 + "}",
    "[" * 100_000,
    '{"leaseKey": {"S": "shardId-000000000001"}, "checkpoint": {"S": "SHARD_END"}}',  # the key of another row
)


@pytest.mark.parametrize("damage", DAMAGED, ids=range(len(DAMAGED)))
def test_sqlite_reports_a_damaged_row(tmp_path: Path, damage: str) -> None:
    """A row that is not in DynamoDB's JSON format is rejected by name; the others are read."""

    async def scenario() -> None:
        store = SqliteRows(tmp_path / "leases.sqlite")
        table = LeaseTable(await create_filled(lambda: store, ()))
        await table.create(new_lease(1))
        store._open().execute("INSERT INTO rows VALUES ('shardId-bad', NULL, ?)", (damage,))
        listing = await table.list()
        assert listing.leases == (new_lease(1),)
        assert [error.key for error in listing.rejected] == ["shardId-bad"]
        with pytest.raises(MalformedRowError, match="shardId-bad"):
            await table.get(LeaseKey("shardId-bad"))
        await table.close()

    asyncio.run(scenario())


def test_an_invalid_number_satisfies_no_condition(tmp_path: Path) -> None:
    """A damaged file may hold numbers that DynamoDB would refuse; nothing crashes."""

    async def scenario() -> None:
        for counter in ("sNaN", "Infinity", "one"):
            row: Row = {**lease_to_row(new_lease(1)), "leaseCounter": {"N": counter}}
            store = await create_filled(lambda: SqliteRows(tmp_path / f"{counter}.sqlite"), [row])  # noqa: B023 - used at once
            assert isinstance(await store.write(lease_rules.take(new_lease(1), A, S1)), Refused)
            assert (await LeaseTable(store).list()).rejected
            await store.close()

    asyncio.run(scenario())
