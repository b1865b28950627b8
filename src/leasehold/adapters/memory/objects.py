"""Objects in memory: for unit tests and the simulator. `put_if_absent` is as strict as S3's."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence

from leasehold.ports import Created, Exists, ObjectStore, StoredObject


class MemoryObjects(ObjectStore):
    """A store that lives as long as this object."""

    def __init__(self, *, page_size: int = 1_000) -> None:
        self.objects: dict[str, bytes] = {}
        self._page_size = page_size

    async def put_if_absent(self, key: str, body: bytes) -> Created | Exists:
        """Create an object, unless one with that name exists."""
        if key in self.objects:
            return Exists()
        self.objects[key] = body
        return Created()

    async def size(self, key: str) -> int | None:
        """The size of an object in bytes."""
        body = self.objects.get(key)
        return None if body is None else len(body)

    async def get(self, key: str) -> bytes | None:
        """The content of an object."""
        return self.objects.get(key)

    async def list_after(self, offset: str, *, prefix: str = "") -> AsyncIterator[Sequence[StoredObject]]:
        """The objects page by page, as they were when the listing began."""
        below = f"{prefix}/" if prefix else ""
        found = [
            StoredObject(key, len(body))
            for key, body in self.objects.items()
            if key > offset and key.startswith(below)
        ]
        for first in range(0, len(found), self._page_size):
            yield found[first : first + self._page_size]
