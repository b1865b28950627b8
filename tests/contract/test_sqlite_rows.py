"""Rows in SQLite: durable, and safe against damaged files."""

import asyncio
import sqlite3
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable
from contextlib import AbstractContextManager, closing
from pathlib import Path

import pytest

from leasehold.adapters import sqlite_rows
from leasehold.adapters.sqlite_rows import BUSY_TIMEOUT_MS, SqliteRows, _set_up
from leasehold.config.connection import ConnectionSettings
from leasehold.core.leases import lease_rules
from leasehold.core.leases.lease_row import lease_to_row
from leasehold.core.leases.row_writes import PutRow, Row
from leasehold.core.model import (
    LeaseKey,
)
from leasehold.errors import (
    ConfigError,
    MalformedRowError,
    NotFoundError,
    ServiceError,
    UnavailableError,
)
from leasehold.fleet.table.lease_table import LeaseTable
from leasehold.ports import Applied, Refused
from leasehold.wiring import open_lease_table
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


def test_a_new_file_is_readable_by_its_owner_only(tmp_path: Path) -> None:
    """So are SQLite's other files beside it. A file that its owner shares stays shared."""

    async def permissions_of(name: str) -> set[int]:
        store = await create_filled(lambda: SqliteRows(tmp_path / name), [row_of("x")])
        found = await asyncio.to_thread(
            lambda: {each.stat().st_mode & 0o777 for each in tmp_path.glob(f"{name}*")}
        )
        await store.close()
        return found

    (tmp_path / "shared").touch()
    (tmp_path / "shared").chmod(0o664)
    assert asyncio.run(permissions_of("new")) == {0o600}
    assert asyncio.run(permissions_of("shared")) == {0o664}


def test_writes_at_the_same_time_are_one_commit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each has its own condition and outcome: applied, refused, or an error about its own row."""
    commits: list[sqlite3.Connection] = []

    async def scenario() -> None:
        path = tmp_path / "leases.sqlite"
        store = await create_filled(lambda: SqliteRows(path), [row_of("old"), row_of("bad")])
        with closing(sqlite3.connect(path)) as connection, connection:
            connection.execute("UPDATE rows SET row_json = 'no JSON' WHERE row_key = 'bad'")
        monkeypatch.setattr(sqlite_rows, "_transaction", count_commit)
        writes = [PutRow(key, row_of(key)) for key in ("new", "old", "bad", "new")]
        applied, refused, failed, repeated = await asyncio.gather(
            *map(store.write, writes), return_exceptions=True
        )
        assert applied == Applied(row_of("new"))
        assert refused == Refused(row_of("old"))
        assert isinstance(failed, MalformedRowError)
        assert repeated == Refused(row_of("new"))
        assert len(commits) == 1
        await asyncio.gather(store.write(PutRow("last", row_of("last"))), store.close())
        with closing(sqlite3.connect(path)) as connection:
            assert connection.execute("SELECT count(*) FROM rows").fetchone() == (4,)

    def count_commit(connection: sqlite3.Connection) -> AbstractContextManager[sqlite3.Connection]:
        commits.append(connection)
        return transaction(connection)

    transaction = sqlite_rows._transaction
    asyncio.run(scenario())


def test_a_failed_commit_fails_all_of_its_writes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A cancelled caller does not keep the others from learning it."""

    async def scenario() -> None:
        store = await create_filled(lambda: SqliteRows(tmp_path / "leases.sqlite"), [row_of("old")])
        monkeypatch.setattr(sqlite_rows, "_put", fail)
        writes = [asyncio.create_task(store.write(PutRow(key, row_of(key)))) for key in "abc"]
        await asyncio.sleep(0)
        writes[1].cancel()
        results = await asyncio.gather(*writes, return_exceptions=True)
        assert [type(each) for each in results] == [ServiceError, asyncio.CancelledError, ServiceError]
        assert await store.scan() == (row_of("old"),)
        await store.close()

    def fail(*_: object) -> None:
        error = sqlite3.OperationalError("disk I/O error")
        error.sqlite_errorcode = sqlite3.SQLITE_IOERR
        raise error

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
        with pytest.raises(NotFoundError, match="holds no lease table"):
            await empty.get("x")
        await empty.close()

    asyncio.run(scenario())
    with pytest.raises(ConfigError, match="file"):
        SqliteRows(":memory:")


def test_a_file_has_the_leases_of_one_application(tmp_path: Path) -> None:
    """Members and readers of another application are refused. A reader that names none reads every file."""

    async def use(path: Path, application: str | None) -> None:
        settings = ConnectionSettings(leases=f"sqlite:///{path}")
        member, reader = (open_lease_table(settings, application or "") for _ in range(2))
        try:
            if application is not None:
                await member.prepare()
            await reader.list()
        finally:
            await member.close()
            await reader.close()

    async def read(path: Path, application: str) -> None:
        store = SqliteRows(path, table=application)
        try:
            await store.scan()
        finally:
            await store.close()

    async def scenario() -> None:
        path, earlier = tmp_path / "leases.sqlite", tmp_path / "earlier.sqlite"
        await use(path, "billing")
        await use(path, "billing")
        await use(path, None)
        refused = r"leases\.sqlite: the file has the leases of 'billing', not of 'audit': check the name"
        with pytest.raises(ConfigError, match=refused):
            await use(path, "audit")
        with pytest.raises(ConfigError, match=refused):
            await read(path, "audit")
        # A file without a name, of an earlier version, belongs to the first member that uses it.
        await (await create_filled(lambda: SqliteRows(earlier), [row_of("x")])).close()
        await read(earlier, "audit")
        await use(earlier, "billing")
        with pytest.raises(ConfigError, match="'billing', not of 'audit'"):
            await read(earlier, "audit")

    asyncio.run(scenario())


def test_a_file_without_leases_is_not_changed_by_a_reader(tmp_path: Path) -> None:
    """A wrong path may lead to the database of another program. A missing file is not created."""
    other, empty, missing = (tmp_path / name for name in ("other.sqlite", "empty.sqlite", "missing.sqlite"))
    with closing(sqlite3.connect(other)) as connection:
        connection.execute("CREATE TABLE bookmarks (url TEXT)")
    empty.touch()
    before = {path.name: path.read_bytes() for path in (other, empty)}

    async def scan(path: Path) -> None:
        store = SqliteRows(path)
        try:
            with pytest.raises(NotFoundError, match="holds no lease table: check the path"):
                await store.scan()
        finally:
            await store.close()

    for path in (other, empty, missing):
        asyncio.run(scan(path))
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before


def row_of(key: str) -> Row:
    return {"leaseKey": {"S": key}}


def delete_file(path: Path) -> None:
    """Delete a SQLite file, as a user does."""
    for file in path.parent.glob(f"{path.name}*"):
        file.unlink()


def test_a_deleted_file_is_an_error_until_it_is_there_again(tmp_path: Path) -> None:
    """A process that has the file open would otherwise read and write rows that nobody else sees."""

    async def scenario() -> None:
        path = tmp_path / "leases.sqlite"
        store = await create_filled(lambda: SqliteRows(path), [row_of("x")])
        delete_file(path)
        for _ in range(2):
            with pytest.raises(NotFoundError, match=r"leases\.sqlite was deleted or moved .* restart"):
                await store.get("x")
            with pytest.raises(NotFoundError, match="was deleted or moved"):
                await store.write(PutRow("x", row_of("x")))
        assert not path.exists()
        await store.prepare()
        assert await store.get("x") is None
        await store.close()

    asyncio.run(scenario())


def test_a_replaced_file_is_opened_again(tmp_path: Path) -> None:
    """A process that is kept for the next run uses the file of that run, and leaves its write-ahead log alone."""

    async def scenario() -> None:
        path = tmp_path / "leases.sqlite"
        kept = await create_filled(lambda: SqliteRows(path), [row_of("old")])
        delete_file(path)
        following = await create_filled(lambda: SqliteRows(path), [row_of("new")])
        assert await kept.scan() == (row_of("new"),)
        assert isinstance(await kept.write(PutRow("other", row_of("other"))), Applied)
        assert await following.scan() == (row_of("new"), row_of("other"))
        await kept.close()
        third = SqliteRows(path)
        assert await third.scan() == (row_of("new"), row_of("other"))
        await third.close()
        await following.close()

    asyncio.run(scenario())


DAMAGED: tuple[str | bytes, ...] = (
    "[]",
    "{",
    '{"leaseCounter": 7}',
    '{"leaseKey": {"S": "shardId-bad"}, "checkpoint": {"B": "?"}}',
    '{"leaseKey": {"S": "shardId-bad"}, "x": {"N": 1}}',
    '{"leaseKey": {"S": "shardId-bad"}, "x": ' + '{"L":[' * 3000 + "]}" * 3000 + "}",
    "[" * 100_000,
    '{"leaseKey": {"S": "shardId-000000000001"}, "checkpoint": {"S": "SHARD_END"}}',  # the key of another row
    b"\xff",
    b'{"leaseKey": {"S": "shardId-bad"}, "leaseOwner": {"S": "\xc3"}}',
)


@pytest.mark.parametrize("damage", DAMAGED, ids=range(len(DAMAGED)))
def test_sqlite_reports_a_damaged_row(tmp_path: Path, damage: str | bytes) -> None:
    """A row that is not in DynamoDB's JSON format, or not UTF-8, is rejected by name; the others are read."""

    async def scenario() -> None:
        store = SqliteRows(tmp_path / "leases.sqlite")
        table = LeaseTable(await create_filled(lambda: store, ()))
        await table.create(new_lease(1))
        store._open().execute("INSERT INTO rows VALUES ('shardId-bad', NULL, CAST(? AS TEXT))", (damage,))
        listing = await table.list()
        assert listing.leases == (new_lease(1),)
        assert [error.key for error in listing.rejected] == ["shardId-bad"]
        with pytest.raises(MalformedRowError, match="shardId-bad"):
            await table.get(LeaseKey("shardId-bad"))
        await table.close()

    asyncio.run(scenario())


@pytest.mark.parametrize("kind", ["TEXT", "BLOB"])
def test_sqlite_reports_a_damaged_key(tmp_path: Path, kind: str) -> None:
    """The report names the row with escaped bytes. It may be a lease, so it is not ignored."""

    async def scenario() -> None:
        store = SqliteRows(tmp_path / "leases.sqlite")
        table = LeaseTable(await create_filled(lambda: store, ()))
        await table.create(new_lease(1))
        insert = f"INSERT INTO rows VALUES (CAST(? AS {kind}), 'a', '{{}}')"
        store._open().execute(insert, (b"bad\xff",))
        listing = await table.list()
        assert listing.leases == (new_lease(1),)
        assert [error.key for error in listing.rejected] == [r"bad\xff"]
        assert await store.keys_owned_by("a") == [r"bad\xff"]
        await table.close()

    asyncio.run(scenario())


def run_with(path: Path | str, use: Callable[[SqliteRows], Awaitable[None]]) -> None:
    async def scenario() -> None:
        store = SqliteRows(path)
        try:
            await use(store)
        finally:
            await store.close()

    asyncio.run(scenario())


@pytest.mark.parametrize("name", ["./:memory:", "file:leases?mode=memory", "./file::memory:"])
def test_a_file_with_a_special_name_is_a_file(
    tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A database in memory would be another one for each process. A name that asks for one is refused."""
    monkeypatch.chdir(tmp_path)

    async def use(store: SqliteRows) -> None:
        await store.prepare()
        assert await store.get("x") is None

    if not name.startswith("./"):
        with pytest.raises(ConfigError, match="give the path of a file"):
            SqliteRows(name)
        return
    run_with(name, use)
    assert (tmp_path / name).stat().st_size > 0


def test_a_file_system_without_write_ahead_logs_is_refused() -> None:
    """The journal mode of a database in memory does not change either."""
    with closing(sqlite3.connect(":memory:")) as connection, pytest.raises(ConfigError, match="local disk"):
        _set_up(connection, Path("leases.sqlite"))


async def create_many(table: LeaseTable) -> None:
    for number in range(1000):
        await table.create(new_lease(number))


def test_a_full_disk_is_reported_at_once(tmp_path: Path) -> None:
    """It is not an error to retry. When there is space again, the store works again."""

    async def use(store: SqliteRows) -> None:
        await store.prepare()
        table, connection = LeaseTable(store), store._open()
        connection.execute("PRAGMA max_page_count = 1")  # raised by SQLite to the current number of pages
        with pytest.raises(ServiceError, match=r"leases\.sqlite.*full; free some space") as caught:
            await create_many(table)
        assert type(caught.value) is ServiceError
        assert not connection.in_transaction
        connection.execute("PRAGMA max_page_count = 100000")
        assert await table.create(new_lease(1000))

    run_with(tmp_path / "leases.sqlite", use)


CREATE_ON_A_FULL_DISK = """
import asyncio, resource, sys
from leasehold.adapters.sqlite_rows import SqliteRows
from leasehold.errors import ServiceError
resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))
try:
    asyncio.run(SqliteRows(sys.argv[1]).prepare())
except ServiceError as error:
    print(type(error).__name__, error)
"""


def test_a_full_disk_is_reported_when_the_file_is_created(tmp_path: Path) -> None:
    """Only a lock is waited for."""
    started = time.monotonic()
    command = [sys.executable, "-c", CREATE_ON_A_FULL_DISK, str(tmp_path / "leases.sqlite")]
    run = subprocess.run(command, capture_output=True, text=True, check=True)
    assert run.stdout.startswith("ServiceError SQLite leases at ")
    assert "check the disk" in run.stdout
    assert time.monotonic() - started < BUSY_TIMEOUT_MS / 1000


def test_a_lock_of_another_process_is_an_error_to_retry(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both when the file is opened and when a row is written."""
    monkeypatch.setattr(sqlite_rows, "BUSY_TIMEOUT_MS", 50)
    path = tmp_path / "leases.sqlite"

    async def use(store: SqliteRows) -> None:
        with closing(sqlite3.connect(path, isolation_level=None)) as other:
            other.execute("BEGIN EXCLUSIVE")
            with pytest.raises(UnavailableError, match="locked"):
                await store.prepare()
            other.execute("ROLLBACK")
            await store.prepare()
            other.execute("BEGIN IMMEDIATE")
            with pytest.raises(UnavailableError, match="locked"):
                await LeaseTable(store).create(new_lease(1))
            other.execute("ROLLBACK")
            assert await LeaseTable(store).create(new_lease(1))

    run_with(path, use)


def test_a_failed_commit_is_rolled_back(tmp_path: Path) -> None:
    """Otherwise no later transaction could begin."""

    async def use(store: SqliteRows) -> None:
        await store.prepare()
        connection = store._open()
        connection.set_authorizer(
            lambda _action, what, *_: sqlite3.SQLITE_DENY if what == "COMMIT" else sqlite3.SQLITE_OK
        )
        with pytest.raises(ConfigError, match="not authorized"):
            await LeaseTable(store).create(new_lease(1))
        connection.set_authorizer(None)
        assert await LeaseTable(store).create(new_lease(1))

    run_with(tmp_path / "leases.sqlite", use)


def test_a_read_only_file_is_refused(tmp_path: Path) -> None:
    """The remedy names the file and its folder."""

    async def use(store: SqliteRows) -> None:
        await store.prepare()
        store._open().execute("PRAGMA query_only = 1")
        with pytest.raises(ConfigError, match=r"readonly.*may write to the file and its folder"):
            await LeaseTable(store).create(new_lease(1))

    run_with(tmp_path / "leases.sqlite", use)


def test_a_damaged_file_is_refused(tmp_path: Path) -> None:
    """The message says that its content is lost."""
    path = tmp_path / "leases.sqlite"

    async def fill(store: SqliteRows) -> None:
        await store.prepare()
        for number in range(100):
            await LeaseTable(store).create(new_lease(number))

    async def read(store: SqliteRows) -> None:
        with pytest.raises(ConfigError, match="the file is damaged: restore it from a copy"):
            await store.scan()

    run_with(path, fill)
    content = path.read_bytes()
    path.write_bytes(content[:4096] + bytes(len(content) - 4096))
    run_with(path, read)


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        (b"", "holds no lease table: check the path, or start a worker"),
        (b"hello", "not a database; choose another file"),
        (None, "check that the folder exists"),
    ],
)
def test_a_file_without_leases_is_explained(tmp_path: Path, content: bytes | None, problem: str) -> None:
    """An empty file, another file, and a folder that does not exist."""
    path = tmp_path / "leases.sqlite" if content is not None else tmp_path / "nowhere" / "leases.sqlite"
    if content is not None:
        path.write_bytes(content)

    async def use(store: SqliteRows) -> None:
        with pytest.raises((ConfigError, NotFoundError), match=problem) as caught:
            await store.scan()
        assert str(path) in str(caught.value)

    run_with(path, use)


def test_a_database_of_another_program_is_refused(tmp_path: Path) -> None:
    """It has a table of the same name with other columns."""
    path = tmp_path / "other.sqlite"
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("CREATE TABLE rows (name TEXT)")

    async def use(store: SqliteRows) -> None:
        with pytest.raises(ConfigError, match="is not a lease table of Leasehold"):
            await store.prepare()

    run_with(path, use)


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
