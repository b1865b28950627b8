"""Objects in memory: for unit tests and the simulator. `put_if_absent` is as strict as S3's."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Sequence

from leasehold.ports import Created, Exists, ObjectStore, StoredObject


class MemoryObjects(ObjectStore):
    """A store that lives as long as this object."""

    def __init__(self, *, page_size: int = 1_000, now_ms: Callable[[], int] | None = None) -> None:
        self.objects: dict[str, bytes] = {}
        self.modified_ms: dict[str, int] = {}
        self._page_size = page_size
        self._now_ms = now_ms

    async def put_if_absent(self, key: str, body: bytes) -> Created | Exists:
        """Create an object, unless one with that name exists."""
        if key in self.objects:
            return Exists()
        self.objects[key] = body
        if self._now_ms is not None:
            self.modified_ms[key] = self._now_ms()
        return Created()

    async def size(self, key: str) -> int | None:
        """The size of an object in bytes."""
        body = self.objects.get(key)
        return None if body is None else len(body)

    async def get(self, key: str) -> bytes | None:
        """The content of an object."""
        return self.objects.get(key)

    async def delete(self, key: str) -> None:
        """Delete an object."""
        self.objects.pop(key, None)
        self.modified_ms.pop(key, None)

    async def list_after(
        self, offset: str, *, prefix: str = ""
    ) -> AsyncGenerator[Sequence[StoredObject], None]:
        """The objects page by page, as they were when the listing began."""
        below = f"{prefix}/" if prefix else ""
        found = [
            StoredObject(key, len(body), self.modified_ms.get(key))
            for key, body in self.objects.items()
            if key > offset and key.startswith(below)
        ]
        for first in range(0, len(found), self._page_size):
            yield found[first : first + self._page_size]
