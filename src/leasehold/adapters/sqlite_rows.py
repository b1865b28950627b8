"""Rows in a SQLite file: leases for the processes of one machine. A fleet on several machines needs DynamoDB.

Each row is stored as one JSON text in DynamoDB's format, so unknown attributes are kept. A write reads the row,
checks the condition and replaces the row inside one `BEGIN IMMEDIATE` transaction. SQLite allows a single writer, so
exactly one of several racing processes finds its condition true.
"""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from time import monotonic, sleep
from typing import Final, TypeVar

import orjson

from leasehold.adapters.row_json import row_from_json_object, row_to_json
from leasehold.core.leases.row_writes import Row, RowWrite, may_apply, next_row
from leasehold.errors import ConfigError, MalformedRowError, NotFoundError, UnavailableError
from leasehold.ports import Applied, Refused, RowStore

T = TypeVar("T")

BUSY_TIMEOUT_MS: Final = 30_000

_SCHEMA: Final = """
CREATE TABLE IF NOT EXISTS rows (row_key TEXT PRIMARY KEY, row_owner TEXT, row_json TEXT NOT NULL) WITHOUT ROWID;
CREATE INDEX IF NOT EXISTS rows_by_owner ON rows (row_owner) WHERE row_owner IS NOT NULL;
"""


class SqliteRows(RowStore):
    """A table in a file. All work runs on one thread, so callers never block the event loop."""

    def __init__(self, path: str | Path) -> None:
        if str(path).startswith((":memory:", "file:")):
            raise ConfigError(f"SQLite leases at {path}: give the path of a file that all processes can open")
        self._path = Path(path)
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="leasehold-sqlite")
        self._connection: sqlite3.Connection | None = None

    async def prepare(self) -> None:
        """Create the file and the table if they are missing."""
        await self._run(lambda: self._open().executescript(_SCHEMA))

    async def create_owner_index(self) -> None:
        """Nothing to do: the table always has the index."""

    async def get(self, key: str) -> Row | None:
        """The current row."""
        return await self._run(lambda: _read(self._open(), key))

    async def write(self, write: RowWrite) -> Applied | Refused:
        """Apply one write if its condition holds."""
        return await self._run(lambda: self._write(write))

    async def write_transaction(self, writes: Sequence[RowWrite]) -> bool:
        """Apply all writes or none."""
        return await self._run(lambda: self._write_together(writes))

    async def scan(self, *, segments: int = 1) -> Sequence[Row]:  # noqa: ARG002 - part of the port
        """Every row; a local file gains nothing from parallel segments."""
        return await self._run(self._scan)

    async def keys_owned_by(self, owner: str) -> Sequence[str] | None:
        """Keys by owner; this index is always up to date."""
        return await self._run(lambda: self._keys_owned_by(owner))

    async def close(self) -> None:
        """Close the file and end the thread."""
        await self._run(self._close)
        self._thread.shutdown()

    async def _run(self, work: Callable[[], T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._thread, self._translate_errors, work)

    def _translate_errors(self, work: Callable[[], T]) -> T:
        try:
            return work()
        except sqlite3.OperationalError as error:
            if "no such table" in str(error):
                raise NotFoundError(f"{self._path} holds no lease table yet: call prepare() first") from error
            raise UnavailableError(f"SQLite leases at {self._path}: {error}") from error
        except sqlite3.DatabaseError as error:
            raise ConfigError(
                f"{self._path} is not a lease table of Leasehold ({error}): choose another file, or move this one away"
            ) from error

    def _open(self) -> sqlite3.Connection:
        if self._connection is None:
            # Autocommit: transactions are opened explicitly.
            connection = sqlite3.connect(self._path, isolation_level=None, check_same_thread=False)
            try:
                _set_up(connection)
            except BaseException:
                connection.close()
                raise
            self._connection = connection
        return self._connection

    def _close(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def _write(self, write: RowWrite) -> Applied | Refused:
        with _transaction(self._open()) as connection:
            before = _read(connection, write.key)
            if not may_apply(write, before):
                return Refused(before)
            return Applied(_put(connection, write, before))

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
        return tuple(_row_or_stub(key, text) for key, text in found)

    def _keys_owned_by(self, owner: str) -> Sequence[str]:
        found = self._open().execute(
            "SELECT row_key FROM rows WHERE row_owner = ? ORDER BY row_key", (owner,)
        )
        return [key for (key,) in found]


def _set_up(connection: sqlite3.Connection) -> None:
    connection.execute(f"PRAGMA busy_timeout = {BUSY_TIMEOUT_MS}")
    # The switch to WAL ignores the busy timeout. One process switches the file for all of them.
    deadline_s = monotonic() + BUSY_TIMEOUT_MS / 1000
    while connection.execute("PRAGMA journal_mode").fetchone() != ("wal",):
        try:
            connection.execute("PRAGMA journal_mode = WAL")
        except sqlite3.OperationalError:
            if monotonic() > deadline_s:
                raise
            sleep(0.01)
    # A pin that is lost in a power failure would let a batch be pinned differently: sync every commit.
    connection.execute("PRAGMA synchronous = FULL")


@contextmanager
def _transaction(connection: sqlite3.Connection) -> Iterator[sqlite3.Connection]:
    connection.execute("BEGIN IMMEDIATE")
    try:
        yield connection
    except BaseException:
        connection.execute("ROLLBACK")
        raise
    connection.execute("COMMIT")


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


def _row_from_json(key: str, text: str) -> Row:
    """Parse a row. Any other content is an error that names the row."""
    try:
        row = row_from_json_object(orjson.loads(text))
    except ValueError as error:
        raise MalformedRowError(key, f"not a row in DynamoDB's JSON format ({error})") from error
    if row.get("leaseKey") != {"S": key}:
        raise MalformedRowError(key, "leaseKey: does not match the row's key")
    return row


def _row_or_stub(key: str, text: str) -> Row:
    """A row that cannot be parsed is reduced to its key. The readers report it, and read all other rows."""
    try:
        return _row_from_json(key, text)
    except MalformedRowError:
        return {"leaseKey": {"S": key}}
