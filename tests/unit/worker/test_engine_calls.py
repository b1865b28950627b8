"""User code calls the engine: a thread waits, async code awaits, and a stopped engine raises LeaseLostError."""

import asyncio
import threading
from collections.abc import Iterator

import pytest

from leasehold.errors import LeaseLostError
from leasehold.loop_thread import LoopThread
from leasehold.worker.user_code.engine_calls import EngineCalls

TIMEOUT_S = 20


@pytest.fixture
def engine() -> Iterator[LoopThread]:
    """A loop on another thread, in place of the engine."""
    loop = LoopThread("test-loop")
    yield loop
    if not loop.loop.is_closed():
        loop.close(timeout_s=TIMEOUT_S)


async def thread_of_engine() -> int:
    await asyncio.sleep(0)
    return threading.get_ident()


async def fail() -> None:
    raise ValueError("on the engine")


def test_plain_code_gets_the_result_when_the_call_returns(engine: LoopThread) -> None:
    """The result may still be awaited, without waiting."""
    ready = EngineCalls(engine.loop).run(thread_of_engine())
    with pytest.raises(StopIteration) as stopped:
        next(iter(ready.__await__()))
    assert stopped.value.value not in {None, threading.get_ident()}
    with pytest.raises(ValueError, match="on the engine"):
        EngineCalls(engine.loop).run(fail())


def test_async_code_awaits_the_result(engine: LoopThread) -> None:
    """The work runs on the engine's loop, and the caller's loop stays free."""

    async def main() -> None:
        assert await EngineCalls(engine.loop).run(thread_of_engine()) != threading.get_ident()
        with pytest.raises(ValueError, match="on the engine"):
            await EngineCalls(engine.loop).run(fail())

    asyncio.run(main())


def test_on_the_engines_own_loop_the_work_is_a_task() -> None:
    """As in the simulator, where everything runs on one loop."""

    async def main() -> None:
        calls = EngineCalls(asyncio.get_running_loop())
        assert await calls.run(thread_of_engine()) == threading.get_ident()

    asyncio.run(main())


def test_a_stopped_engine_raises_lease_lost(engine: LoopThread) -> None:
    """For a handler that calls after the engine has stopped, or while it stops."""
    late: list[BaseException] = []
    started = threading.Event()

    async def never() -> None:
        started.set()
        await asyncio.Event().wait()

    def handler() -> None:
        try:
            EngineCalls(engine.loop).run(never())
        except LeaseLostError as error:
            late.append(error)

    thread = threading.Thread(target=handler)
    thread.start()
    assert started.wait(TIMEOUT_S)
    engine.close(timeout_s=TIMEOUT_S)
    thread.join(TIMEOUT_S)
    assert len(late) == 1
    with pytest.raises(LeaseLostError):
        EngineCalls(engine.loop).run(never())
    EngineCalls(engine.loop).call_soon(lambda: None)
