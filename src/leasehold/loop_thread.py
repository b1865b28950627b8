"""An event loop on a thread of its own, for programs and libraries that have no running loop."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Coroutine
from concurrent.futures import Future
from typing import Any, Final, TypeVar

T = TypeVar("T")


class LoopThread:
    """Runs an event loop on a daemon thread, so that it never keeps the process from exiting."""

    def __init__(self, name: str) -> None:
        self.loop: Final = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def submit(self, work: Coroutine[Any, Any, T]) -> Future[T]:
        """Start a coroutine on the loop."""
        return asyncio.run_coroutine_threadsafe(work, self.loop)

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine on the loop and wait for its result. An interrupted wait cancels the coroutine."""
        future = self.submit(work)
        try:
            return future.result()
        finally:
            future.cancel()

    def close(self, *, timeout_s: float) -> None:
        """Cancel all tasks, close the loop and end the thread.

        Returns after `timeout_s` at the latest. A coroutine that blocks the loop keeps the thread alive.
        """
        self.submit(_cancel_other_tasks()).add_done_callback(
            lambda _: self.loop.call_soon_threadsafe(self.loop.stop)
        )
        self._thread.join(timeout_s)

    def _run(self) -> None:
        try:
            self.loop.run_forever()
        finally:
            self.loop.run_until_complete(_end_generators())
            self.loop.close()


async def _end_generators() -> None:
    """End asynchronous generators. One that was dropped before its end is closed by a task, which may not exist yet."""
    await asyncio.get_running_loop().shutdown_asyncgens()
    await asyncio.sleep(0)
    while others := asyncio.all_tasks() - {asyncio.current_task()}:
        await asyncio.gather(*others, return_exceptions=True)
        await asyncio.sleep(0)


async def _cancel_other_tasks() -> None:
    others = asyncio.all_tasks() - {asyncio.current_task()}
    for task in others:
        task.cancel()
    await asyncio.gather(*others, return_exceptions=True)
