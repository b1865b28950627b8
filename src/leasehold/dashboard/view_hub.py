"""Keeps the newest view, and wakes the browsers that wait for it.

A browser gets the difference to the view that it has. One that is too slow for every view gets the newest view whole:
nothing is queued for it. The difference between two successive views is computed and encoded once for all browsers.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator
from typing import Final, NamedTuple

from leasehold.core.observing.dashboard.view_changes import View, diff_views

KEEP_ALIVE_S: Final = 15.0


class Message(NamedTuple):
    """One message for a browser: the kind of an event, and its JSON."""

    event: str
    data: str


class ViewHub:
    """The newest view and everyone who waits for the next one."""

    def __init__(self, view: View) -> None:
        self.view = view
        self.browsers = 0  # that are connected; whoever answers them counts
        self._number = 0
        self._encoded: dict[str, Message] = {}
        self._last_change: Message | None = None
        self._waiting: set[asyncio.Future[None]] = set()
        self._is_closed = False

    def publish(self, view: View) -> None:
        """Replace the view, and wake all browsers."""
        change = diff_views(self.view, view)
        self.view, self._number = view, self._number + 1
        self._last_change = Message("change", encode(change)) if change else None
        self._encoded.clear()
        self._wake()

    def close(self) -> None:
        """End the messages to all browsers."""
        self._is_closed = True
        self._wake()

    async def messages(self) -> AsyncGenerator[Message, None]:
        """The view, then its changes. If nothing changes for a while, an empty message that keeps the connection."""
        seen = self._number
        yield self._whole_view()
        while not self._is_closed:
            if seen == self._number and not await self._wait():
                yield Message("", "")
                continue
            if self._is_closed or seen == self._number:
                continue
            is_next, seen = seen + 1 == self._number, self._number
            if not is_next:
                yield self._whole_view()
            elif self._last_change is not None:
                yield self._last_change

    def _whole_view(self) -> Message:
        if "view" not in self._encoded:
            self._encoded["view"] = Message("view", encode(self.view))
        return self._encoded["view"]

    async def _wait(self) -> bool:
        """Wait for the next view. False if there was none for a while."""
        woken: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.add(woken)
        try:
            async with asyncio.timeout(KEEP_ALIVE_S):
                await woken
        except TimeoutError:
            return False
        finally:
            self._waiting.discard(woken)
        return True

    def _wake(self) -> None:
        for each in self._waiting:
            if not each.done():
                each.set_result(None)


def encode(value: object) -> str:
    """Encode as JSON of ASCII characters in one line, so that no text can end a message."""
    return json.dumps(value, separators=(",", ":"), allow_nan=False)
