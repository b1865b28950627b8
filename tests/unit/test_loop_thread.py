"""A `LoopThread` runs coroutines for callers without an event loop."""

import asyncio
import gc
import threading
from collections.abc import AsyncIterator, Iterator

import pytest

from leasehold.loop_thread import LoopThread

TIMEOUT_S = 20


@pytest.fixture
def loop_thread() -> Iterator[LoopThread]:
    """A running loop thread."""
    thread = LoopThread("test-loop")
    yield thread
    if not thread.loop.is_closed():
        thread.close(timeout_s=TIMEOUT_S)


async def thread_id() -> int:
    await asyncio.sleep(0)
    return threading.get_ident()


async def fail() -> None:
    raise ValueError("on the loop")


def test_run_returns_the_result_or_raises_the_error(loop_thread: LoopThread) -> None:
    """The coroutine runs on the other thread."""
    assert loop_thread.run(thread_id()) != threading.get_ident()
    with pytest.raises(ValueError, match="on the loop"):
        loop_thread.run(fail())


def test_submit_does_not_wait(loop_thread: LoopThread) -> None:
    """Two submitted coroutines run concurrently on one thread."""
    first, second = loop_thread.submit(thread_id()), loop_thread.submit(thread_id())
    assert first.result(TIMEOUT_S) == second.result(TIMEOUT_S)


def test_close_cancels_all_tasks_and_closes_the_loop(loop_thread: LoopThread) -> None:
    """The thread ends, and a waiting caller gets a cancellation."""
    waiting = loop_thread.submit(asyncio.Event().wait())
    loop_thread.close(timeout_s=TIMEOUT_S)
    assert loop_thread.loop.is_closed()
    assert waiting.cancelled()


def test_generators_that_were_dropped_before_their_end_are_closed(caplog: pytest.LogCaptureFixture) -> None:
    """By a reader that was cancelled. One waits while it ends. Nothing is logged about tasks that were destroyed."""
    ended: list[str] = []

    async def numbers(name: str) -> AsyncIterator[int]:
        try:
            yield 1
            yield 2
        finally:
            await asyncio.sleep(0.01)
            ended.append(name)

    async def outer() -> AsyncIterator[int]:
        async for each in numbers("inner"):
            yield each

    has_begun = threading.Event()

    async def read() -> None:
        async for _ in outer():
            has_begun.set()
            await asyncio.sleep(1_000)

    thread = LoopThread("test")
    thread.submit(read())
    assert has_begun.wait(TIMEOUT_S)
    thread.close(timeout_s=TIMEOUT_S)
    gc.collect()
    assert ended == ["inner"]
    assert not caplog.records
