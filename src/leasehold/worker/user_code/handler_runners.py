"""Where user code runs: never on the engine's loop, so that no handler, however slow, can cost a lease.

Each shard has a lane: its calls run one at a time, in order. Plain functions run on a thread that is the lane's own, so
that what a handler keeps in a thread-local (a database connection, say) stays with its shard. Async functions run on
another event loop. How a call ended is a value: nothing that user code raises, SystemExit included, travels through
the engine as an exception.

The simulator has lanes without threads: `InlineRunners`.
"""

from __future__ import annotations

import asyncio
import inspect
import threading
import traceback
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass
from queue import SimpleQueue
from typing import Any, Protocol

Function = Callable[..., object]


@dataclass(frozen=True, slots=True)
class Returned:
    """User code returned."""

    value: object


@dataclass(frozen=True, slots=True)
class Raised:
    """User code raised, and no further than here."""

    error: BaseException


Outcome = Returned | Raised


class HandlerRunner(Protocol):
    """The user code of one shard: one call at a time, in the order in which they were made."""

    async def call(self, function: Function, *arguments: object) -> Outcome:
        """Run a function and say how it ended. Cancelling the wait cancels an async function; a thread goes on."""
        ...

    def post(self, function: Function, *arguments: object) -> None:
        """Run a function after whatever runs now. Nobody waits for it, and nobody hears how it ended."""
        ...

    def close(self) -> None:
        """There will be no more calls. What was posted still runs."""
        ...


class HandlerRunners(Protocol):
    """Makes lanes."""

    def runner(self, name: str) -> HandlerRunner:
        """A lane for one shard during one holding of its lease."""
        ...


def traceback_without_message(error: BaseException) -> str:
    """Where something was raised, line by line. Not what it said: that may be a payload."""
    return "".join(traceback.format_tb(error.__traceback__)).rstrip()


def is_async(function: Function) -> bool:
    """Whether calling it makes a coroutine: an `async def`, bound, partial or as `__call__` of an object."""
    return inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(
        getattr(type(function), "__call__", None)  # noqa: B004 - asked for its kind, not whether it is there
    )


@dataclass(frozen=True, slots=True)
class _Job:
    function: Function
    arguments: tuple[object, ...]
    ended: Future[Outcome]


class ThreadedRunners(HandlerRunners):
    """Plain functions on a thread a lane, async functions on the loop given."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop

    def runner(self, name: str) -> HandlerRunner:
        """A lane whose thread starts with its first plain call."""
        return _ThreadedLane(name, self._loop)


class _ThreadedLane(HandlerRunner):
    def __init__(self, name: str, loop: asyncio.AbstractEventLoop) -> None:
        self._name = name
        self._loop = loop
        self._one_at_a_time = asyncio.Lock()  # of async calls; used on the other loop only
        self._jobs: SimpleQueue[_Job | None] = SimpleQueue()
        self._thread: threading.Thread | None = None

    async def call(self, function: Function, *arguments: object) -> Outcome:
        return await asyncio.wrap_future(self._submit(function, arguments))

    def post(self, function: Function, *arguments: object) -> None:
        self._submit(function, arguments)

    def close(self) -> None:
        if self._thread is not None:
            self._jobs.put(None)

    def _submit(self, function: Function, arguments: tuple[object, ...]) -> Future[Outcome]:
        if is_async(function):
            return asyncio.run_coroutine_threadsafe(self._in_turn(function, arguments), self._loop)
        ended: Future[Outcome] = Future()
        self._jobs.put(_Job(function, arguments, ended))
        if self._thread is None:
            # A daemon: a handler that never returns must not keep the process from exiting.
            self._thread = threading.Thread(target=self._work, name=f"leasehold-{self._name}", daemon=True)
            self._thread.start()
        return ended

    async def _in_turn(self, function: Function, arguments: tuple[object, ...]) -> Outcome:
        async with self._one_at_a_time:
            return await _awaited(function, arguments)

    def _work(self) -> None:
        while (job := self._jobs.get()) is not None:
            if job.ended.set_running_or_notify_cancel():
                job.ended.set_result(self._called(job))

    def _called(self, job: _Job) -> Outcome:
        outcome = _called(job.function, job.arguments)
        if isinstance(outcome, Returned) and inspect.isawaitable(outcome.value):
            # An async function behind a plain wrapper. To drop its coroutine would be to lose the records.
            awaiting = asyncio.run_coroutine_threadsafe(_awaited(lambda: outcome.value, ()), self._loop)
            return awaiting.result()
        return outcome


class InlineRunners(HandlerRunners):
    """User code on the engine's own loop: for the simulator and the test kit. A handler that blocks stops the world."""

    def runner(self, name: str) -> HandlerRunner:  # noqa: ARG002 - part of the protocol
        """A lane without a thread."""
        return _InlineLane()


class _InlineLane(HandlerRunner):
    def __init__(self) -> None:
        self._posted: set[asyncio.Task[Outcome]] = set()

    async def call(self, function: Function, *arguments: object) -> Outcome:
        outcome = _called(function, arguments)
        if isinstance(outcome, Returned) and inspect.isawaitable(outcome.value):
            return await _awaited(lambda: outcome.value, ())
        return outcome

    def post(self, function: Function, *arguments: object) -> None:
        task = asyncio.get_running_loop().create_task(self.call(function, *arguments))
        self._posted.add(task)  # the loop itself keeps only a weak reference
        task.add_done_callback(self._posted.discard)

    def close(self) -> None:
        pass


def _called(function: Function, arguments: tuple[object, ...]) -> Outcome:
    try:
        return Returned(function(*arguments))
    except BaseException as error:  # noqa: BLE001 - whatever it is, it must not leave the lane
        return Raised(error)


async def _awaited(function: Function, arguments: tuple[object, ...]) -> Outcome:
    try:
        result: Any = function(*arguments)
        return Returned(await result)
    except asyncio.CancelledError as error:
        task = asyncio.current_task()
        assert task is not None
        if task.cancelling():
            raise  # by us: the lease is lost
        return Raised(error)
    except BaseException as error:  # noqa: BLE001 - whatever it is, it must not leave the lane
        return Raised(error)
