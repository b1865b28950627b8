"""A lock in the archive, so that two compactions do not merge the same objects in different ways.

The lock is a sequence of small objects, `_leasehold_compaction/<number>.json`; the highest number counts. Each is
created only if it is absent, so one process at a time gets the next number. The holder creates the next number every
`RENEW_MS`. A lock whose number has not changed while another process watched it for `SILENT_MS` belongs to a process
that ended: no clocks are compared. Readers ignore the folder, because its name begins with an underscore.

The processes of one compaction share the lock: the driver of a Spark job, and its tasks. Each of them renews it in the
name of the same owner, and so learns that it is still theirs. A lock that was released or taken is not renewed.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Final, NamedTuple

import orjson

from leasehold.errors import CompactionLockedError, ThrottledError, UnavailableError
from leasehold.ports import Clock, ObjectStore, StoredObject

LOCK_FOLDER: Final = "_leasehold_compaction"
RENEW_MS: Final = 15_000
SILENT_MS: Final = 60_000
# A holder that could not renew for this long stops, well before another one can take over.
HELD_MS: Final = 40_000
_WATCH_MS: Final = 5_000
_DIGITS: Final = 10
# Other names in the folder are not of this lock.
_NAME: Final = re.compile(rf"/[0-9]{{{_DIGITS}}}\.json$")


class _Newest(NamedTuple):
    number: int  # 0: nobody had the lock yet
    body: bytes | None


class CompactionLock:
    """The lock of one archive, as one process sees it. Processes with the same owner share it."""

    def __init__(self, store: ObjectStore, prefix: str, clock: Clock, *, owner: str) -> None:
        # No other compaction uses this owner.
        self._held = orjson.dumps({"owner": owner, "released": False})
        self._released = orjson.dumps({"owner": owner, "released": True})
        self._store = store
        self._folder = f"{prefix}/{LOCK_FOLDER}" if prefix else LOCK_FOLDER
        self._clock = clock
        self._number = 0
        self._renewed_ms = 0

    async def acquire(self, on_wait: Callable[[str], None] = lambda _: None) -> None:
        """Get the lock. Raises CompactionLockedError if another process has it."""
        number, body = await self._newest()
        if body is not None and not _is_released(body):
            on_wait(f"waiting {SILENT_MS // 1000} s: another compaction runs, or was killed")
            until = self._clock.now_ms() + SILENT_MS
            while self._clock.now_ms() < until:
                await self._clock.sleep_ms(_WATCH_MS)
                if await self._newest_number() != number:
                    raise CompactionLockedError
        await self._take(number + 1, self._clock.now_ms())

    async def renew(self) -> None:
        """Renew the lock, or join a process that has it. Raises CompactionLockedError if its owner has lost it."""
        at_ms = self._clock.now_ms()
        newest = await self._newest()
        if newest.body != self._held:
            raise CompactionLockedError
        await self._take(newest.number + 1, at_ms)

    async def keep(self) -> None:
        """Renew the lock until this is cancelled. Raises CompactionLockedError if another process took it."""
        while True:
            await self._clock.sleep_ms(RENEW_MS)
            # If the store does not respond, `require_held` ends the work in time.
            with suppress(UnavailableError, ThrottledError):
                await self.renew()

    def require_held(self) -> None:
        """Raise CompactionLockedError if the lock was not renewed for so long that another process may take it."""
        if self._clock.now_ms() - self._renewed_ms > HELD_MS:
            raise CompactionLockedError

    async def release(self) -> None:
        """Give the lock back, if it is still held: the next process need not wait, and those that share it stop."""
        # Another process of this owner may renew it in between.
        while (newest := await self._newest()).body == self._held:
            await self._store.put_if_absent(self._name(newest.number + 1), self._released)
        await self._delete_before(newest.number)

    async def store_time_ms(self) -> int | None:
        """The time of the last renewal by the clock of the store. None: the store reports no times."""
        found = [each for each in await self._list() if each.key == self._name(self._number)]
        return found[0].modified_ms if found else None

    async def _take(self, number: int, at_ms: int) -> None:
        """Create a number that did not exist at `at_ms`. A process of the same owner may have created it since."""
        await self._store.put_if_absent(self._name(number), self._held)
        newest = await self._newest()
        # A process that was paused may have created a number that others had deleted.
        if newest.number < number or newest.body != self._held:
            raise CompactionLockedError
        self._number, self._renewed_ms = newest.number, at_ms
        await self._delete_before(newest.number)

    async def _newest(self) -> _Newest:
        while number := await self._newest_number():
            body = await self._store.get(self._name(number))
            if body is not None:
                return _Newest(number, body)
            # Its holder has created the next number, and deleted this one.
        return _Newest(0, None)

    async def _newest_number(self) -> int:
        keys = [each.key for each in await self._list()]
        numbers = [int(key[-_DIGITS - 5 : -5]) for key in keys if _NAME.search(key)]
        return max((each for each in numbers if self._name(each) in keys), default=0)

    async def _delete_before(self, number: int) -> None:
        for each in await self._list():
            if _NAME.search(each.key) and each.key < self._name(number):
                await self._store.delete(each.key)

    async def _list(self) -> Sequence[StoredObject]:
        return [each async for page in self._store.list_after("", prefix=self._folder) for each in page]

    def _name(self, number: int) -> str:
        return f"{self._folder}/{number:0{_DIGITS}}.json"


def _is_released(body: bytes) -> bool:
    """Whether the holder gave the lock back. One that cannot be read counts as held: it is taken after a while."""
    try:
        return bool(orjson.loads(body)["released"] is True)
    except (ValueError, LookupError, TypeError):
        return False
