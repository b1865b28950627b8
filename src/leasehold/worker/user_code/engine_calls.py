"""How user code reaches the engine: from a thread, by waiting; from async code, by awaiting. One call for both."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Generator
from concurrent.futures import CancelledError
from typing import Any, Generic, TypeVar

from leasehold.errors import LeaseLostError

T = TypeVar("T")


class _Ready(Generic[T]):
    """A result that is there already, for those who await it all the same."""

    def __init__(self, value: T) -> None:
        self._value = value

    def __await__(self) -> Generator[Any, None, T]:
        yield from ()
        return self._value


class EngineCalls:
    """Runs coroutines on the engine's loop for callers elsewhere."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop

    def run(self, work: Coroutine[Any, Any, T]) -> Awaitable[T]:
        """Start `work` on the engine. A caller without a running event loop waits here until it is done."""
        here = _running_loop()
        if here is self._loop:
            return here.create_task(work)
        try:
            future = asyncio.run_coroutine_threadsafe(work, self._loop)
        except RuntimeError as error:  # the loop is closed
            work.close()
            raise _stopped() from error
        if here is not None:
            return asyncio.wrap_future(future)
        try:
            return _Ready(future.result())
        except CancelledError as error:
            raise _stopped() from error

    def tell(self, note: Callable[[], object]) -> None:
        """Call a plain function on the engine, soon. Told to an engine that has ended, it is nothing."""
        if not self._loop.is_closed():
            self._loop.call_soon_threadsafe(note)


def _running_loop() -> asyncio.AbstractEventLoop | None:
    try:
        return asyncio.get_running_loop()
    except RuntimeError:
        return None


def _stopped() -> LeaseLostError:
    return LeaseLostError("this worker has stopped and released its leases: nothing can be stored any more")
