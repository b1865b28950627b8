"""Objects in memory: for unit tests and the simulator. Creating only if absent is as strict as S3's."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from typing import TypeVar

from leasehold.adapters.memory.faults import StoreFault
from leasehold.errors import ThrottledError, UnavailableError
from leasehold.ports import Created, Exists, ObjectStore, StoredObject

T = TypeVar("T")


class MemoryObjects(ObjectStore):
    """A store that lives as long as this object."""

    def __init__(self) -> None:
        self.objects: dict[str, bytes] = {}

    async def put_if_absent(self, key: str, body: bytes) -> Created | Exists:
        """Write an object, unless there is one of that name."""
        if key in self.objects:
            return Exists()
        self.objects[key] = body
        return Created()

    async def size(self, key: str) -> int | None:
        """How many bytes an object has."""
        body = self.objects.get(key)
        return None if body is None else len(body)

    async def get(self, key: str) -> bytes | None:
        """An object's content."""
        return self.objects.get(key)

    async def list_after(self, offset: str, *, prefix: str = "") -> AsyncIterator[Sequence[StoredObject]]:
        """All of them at once."""
        below = f"{prefix}/" if prefix else ""
        yield [
            StoredObject(key, len(body))
            for key, body in self.objects.items()
            if key > offset and key.startswith(below)
        ]


class FaultyObjects(ObjectStore):
    """Another store with trouble on the way. Asks `fault_for(operation, key)` before each call; None lets it pass."""

    def __init__(self, store: ObjectStore, fault_for: Callable[[str, str], StoreFault | None]) -> None:
        self._store = store
        self._trouble_for = fault_for

    async def put_if_absent(self, key: str, body: bytes) -> Created | Exists:
        """Write an object, if the call gets through."""
        return await self._through("put", key, lambda: self._store.put_if_absent(key, body))

    async def size(self, key: str) -> int | None:
        """How many bytes an object has, if the call gets through."""
        return await self._through("size", key, lambda: self._store.size(key))

    async def get(self, key: str) -> bytes | None:
        """An object's content, if the call gets through."""
        return await self._through("get", key, lambda: self._store.get(key))

    async def list_after(self, offset: str, *, prefix: str = "") -> AsyncIterator[Sequence[StoredObject]]:
        """What is there, if the call gets through."""
        if self._trouble_for("list", offset) is not None:
            raise UnavailableError(f"list after {offset}: lost on purpose")
        async for portion in self._store.list_after(offset, prefix=prefix):
            yield portion

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
