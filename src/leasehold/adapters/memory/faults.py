"""A row store with trouble on the way to it: requests lost, answers lost, throttling. Wraps any other store."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from enum import Enum, auto
from typing import TypeVar

from leasehold.core.leases.row_writes import Row, RowWrite
from leasehold.errors import ThrottledError, UnavailableError
from leasehold.ports import Applied, Refused, RowStore

T = TypeVar("T")


class StoreFault(Enum):
    """What may happen to one call."""

    THROTTLED = auto()  # refused before anything happened
    REQUEST_LOST = auto()  # it never arrived
    RESPONSE_LOST = auto()  # it happened, and nobody heard of it


class FaultyRows(RowStore):
    """Asks `fault_for(operation, key)` before each call; None lets it pass."""

    def __init__(self, rows: RowStore, fault_for: Callable[[str, str], StoreFault | None]) -> None:
        self._rows = rows
        self._trouble_for = fault_for

    async def prepare(self) -> None:
        """Pass through."""
        await self._rows.prepare()

    async def create_owner_index(self) -> None:
        """Pass through."""
        await self._rows.create_owner_index()

    async def get(self, key: str) -> Row | None:
        """The row as it is now, if the call gets through."""
        return await self._through("get", key, lambda: self._rows.get(key))

    async def write(self, write: RowWrite) -> Applied | Refused:
        """Apply one write, if the call gets through."""
        return await self._through("write", write.key, lambda: self._rows.write(write))

    async def write_transaction(self, writes: Sequence[RowWrite]) -> bool:
        """Apply all writes or none, if the call gets through."""
        return await self._through("write", writes[-1].key, lambda: self._rows.write_transaction(writes))

    async def scan(self, *, segments: int = 1) -> Sequence[Row]:
        """Every row, if the call gets through."""
        return await self._through("scan", "", lambda: self._rows.scan(segments=segments))

    async def keys_owned_by(self, owner: str) -> Sequence[str] | None:
        """Keys by owner, if the call gets through."""
        return await self._through("keys_owned_by", owner, lambda: self._rows.keys_owned_by(owner))

    async def close(self) -> None:
        """Pass through."""
        await self._rows.close()

    async def _through(self, operation: str, key: str, call: Callable[[], Awaitable[T]]) -> T:
        trouble = self._trouble_for(operation, key)
        if trouble is StoreFault.THROTTLED:
            raise ThrottledError(f"{operation} {key}: throttled on purpose")
        if trouble is StoreFault.REQUEST_LOST:
            raise UnavailableError(f"{operation} {key}: request lost on purpose")
        answer = await call()
        if trouble is StoreFault.RESPONSE_LOST:
            raise UnavailableError(f"{operation} {key}: answer lost on purpose")
        return answer
