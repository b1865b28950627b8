"""User code runs off the engine's loop, one call per shard at a time, and its errors do not propagate."""

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

TIMEOUT_S = 20


@pytest.fixture
def handler_loop() -> Iterator[LoopThread]:
    """An event loop for async handlers, on a thread of its own."""
    loop = LoopThread("test-loop")
    yield loop
    loop.close(timeout_s=TIMEOUT_S)


@pytest.fixture(params=["threads", "inline"])
def runners(request: pytest.FixtureRequest, handler_loop: LoopThread) -> HandlerRunners:
    """Both kinds of runners."""
    return ThreadedRunners(handler_loop.loop) if request.param == "threads" else InlineRunners()


def with_runner(runners: HandlerRunners, use: Callable[[HandlerRunner], Coroutine[Any, Any, None]]) -> None:
    async def main() -> None:
        runner = runners.runner_for("shard-0")
        async with asyncio.timeout(TIMEOUT_S):
            await use(runner)
        runner.close()

    asyncio.run(main())


class AsyncCallable:
    """An object with an async `__call__`."""

    async def __call__(self, value: int) -> int:
        return value + 1


async def add_one(value: int) -> int:
    return value + 1


def test_plain_and_async_functions_run_to_their_end(runners: HandlerRunners) -> None:
    """A coroutine that a plain function returns is awaited, too."""

    async def use(runner: HandlerRunner) -> None:
        for function in (
            lambda value: value + 1,
            add_one,
            partial(add_one),
            AsyncCallable(),
            lambda value: add_one(value),  # noqa: PLW0108 - a plain function around an async one
        ):
            assert await runner.call(function, 41) == Returned(42)

    with_runner(runners, use)


@pytest.mark.parametrize(
    "error", [ValueError("x"), SystemExit(3), KeyboardInterrupt(), StopIteration(), GeneratorExit()]
)
@pytest.mark.parametrize("kind", ["plain", "async"])
def test_an_error_of_user_code_is_a_value(runners: HandlerRunners, kind: str, error: BaseException) -> None:
    """Even one that would end an event loop, or that a future cannot carry."""

    def fail() -> None:
        raise error

    async def fail_async() -> None:
        raise error

    async def use(runner: HandlerRunner) -> None:
        outcome = await runner.call(fail if kind == "plain" else fail_async)
        assert isinstance(outcome, Raised)
        # Python itself turns a StopIteration that leaves a coroutine into a RuntimeError.
        assert type(outcome.error) is type(error) or isinstance(outcome.error.__cause__, StopIteration)

    with_runner(runners, use)


def test_a_handler_that_cancels_itself_has_failed(runners: HandlerRunners) -> None:
    """Only a cancellation by the engine means that the lease is lost."""

    async def cancel_myself() -> None:
        raise asyncio.CancelledError

    async def use(runner: HandlerRunner) -> None:
        outcome = await runner.call(cancel_myself)
        assert isinstance(outcome, Raised)
        assert isinstance(outcome.error, asyncio.CancelledError)

    with_runner(runners, use)


def test_all_plain_calls_of_a_runner_use_one_thread_of_its_own(handler_loop: LoopThread) -> None:
    """A thread-local connection stays with its shard, and another shard has another thread."""

    async def main() -> None:
        runners_of_two = [ThreadedRunners(handler_loop.loop).runner_for(name) for name in ("a", "b")]
        threads = [[await runner.call(threading.get_ident) for _ in range(3)] for runner in runners_of_two]
        assert [len(set(of_runner)) for of_runner in threads] == [1, 1]
        assert len({threads[0][0], threads[1][0], Returned(threading.get_ident())}) == 3
        for runner in runners_of_two:
            runner.close()

    asyncio.run(main())


def test_a_blocking_handler_does_not_block_the_engine(handler_loop: LoopThread) -> None:
    """While one runner blocks its thread, the engine's loop and other runners continue."""
    release = threading.Event()

    async def main() -> None:
        blocked, free = (ThreadedRunners(handler_loop.loop).runner_for(name) for name in ("blocked", "free"))
        blocking = asyncio.ensure_future(blocked.call(release.wait, TIMEOUT_S))
        assert await free.call(lambda: "went on") == Returned("went on")
        assert not blocking.done()
        release.set()
        assert await blocking == Returned(value=True)
        blocked.close()
        free.close()

    asyncio.run(main())


def test_a_cancelled_wait_cancels_a_coroutine_but_not_a_thread(handler_loop: LoopThread) -> None:
    """When a lease is lost, a thread cannot be stopped and ends by itself."""
    release, ended, cancelled = threading.Event(), threading.Event(), threading.Event()

    def plain(started: threading.Event) -> None:
        started.set()
        release.wait(TIMEOUT_S)
        ended.set()

    async def coroutine(started: threading.Event) -> None:
        started.set()
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            cancelled.set()
            raise

    async def main() -> None:
        runner = ThreadedRunners(handler_loop.loop).runner_for("x")
        for function in (plain, coroutine):
            await cancel_started_call(runner, function)
        runner.close()

    asyncio.run(main())
    assert cancelled.wait(TIMEOUT_S)
    assert not ended.is_set()
    release.set()
    assert ended.wait(TIMEOUT_S)


async def cancel_started_call(runner: HandlerRunner, function: Callable[[threading.Event], object]) -> None:
    """Cancel the wait for a call that has started."""
    started = threading.Event()
    call = asyncio.ensure_future(runner.call(function, started))
    await asyncio.to_thread(started.wait, TIMEOUT_S)
    call.cancel()
    with pytest.raises(asyncio.CancelledError):
        await call


@pytest.mark.parametrize("kind", ["plain", "async"])
def test_a_posted_function_runs_after_the_running_one(handler_loop: LoopThread, kind: str) -> None:
    """`lease_lost` comes after a running `process_records`, although the engine waits for neither."""
    order: list[str] = []
    release, finished = threading.Event(), threading.Event()

    def first(started: threading.Event) -> None:
        started.set()
        release.wait(TIMEOUT_S)
        order.append("first")

    async def first_async(started: threading.Event) -> None:
        started.set()
        try:
            await asyncio.Event().wait()
        finally:
            await asyncio.to_thread(release.wait, TIMEOUT_S)
            order.append("first")

    def second() -> None:
        order.append("second")
        finished.set()

    async def second_async() -> None:
        second()

    async def main() -> None:
        runner = ThreadedRunners(handler_loop.loop).runner_for("x")
        await cancel_started_call(runner, first if kind == "plain" else first_async)
        runner.post(second if kind == "plain" else second_async)
        release.set()
        runner.close()
        await asyncio.to_thread(finished.wait, TIMEOUT_S)

    asyncio.run(main())
    assert order == ["first", "second"]


def test_is_async_recognizes_async_functions() -> None:
    """Before they are called."""
    assert all(is_async(function) for function in (add_one, partial(add_one), AsyncCallable()))
    assert not any(is_async(function) for function in (print, len, HandlerRunner.close))


@pytest.mark.parametrize("kind", ["plain", "async"])
def test_a_runner_with_concurrency_makes_so_many_calls_at_a_time(handler_loop: LoopThread, kind: str) -> None:
    """All of them run before the first returns, and no more than that."""
    lock, most = threading.Lock(), 0
    running, may_return = 0, threading.Event()

    def enter() -> None:
        nonlocal running, most
        with lock:
            running += 1
            most = max(most, running)
            if running == 3:
                may_return.set()

    def leave() -> None:
        nonlocal running
        with lock:
            running -= 1

    def work() -> None:
        enter()
        assert may_return.wait(TIMEOUT_S)
        leave()

    async def work_async() -> None:
        enter()
        assert await asyncio.to_thread(may_return.wait, TIMEOUT_S)
        leave()

    async def main() -> None:
        runner = ThreadedRunners(handler_loop.loop).runner_for("x", 3)
        function = work if kind == "plain" else work_async
        async with asyncio.timeout(TIMEOUT_S):
            outcomes = await asyncio.gather(*(runner.call(function) for _ in range(7)))
        assert outcomes == [Returned(None)] * 7
        runner.close()

    asyncio.run(main())
    assert most == 3


def test_threads_are_started_only_for_calls_at_the_same_time(handler_loop: LoopThread) -> None:
    """A shard whose calls come one after the other needs one thread, however many it may use."""

    async def main() -> None:
        runner = ThreadedRunners(handler_loop.loop).runner_for("shard-0", concurrency=3)
        async with asyncio.timeout(TIMEOUT_S):
            one_by_one = {await runner.call(threading.get_ident) for _ in range(5)}
            assert len(one_by_one) == 1
            all_there = threading.Barrier(3)

            def meet() -> int:
                all_there.wait(TIMEOUT_S)
                return threading.get_ident()

            together = set(await asyncio.gather(*(runner.call(meet) for _ in range(3))))
        assert len(together) == 3
        assert one_by_one < together
        runner.close()

    asyncio.run(main())
