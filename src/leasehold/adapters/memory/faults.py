"""Stores that fail on demand: lost requests and responses, throttling, late and wrong answers. Each wraps a store."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import aclosing
from enum import Enum, auto
from typing import TypeVar

from leasehold.core.leases.row_writes import Row, RowWrite
from leasehold.errors import ThrottledError, UnavailableError
from leasehold.ports import Applied, Created, Exists, ObjectStore, Refused, RowStore, StoredObject

T = TypeVar("T")


class StoreFault(Enum):
    """What may happen to one call."""

    THROTTLED = auto()  # refused, not executed
    REQUEST_LOST = auto()  # not executed
    RESPONSE_LOST = auto()  # executed, but the caller gets no response


class ObjectFault(Enum):
    """What may also happen to a call of an object store."""

    EXISTS_BY_OWN_PUT = (
        auto()
    )  # executed, then repeated by the client: the response says that the object exists
    EXISTS_WITHOUT_OBJECT = auto()  # refused as existing while another put is in flight, which then fails
    EXECUTED_LATE = auto()  # the caller gets no response, and `execute_late_puts` executes the call
    LISTING_INTERRUPTED = auto()  # the listing fails after its first page


# Decides about a call, by the name of the operation and the key; None lets the call pass.
ChooseFault = Callable[[str, str], StoreFault | None]
ChooseObjectFault = Callable[[str, str], StoreFault | ObjectFault | None]


class FaultyRows(RowStore):
    """A row store that calls `fault_for(operation, key)` before each call, and fails accordingly."""

    def __init__(self, rows: RowStore, fault_for: ChooseFault) -> None:
        self._rows = rows
        self._fault_for = fault_for

    async def prepare(self) -> None:
        """Never fails."""
        await self._rows.prepare()

    async def create_owner_index(self) -> None:
        """Never fails."""
        await self._rows.create_owner_index()

    async def get(self, key: str) -> Row | None:
        """The current row, or a failure."""
        return await self._call("get", key, lambda: self._rows.get(key))

    async def write(self, write: RowWrite) -> Applied | Refused:
        """Apply one write, or fail."""
        return await self._call("write", write.key, lambda: self._rows.write(write))

    async def write_transaction(self, writes: Sequence[RowWrite]) -> bool:
        """Apply all writes or none, or fail."""
        return await self._call("write", writes[-1].key, lambda: self._rows.write_transaction(writes))

    async def scan(self, *, segments: int = 1, is_consistent: bool = False) -> Sequence[Row]:
        """Every row, or a failure."""
        return await self._call(
            "scan", "", lambda: self._rows.scan(segments=segments, is_consistent=is_consistent)
        )

    async def keys_owned_by(self, owner: str) -> Sequence[str] | None:
        """Keys by owner, or a failure."""
        return await self._call("keys_owned_by", owner, lambda: self._rows.keys_owned_by(owner))

    async def close(self) -> None:
        """Never fails."""
        await self._rows.close()

    async def _call(self, operation: str, key: str, call: Callable[[], Awaitable[T]]) -> T:
        return await _call_with_fault(self._fault_for(operation, key), f"{operation} {key}", call)


class FaultyObjects(ObjectStore):
    """An object store that calls `fault_for(operation, key)` before each call, and fails accordingly."""

    def __init__(self, store: ObjectStore, fault_for: ChooseObjectFault) -> None:
        self._store = store
        self._fault_for = fault_for
        self._late_puts: list[tuple[str, bytes]] = []

    async def put_if_absent(self, key: str, body: bytes) -> Created | Exists:
        """Create an object, or fail."""
        fault = self._fault_for("put", key)
        match fault:
            case ObjectFault.EXISTS_BY_OWN_PUT:
                await self._store.put_if_absent(key, body)
                return Exists()
            case ObjectFault.EXISTS_WITHOUT_OBJECT:
                return Exists()
            case ObjectFault.EXECUTED_LATE:
                self._late_puts.append((key, body))
                raise UnavailableError(f"put {key}: injected delay of the request")
            case _:
                return await _call_with_fault(
                    fault, f"put {key}", lambda: self._store.put_if_absent(key, body)
                )

    async def execute_late_puts(self) -> None:
        """Execute the puts that were delayed."""
        while self._late_puts:
            await self._store.put_if_absent(*self._late_puts.pop(0))

    async def size(self, key: str) -> int | None:
        """The size of an object, or a failure."""
        return await self._call("size", key, lambda: self._store.size(key))

    async def get(self, key: str) -> bytes | None:
        """The content of an object, or a failure."""
        return await self._call("get", key, lambda: self._store.get(key))

    async def delete(self, key: str) -> None:
        """Delete an object, or fail."""
        await self._call("delete", key, lambda: self._store.delete(key))

    async def list_after(
        self, offset: str, *, prefix: str = ""
    ) -> AsyncGenerator[Sequence[StoredObject], None]:
        """The objects, or a failure."""
        fault = self._fault_for("list", offset)
        if fault not in {None, ObjectFault.LISTING_INTERRUPTED}:
            raise UnavailableError(f"list after {offset}: injected fault")
        async with aclosing(self._store.list_after(offset, prefix=prefix)) as pages:
            async for page in pages:
                yield page
                if fault is ObjectFault.LISTING_INTERRUPTED:
                    raise UnavailableError(f"list after {offset}: injected interruption")

    async def _call(self, operation: str, key: str, call: Callable[[], Awaitable[T]]) -> T:
        return await _call_with_fault(self._fault_for(operation, key), f"{operation} {key}", call)


async def _call_with_fault(
    fault: StoreFault | ObjectFault | None, name: str, call: Callable[[], Awaitable[T]]
) -> T:
    if fault is StoreFault.THROTTLED:
        raise ThrottledError(f"{name}: injected throttling")
    if fault is StoreFault.REQUEST_LOST:
        raise UnavailableError(f"{name}: injected loss of the request")
    result = await call()
    if fault is StoreFault.RESPONSE_LOST:
        raise UnavailableError(f"{name}: injected loss of the response")
    return result
