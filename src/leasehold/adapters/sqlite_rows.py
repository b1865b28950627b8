"""Rows in a SQLite file: leases for the processes of one machine. A fleet on several machines needs DynamoDB.

Each row is stored as one JSON text in DynamoDB's format, so unknown attributes are kept. A write reads the row,
checks the condition and replaces the row inside one `BEGIN IMMEDIATE` transaction. SQLite allows a single writer, so
exactly one of several racing processes finds its condition true.

Only a lock of another process is worth waiting for. Every other error of SQLite is raised at once, with the remedy.
"""

from __future__ import annotations

import asyncio
import os
import sqlite3
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path
from time import monotonic, sleep
from typing import Final, TypeVar
from weakref import WeakKeyDictionary

import orjson

from leasehold.adapters.row_json import row_from_json_object, row_to_json
from leasehold.core.leases.row_writes import Row, RowWrite, may_apply, next_row
from leasehold.errors import (
    ConfigError,
    LeaseholdError,
    MalformedRowError,
    NotFoundError,
    ServiceError,
    UnavailableError,
)
from leasehold.ports import Applied, Refused, RowStore

T = TypeVar("T")

BUSY_TIMEOUT_MS: Final = 30_000
_OWNER_ONLY: Final = 0o600

# Result codes without their extension. https://www.sqlite.org/rescode.html
_LOCKED: Final = frozenset({sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED, sqlite3.SQLITE_PROTOCOL})
# The program cannot continue with this file.
_UNUSABLE: Final = {
    sqlite3.SQLITE_NOTADB: "choose another file, or move this one away",
    sqlite3.SQLITE_CORRUPT: "the file is damaged: restore it from a copy, or move it away; a new one begins without "
    "checkpoints",
    sqlite3.SQLITE_CANTOPEN: "check that the folder exists and that this user may write to it",
    sqlite3.SQLITE_PERM: "check that this user may write to the file and its folder",
    sqlite3.SQLITE_READONLY: "check that this user may write to the file and its folder, and that the file is in place",
}
# The disk may work again later, but not soon.
_DISK: Final = {
    sqlite3.SQLITE_FULL: "free some space on the disk",
    sqlite3.SQLITE_IOERR: "check the disk: its free space, its quota and its health",
}

_SCHEMA: Final = """
CREATE TABLE IF NOT EXISTS rows (row_key TEXT PRIMARY KEY, row_owner TEXT, row_json TEXT NOT NULL) WITHOUT ROWID;
CREATE INDEX IF NOT EXISTS rows_by_owner ON rows (row_owner) WHERE row_owner IS NOT NULL;
CREATE TABLE IF NOT EXISTS lease_table (name TEXT NOT NULL);
"""


_Waiting = tuple[RowWrite, "asyncio.Future[Applied | Refused]"]


class SqliteRows(RowStore):
    """A table in a file. All work runs on one thread, so callers never block the event loop.

    Writes that are requested at the same time, such as the heartbeats of a tick, are committed together: a commit waits
    for the disk and takes longer than the write. Each one has its own condition and its own outcome.

    The file has one table. `prepare` stores its name, and a store with another name refuses the file: two applications
    that share rows would each get a part of the records. A store without a name accepts every file.
    """

    def __init__(self, path: str | Path, *, table: str | None = None) -> None:
        if str(path).startswith((":memory:", "file:")):
            raise ConfigError(f"SQLite leases at {path}: give the path of a file that all processes can open")
        # SQLite gives some relative names a meaning of their own, such as a database in memory.
        self._path = Path(path).absolute()
        self._table = table
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="leasehold-sqlite")
        self._waiting: WeakKeyDictionary[asyncio.AbstractEventLoop, list[_Waiting]] = WeakKeyDictionary()
        self._connection: sqlite3.Connection | None = None
        self._opened: tuple[int, int] | None = None  # the file of the last connection

    async def prepare(self) -> None:
        """Create the file and the table if they are missing."""
        await self._run(self._prepare)

    async def create_owner_index(self) -> None:
        """Nothing to do: the table always has the index."""

    async def get(self, key: str) -> Row | None:
        """The current row."""
        return await self._run(lambda: _read(self._open(), key))

    async def write(self, write: RowWrite) -> Applied | Refused:
        """Apply one write if its condition holds."""
        loop = asyncio.get_running_loop()
        outcome: asyncio.Future[Applied | Refused] = loop.create_future()
        waiting = self._waiting.setdefault(loop, [])
        waiting.append((write, outcome))
        if len(waiting) == 1:
            loop.call_soon(self._start_writing, loop)
        return await outcome

    async def write_transaction(self, writes: Sequence[RowWrite]) -> bool:
        """Apply all writes or none."""
        return await self._run(lambda: self._write_together(writes))

    async def scan(self, *, segments: int = 1, is_consistent: bool = False) -> Sequence[Row]:  # noqa: ARG002
        """Every row, always up to date; a local file gains nothing from parallel segments."""
        return await self._run(self._scan)

    async def keys_owned_by(self, owner: str) -> Sequence[str] | None:
        """Keys by owner; this index is always up to date."""
        return await self._run(lambda: self._keys_owned_by(owner))

    async def close(self) -> None:
        """Close the file and end the thread."""
        self._start_writing(asyncio.get_running_loop())
        await self._run(self._close)
        self._thread.shutdown()

    async def _run(self, work: Callable[[], T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._thread, self._translate_errors, work)

    def _translate_errors(self, work: Callable[[], T]) -> T:
        try:
            return work()
        except sqlite3.Error as error:
            raise _translate_error(error, self._path) from error

    def _prepare(self) -> None:
        connection = self._open(may_create=True)
        connection.executescript(_SCHEMA)
        if self._table is not None:
            with _transaction(connection):
                if _read_table_name(connection) is None:
                    connection.execute("INSERT INTO lease_table VALUES (?)", (self._table,))
        self._check_table_name(connection)

    def _check_table_name(self, connection: sqlite3.Connection) -> None:
        found = _read_table_name(connection)
        if self._table is not None and found not in {None, self._table}:
            raise ConfigError(
                f"SQLite leases at {self._path}: the file has the leases of {found!r}, not of {self._table!r}: check "
                "the name of the application, or choose another file, because each application needs its own"
            )

    def _open(self, *, may_create: bool = False) -> sqlite3.Connection:
        """The connection to the file that is at the path now.

        A connection stays on its file after another process has deleted or replaced it, so its writes would be lost.
        """
        file = _identify(self._path)
        if self._connection is not None and file != self._opened:
            self._close()
        if self._opened is not None and file is None and not may_create:
            raise NotFoundError(
                f"{self._path} was deleted or moved while this process used its leases: restore the file, or restart "
                "all members"
            )
        if self._connection is None:
            if may_create:
                _create_private(self._path)
            elif file is None and self._path.parent.is_dir():
                raise _no_table(self._path)  # SQLite would create the file
            # Autocommit: transactions are opened explicitly.
            connection = sqlite3.connect(self._path, isolation_level=None, check_same_thread=False)
            try:
                connection.execute(f"PRAGMA busy_timeout = {BUSY_TIMEOUT_MS}")
                if not may_create:
                    # Before anything is changed: a wrong path may lead to the file of another program.
                    connection.execute("SELECT row_key, row_owner, row_json FROM rows LIMIT 0")
                _set_up(connection, self._path)
                if not may_create:
                    self._check_table_name(connection)
            except BaseException:
                connection.close()
                raise
            self._connection, self._opened = connection, _identify(self._path)
        return self._connection

    def _close(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def _start_writing(self, loop: asyncio.AbstractEventLoop) -> None:
        """Apply the writes that wait, in one transaction."""
        waiting = self._waiting.pop(loop, [])
        if not waiting:
            return
        writes = [write for write, _ in waiting]
        work = loop.run_in_executor(self._thread, self._translate_errors, lambda: self._write_each(writes))
        work.add_done_callback(lambda done: _set_outcomes([outcome for _, outcome in waiting], done))

    def _write_each(self, writes: Sequence[RowWrite]) -> list[Applied | Refused | LeaseholdError]:
        with _transaction(self._open()) as connection:
            return [_write_if_allowed(connection, write) for write in writes]

    def _write_together(self, writes: Sequence[RowWrite]) -> bool:
        with _transaction(self._open()) as connection:
            before = [_read(connection, write.key) for write in writes]
            if not all(map(may_apply, writes, before)):
                return False
            for write, row in zip(writes, before, strict=True):
                _put(connection, write, row)
            return True

    def _scan(self) -> Sequence[Row]:
        found = self._open().execute("SELECT row_key, row_json FROM rows ORDER BY row_key").fetchall()
        return tuple(_row_or_stub(_key_from_bytes(key), content) for key, content in found)

    def _keys_owned_by(self, owner: str) -> Sequence[str]:
        found = self._open().execute(
            "SELECT row_key FROM rows WHERE row_owner = ? ORDER BY row_key", (owner,)
        )
        return [_key_from_bytes(key) for (key,) in found]


def _write_if_allowed(connection: sqlite3.Connection, write: RowWrite) -> Applied | Refused | LeaseholdError:
    """Apply one write of a transaction. A row that cannot be read fails its own write only."""
    try:
        before = _read(connection, write.key)
        if not may_apply(write, before):
            return Refused(before)
        return Applied(_put(connection, write, before))
    except LeaseholdError as error:
        return error


def _set_outcomes(
    outcomes: Sequence[asyncio.Future[Applied | Refused]],
    done: asyncio.Future[list[Applied | Refused | LeaseholdError]],
) -> None:
    """Pass on the results of a transaction; if it failed, its error is the result of every write."""
    error: BaseException | None = asyncio.CancelledError() if done.cancelled() else done.exception()
    results: Sequence[Applied | Refused | BaseException] = (
        done.result() if error is None else [error] * len(outcomes)
    )
    for outcome, result in zip(outcomes, results, strict=True):
        if outcome.done():
            continue  # its caller was cancelled
        if isinstance(result, asyncio.CancelledError):
            outcome.cancel()
        elif isinstance(result, BaseException):
            outcome.set_exception(result)
        else:
            outcome.set_result(result)


def _identify(path: Path) -> tuple[int, int] | None:
    """The device and inode of the file at a path. None if there is no file."""
    try:
        found = path.stat()
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError:
        return -1, -1  # no file has these numbers, so it is opened again, and SQLite reports the cause
    return found.st_dev, found.st_ino


def _create_private(path: Path) -> None:
    """Create the file if it is missing, readable by its owner only. SQLite's other files follow its permissions.

    An existing file keeps its permissions: its owner may have shared it on purpose.
    """
    with suppress(OSError):  # SQLite reports it, with the remedy
        os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, _OWNER_ONLY))


def _set_up(connection: sqlite3.Connection, path: Path) -> None:
    # The switch to WAL ignores the busy timeout. One process switches the file for all of them.
    deadline_s = monotonic() + BUSY_TIMEOUT_MS / 1000
    while (mode := _switch_to_wal(connection)) is None:
        if monotonic() > deadline_s:
            raise UnavailableError(
                f"SQLite leases at {path}: other processes hold the file locked; try again"
            )
        sleep(0.01)
    if mode != "wal":
        raise ConfigError(
            f"SQLite leases at {path}: the file system does not support write-ahead logs (the journal mode stays "
            f"{mode}); put the file on a local disk"
        )
    # A pin that is lost in a power failure would let a batch be pinned differently: sync every commit.
    connection.execute("PRAGMA synchronous = FULL")
    # Texts arrive as bytes and are decoded one by one. Otherwise a single damaged text would hide all rows of a scan.
    connection.text_factory = bytes


def _switch_to_wal(connection: sqlite3.Connection) -> str | None:
    """The journal mode after the switch; None if the file is locked."""
    try:
        mode: str = connection.execute("PRAGMA journal_mode").fetchone()[0]
        if mode != "wal":
            mode = connection.execute("PRAGMA journal_mode = WAL").fetchone()[0]
    except sqlite3.OperationalError as error:
        if _result_code(error) in _LOCKED:
            return None
        raise
    return mode


def _result_code(error: sqlite3.Error) -> int:
    """SQLite's result code without its extension; 0 for an error of the Python module."""
    return getattr(error, "sqlite_errorcode", 0) & 0xFF


def _no_table(path: Path) -> NotFoundError:
    return NotFoundError(f"{path} holds no lease table: check the path, or start a worker, which creates it")


def _translate_error(error: sqlite3.Error, path: Path) -> LeaseholdError:
    """The error to raise instead of SQLite's. Only `UnavailableError` is retried."""
    code = _result_code(error)
    if "no such table" in str(error):
        return _no_table(path)
    if code in _LOCKED:
        return UnavailableError(f"SQLite leases at {path}: {error}; another process holds the file locked")
    if code in _DISK:
        return ServiceError(f"SQLite leases at {path}: {error}; {_DISK[code]}")
    if code in _UNUSABLE:
        return ConfigError(f"SQLite leases at {path}: {error}; {_UNUSABLE[code]}")
    return ConfigError(
        f"{path} is not a lease table of Leasehold ({error}): choose another file, or move this one away"
    )


@contextmanager
def _transaction(connection: sqlite3.Connection) -> Iterator[sqlite3.Connection]:
    connection.execute("BEGIN IMMEDIATE")
    try:
        yield connection
        connection.execute("COMMIT")
    finally:
        # Also after a failed COMMIT, or the next transaction could not begin. After some errors, such as a full disk,
        # SQLite has already rolled back.
        if connection.in_transaction:
            connection.execute("ROLLBACK")


def _read_table_name(connection: sqlite3.Connection) -> str | None:
    """The name of the table in the file. None if no member with a name has prepared it."""
    known = connection.execute("SELECT 1 FROM sqlite_master WHERE type = 'table' AND name = 'lease_table'")
    if known.fetchone() is None:
        return None
    found = connection.execute("SELECT name FROM lease_table").fetchone()
    return None if found is None else found[0].decode(errors="backslashreplace")


def _key_from_bytes(key: bytes) -> str:
    """The key of a row. Bytes that are not UTF-8 are escaped, so that the report of the row can name it."""
    return key.decode(errors="backslashreplace")


def _read(connection: sqlite3.Connection, key: str) -> Row | None:
    found = connection.execute("SELECT row_json FROM rows WHERE row_key = ?", (key,)).fetchone()
    return None if found is None else _row_from_json(key, found[0])


def _put(connection: sqlite3.Connection, write: RowWrite, before: Row | None) -> Row | None:
    after = next_row(write, before)
    if after is None:
        connection.execute("DELETE FROM rows WHERE row_key = ?", (write.key,))
    else:
        owner = after.get("leaseOwner", {}).get("S")
        connection.execute(
            "REPLACE INTO rows VALUES (?, ?, ?)", (write.key, owner, row_to_json(after).decode())
        )
    return after


def _row_from_json(key: str, content: bytes) -> Row:
    """Parse a row. Any other content is an error that names the row."""
    try:
        row = row_from_json_object(orjson.loads(content))
    except ValueError as error:
        raise MalformedRowError(key, f"not a row in DynamoDB's JSON format ({error})") from error
    if row.get("leaseKey") != {"S": key}:
        raise MalformedRowError(key, "leaseKey: does not match the row's key")
    return row


def _row_or_stub(key: str, content: bytes) -> Row:
    """A row that cannot be parsed is reduced to its key. The readers report it, and read all other rows.

    It may have been a lease, so the stub claims to be one.
    """
    try:
        return _row_from_json(key, content)
    except MalformedRowError:
        return {"leaseKey": {"S": key}, "entityType": {"S": "LEASE"}}
