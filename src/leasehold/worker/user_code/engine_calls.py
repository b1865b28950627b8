"""Lets user code call the engine: a thread waits for the result, async code awaits it. Both make the same call."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Generator
from concurrent.futures import CancelledError, Future
from typing import Any, Generic, TypeVar

from leasehold.errors import LeaseLostError

T = TypeVar("T")


class _Completed(Generic[T]):
    """An awaitable whose result exists already."""

    def __init__(self, value: T) -> None:
        self._value = value

    def __await__(self) -> Generator[Any, None, T]:
        yield from ()
        return self._value


class EngineCalls:
    """Runs coroutines on the engine's event loop for callers on other threads and loops."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop

    def run(self, work: Coroutine[Any, Any, T]) -> Awaitable[T]:
        """Start `work` on the engine. A caller without a running event loop waits here until it is done."""
        caller_loop = _running_loop()
        if caller_loop is self._loop:
            return caller_loop.create_task(work)
        future = self._submit(work)
        if caller_loop is not None:
            return asyncio.wrap_future(future)
        return _Completed(_result_of(future))

    def wait(self, work: Coroutine[Any, Any, T]) -> T:
        """Run `work` on the engine and wait, on any other thread, also in a coroutine of an event loop there."""
        return _result_of(self._submit(work))

    def _submit(self, work: Coroutine[Any, Any, T]) -> Future[T]:
        try:
            return asyncio.run_coroutine_threadsafe(work, self._loop)
        except RuntimeError as error:  # the loop is closed
            work.close()
            raise _engine_stopped() from error

    def call_soon(self, function: Callable[[], object]) -> None:
        """Call a plain function on the engine's loop soon. Does nothing if the engine has stopped."""
        if not self._loop.is_closed():
            self._loop.call_soon_threadsafe(function)


def _running_loop() -> asyncio.AbstractEventLoop | None:
    try:
        return asyncio.get_running_loop()
    except RuntimeError:
        return None


def _result_of(future: Future[T]) -> T:
    try:
        return future.result()
    except CancelledError as error:
        raise _engine_stopped() from error


def _engine_stopped() -> LeaseLostError:
    return LeaseLostError("this worker has stopped and released its leases: nothing can be stored any more")
