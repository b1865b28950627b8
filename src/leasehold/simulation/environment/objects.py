"""The simulated object store, and the same store as one process reaches it over the network.

An object is created whole and only if it is absent. `on_put` gets every put that reached the store, with its result,
and `on_delete` every name that was deleted.
Like S3, the store may respond "exists" although no object exists: to the loser of two concurrent puts.
"""

from __future__ import annotations

import random
from collections.abc import AsyncGenerator, Callable, Sequence
from dataclasses import dataclass
from typing import Final, TypeVar

from leasehold.ports import Created, Exists, ObjectStore, StoredObject
from leasehold.simulation.environment.network import Dependency, Network
from leasehold.simulation.environment.process import SimulatedProcess

T = TypeVar("T")

_PAGE_OBJECTS: Final = 200


@dataclass(frozen=True, slots=True)
class Put:
    """A put that reached the store. `before` is the object with this name before it, `after` the object after it."""

    at_ms: int
    key: str
    body: bytes
    before: bytes | None
    after: bytes | None
    by: SimulatedProcess


class SimulatedObjects:
    """All objects of one store."""

    def __init__(self, now_ms: Callable[[], int], rng: random.Random) -> None:
        self.conflict_chance = 0.0  # of a put that is refused although no object exists
        self.on_put: Callable[[Put], None] = lambda _: None
        self.on_delete: Callable[[str], None] = lambda _: None
        self.bodies: dict[str, bytes] = {}
        self._created_ms: dict[str, int] = {}
        self._now_ms = now_ms
        self._rng = rng

    def put_if_absent(self, key: str, body: bytes, by: SimulatedProcess) -> Created | Exists:
        """Create an object, unless one with that name exists."""
        before = self.bodies.get(key)
        if before is None and self.conflict_chance and self._rng.random() < self.conflict_chance:
            return Exists()
        if before is None:
            self.bodies[key] = body
            self._created_ms[key] = self._now_ms()
        self.on_put(Put(self._now_ms(), key, body, before, self.bodies[key], by))
        return Created() if before is None else Exists()

    def delete(self, key: str) -> None:
        """Delete an object, if it exists."""
        if self.bodies.pop(key, None) is not None:
            self.on_delete(key)

    def page_after(self, offset: str, prefix: str) -> Sequence[StoredObject]:
        """Return the next objects of a listing, in the order of their names."""
        below = f"{prefix}/" if prefix else ""
        names = sorted(name for name in self.bodies if name > offset and name.startswith(below))
        page = names[:_PAGE_OBJECTS]
        return [StoredObject(name, len(self.bodies[name]), self._created_ms.get(name)) for name in page]


class ProcessObjects(ObjectStore):
    """The store as one process reaches it over the network."""

    def __init__(self, objects: SimulatedObjects, network: Network, process: SimulatedProcess) -> None:
        self._objects = objects
        self._network = network
        self._process = process

    async def put_if_absent(self, key: str, body: bytes) -> Created | Exists:
        """Create an object, unless one with that name exists when the request arrives."""
        return await self._call("put", lambda: self._objects.put_if_absent(key, body, self._process))

    async def size(self, key: str) -> int | None:
        """Return the size of an object in bytes."""
        body = await self.get(key)
        return None if body is None else len(body)

    async def get(self, key: str) -> bytes | None:
        """Return the content of an object."""
        return await self._call("get", lambda: self._objects.bodies.get(key))

    async def delete(self, key: str) -> None:
        """Delete an object."""
        await self._call("delete", lambda: self._objects.delete(key))

    async def list_after(
        self, offset: str, *, prefix: str = ""
    ) -> AsyncGenerator[Sequence[StoredObject], None]:
        """Yield the objects page by page. Each page is one call, so objects may appear between two pages."""
        page = await self._list(offset, prefix)
        while page:
            yield page
            page = await self._list(page[-1].key, prefix)

    async def _list(self, offset: str, prefix: str) -> Sequence[StoredObject]:
        return await self._call("list", lambda: self._objects.page_after(offset, prefix))

    async def _call(self, name: str, serve: Callable[[], T]) -> T:
        return await self._network.call(self._process, Dependency.OBJECTS, name, serve)
