"""User code runs off the engine's loop, one call at a time a shard, and nothing that it raises gets out."""

import asyncio
import threading
from collections.abc import Callable, Coroutine, Iterator
from functools import partial
from typing import Any

import pytest

from leasehold.loop_thread import LoopThread
from leasehold.worker.user_code.handler_runners import (
    HandlerRunner,
    HandlerRunners,
    InlineRunners,
    Raised,
    Returned,
    ThreadedRunners,
    is_async,
)

PATIENCE_S = 20


@pytest.fixture
def handlers() -> Iterator[LoopThread]:
    """An event loop for async handlers, on a thread of its own."""
    loop = LoopThread("test-loop")
    yield loop
    loop.close(timeout_s=PATIENCE_S)


@pytest.fixture(params=["threads", "inline"])
def user_code(request: pytest.FixtureRequest, handlers: LoopThread) -> HandlerRunners:
    """Both ways to run user code."""
    return ThreadedRunners(handlers.loop) if request.param == "threads" else InlineRunners()


def in_lane(user_code: HandlerRunners, use: Callable[[HandlerRunner], Coroutine[Any, Any, None]]) -> None:
    async def main() -> None:
        runner = user_code.runner_for("shard-0")
        async with asyncio.timeout(PATIENCE_S):
            await use(runner)
        runner.close()

    asyncio.run(main())


class AsyncCallable:
    """An object that is called like an async function."""

    async def __call__(self, value: int) -> int:
        return value + 1


async def add_one(value: int) -> int:
    return value + 1


def test_plain_async_and_disguised_functions_are_all_run_to_their_end(user_code: HandlerRunners) -> None:
    """A coroutine is never dropped, however well it hides behind a plain function."""

    async def use(runner: HandlerRunner) -> None:
        for function in (
            lambda value: value + 1,
            add_one,
            partial(add_one),
            AsyncCallable(),
            lambda value: add_one(value),  # noqa: PLW0108 - a plain function around an async one
        ):
            assert await runner.call(function, 41) == Returned(42)

    in_lane(user_code, use)


@pytest.mark.parametrize(
    "error", [ValueError("x"), SystemExit(3), KeyboardInterrupt(), StopIteration(), GeneratorExit()]
)
@pytest.mark.parametrize("kind", ["plain", "async"])
def test_whatever_user_code_raises_is_a_value(
    user_code: HandlerRunners, kind: str, error: BaseException
) -> None:
    """Even what would end an event loop, or cannot pass through a future."""

    def fail() -> None:
        raise error

    async def fail_async() -> None:
        raise error

    async def use(runner: HandlerRunner) -> None:
        outcome = await runner.call(fail if kind == "plain" else fail_async)
        assert isinstance(outcome, Raised)
        # Python itself turns a StopIteration that leaves a coroutine into a RuntimeError.
        assert type(outcome.error) is type(error) or isinstance(outcome.error.__cause__, StopIteration)

    in_lane(user_code, use)


def test_a_handler_that_cancels_itself_has_failed(user_code: HandlerRunners) -> None:
    """Only the engine's own cancellation means that the lease is lost."""

    async def cancel_myself() -> None:
        raise asyncio.CancelledError

    async def use(runner: HandlerRunner) -> None:
        outcome = await runner.call(cancel_myself)
        assert isinstance(outcome, Raised)
        assert isinstance(outcome.error, asyncio.CancelledError)

    in_lane(user_code, use)


def test_all_plain_calls_of_a_lane_are_on_one_thread_that_is_not_the_engines(handlers: LoopThread) -> None:
    """A connection kept in a thread-local stays with its shard; another shard has another thread."""

    async def main() -> None:
        lanes = [ThreadedRunners(handlers.loop).runner_for(name) for name in ("a", "b")]
        threads = [[await runner.call(threading.get_ident) for _ in range(3)] for runner in lanes]
        assert [len(set(of_lane)) for of_lane in threads] == [1, 1]
        assert len({threads[0][0], threads[1][0], Returned(threading.get_ident())}) == 3
        for runner in lanes:
            runner.close()

    asyncio.run(main())


def test_a_blocking_handler_does_not_block_the_engine(handlers: LoopThread) -> None:
    """While one lane blocks its thread, the engine's loop and other lanes go on."""
    release = threading.Event()

    async def main() -> None:
        blocked, free = (ThreadedRunners(handlers.loop).runner_for(name) for name in ("blocked", "free"))
        blocking = asyncio.ensure_future(blocked.call(release.wait, PATIENCE_S))
        assert await free.call(lambda: "went on") == Returned("went on")
        assert not blocking.done()
        release.set()
        assert await blocking == Returned(value=True)
        blocked.close()
        free.close()

    asyncio.run(main())


def test_a_cancelled_wait_leaves_a_thread_alone_and_cancels_a_coroutine(handlers: LoopThread) -> None:
    """A lost lease: a thread cannot be stopped and ends by itself, an async handler is told."""
    release, ended, cancelled = threading.Event(), threading.Event(), threading.Event()

    def plain(started: threading.Event) -> None:
        started.set()
        release.wait(PATIENCE_S)
        ended.set()

    async def coroutine(started: threading.Event) -> None:
        started.set()
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            cancelled.set()
            raise

    async def main() -> None:
        runner = ThreadedRunners(handlers.loop).runner_for("x")
        for function in (plain, coroutine):
            await cancelled_call(runner, function)
        runner.close()

    asyncio.run(main())
    assert cancelled.wait(PATIENCE_S)
    assert not ended.is_set()
    release.set()
    assert ended.wait(PATIENCE_S)


async def cancelled_call(runner: HandlerRunner, function: Callable[[threading.Event], object]) -> None:
    """Cancel the wait for a call that has begun."""
    started = threading.Event()
    call = asyncio.ensure_future(runner.call(function, started))
    await asyncio.to_thread(started.wait, PATIENCE_S)
    call.cancel()
    with pytest.raises(asyncio.CancelledError):
        await call


@pytest.mark.parametrize("kind", ["plain", "async"])
def test_what_is_posted_runs_after_what_runs(handlers: LoopThread, kind: str) -> None:
    """`lease_lost` comes after the `process_records` that was running, though nobody waits for either."""
    order: list[str] = []
    release, finished = threading.Event(), threading.Event()

    def first(started: threading.Event) -> None:
        started.set()
        release.wait(PATIENCE_S)
        order.append("first")

    async def first_async(started: threading.Event) -> None:
        started.set()
        try:
            await asyncio.Event().wait()
        finally:
            await asyncio.to_thread(release.wait, PATIENCE_S)
            order.append("first")

    def second() -> None:
        order.append("second")
        finished.set()

    async def second_async() -> None:
        second()

    async def main() -> None:
        runner = ThreadedRunners(handlers.loop).runner_for("x")
        await cancelled_call(runner, first if kind == "plain" else first_async)
        runner.post(second if kind == "plain" else second_async)
        release.set()
        runner.close()
        await asyncio.to_thread(finished.wait, PATIENCE_S)

    asyncio.run(main())
    assert order == ["first", "second"]


def test_kinds_of_functions() -> None:
    """What makes a coroutine is recognised before it is called."""
    assert all(is_async(function) for function in (add_one, partial(add_one), AsyncCallable()))
    assert not any(is_async(function) for function in (print, len, HandlerRunner.close))


def test_closing_a_handler_loop_cancels_what_still_waits() -> None:
    """The thread ends, and nobody waits for ever."""
    handlers = LoopThread("test-loop")
    waiting = asyncio.run_coroutine_threadsafe(asyncio.Event().wait(), handlers.loop)
    handlers.close(timeout_s=PATIENCE_S)
    assert handlers.loop.is_closed()
    assert waiting.cancelled()
