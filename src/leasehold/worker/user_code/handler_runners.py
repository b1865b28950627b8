"""Runs user code, never on the engine's event loop, so that a slow handler cannot cost a lease.

Each shard has one runner. It makes its calls one at a time, in order; with a record handler, `concurrency` at a time.
Plain functions run on threads that belong to the runner, so that a thread-local of a handler (a database connection,
say) stays with its shard. Async functions run on another event loop. The outcome of a call is a value: no exception of
user code, SystemExit included, propagates into the engine.

The simulator uses `InlineRunners`, which need no threads.
"""

from __future__ import annotations

import asyncio
import inspect
import threading
import traceback
from collections.abc import Awaitable, Callable
from concurrent.futures import Future
from dataclasses import dataclass
from queue import SimpleQueue
from typing import Any, Protocol

Function = Callable[..., object]


@dataclass(frozen=True, slots=True)
class Returned:
    """User code returned this value."""

    value: object


@dataclass(frozen=True, slots=True)
class Raised:
    """User code raised this error."""

    error: BaseException


Outcome = Returned | Raised


class HandlerRunner(Protocol):
    """Runs the user code of one shard. Calls begin in their order, and at most `concurrency` of them run at a time."""

    async def call(self, function: Function, *arguments: object) -> Outcome:
        """Run a function and return its outcome.

        Cancelling the wait cancels an async function. A plain function continues on its thread.
        """
        ...

    def post(self, function: Function, *arguments: object) -> None:
        """Run a function after all earlier calls, without waiting. Its outcome is dropped."""
        ...

    def close(self) -> None:
        """Accept no more calls. Posted functions still run."""
        ...


class HandlerRunners(Protocol):
    """Creates a runner for each shard."""

    def runner_for(self, name: str, concurrency: int = 1) -> HandlerRunner:
        """Create the runner of one shard for one lease session."""
        ...


def traceback_without_message(error: BaseException) -> str:
    """Return the stack of an error. Leaves out its message, which may contain a payload."""
    return "".join(traceback.format_tb(error.__traceback__)).rstrip()


def is_async(function: Function) -> bool:
    """Return whether calling it makes a coroutine: an `async def`, bound, partial or as `__call__` of an object."""
    return inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(
        getattr(type(function), "__call__", None)  # noqa: B004 - asks for its kind, not whether it exists
    )


@dataclass(frozen=True, slots=True)
class _Job:
    function: Function
    arguments: tuple[object, ...]
    outcome: Future[Outcome]


class ThreadedRunners(HandlerRunners):
    """Runs plain functions on threads of the runner, and async functions on the given event loop."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop

    def runner_for(self, name: str, concurrency: int = 1) -> HandlerRunner:
        """Create a runner whose threads start when plain calls need them."""
        return _ThreadedRunner(name, self._loop, concurrency)


class _ThreadedRunner(HandlerRunner):
    def __init__(self, name: str, loop: asyncio.AbstractEventLoop, concurrency: int) -> None:
        self._name = name
        self._loop = loop
        self._concurrency = concurrency
        self._async_slots = asyncio.Semaphore(concurrency)  # first come, first served; used on `loop` only
        self._jobs: SimpleQueue[_Job | None] = SimpleQueue()
        self._threads: list[threading.Thread] = []
        self._unfinished_jobs = 0  # changed on the engine's loop only

    async def call(self, function: Function, *arguments: object) -> Outcome:
        if is_async(function):
            return await asyncio.wrap_future(self._submit_async(function, arguments))
        job = _Job(function, arguments, Future())
        self._unfinished_jobs += 1
        self._jobs.put(job)
        self._ensure_threads()
        try:
            return await asyncio.wrap_future(job.outcome)
        finally:
            self._unfinished_jobs -= 1

    def post(self, function: Function, *arguments: object) -> None:
        if is_async(function):
            self._submit_async(function, arguments)
        else:
            self._jobs.put(_Job(function, arguments, Future()))
            self._ensure_threads()

    def close(self) -> None:
        for _ in self._threads:
            self._jobs.put(None)

    def _submit_async(self, function: Function, arguments: tuple[object, ...]) -> Future[Outcome]:
        return asyncio.run_coroutine_threadsafe(self._call_in_order(function, arguments), self._loop)

    async def _call_in_order(self, function: Function, arguments: tuple[object, ...]) -> Outcome:
        async with self._async_slots:
            return await _call_async(function, arguments)

    def _ensure_threads(self) -> None:
        """Start one more thread if there are more unfinished calls than threads."""
        if len(self._threads) < min(self._concurrency, max(1, self._unfinished_jobs)):
            # A daemon thread, so that a handler that never returns does not keep the process from exiting.
            thread = threading.Thread(target=self._run_jobs, name=f"leasehold-{self._name}", daemon=True)
            self._threads.append(thread)
            thread.start()

    def _run_jobs(self) -> None:
        while (job := self._jobs.get()) is not None:
            if not job.outcome.set_running_or_notify_cancel():
                continue
            try:
                outcome: Outcome = Returned(job.function(*job.arguments))
            except BaseException as error:  # noqa: BLE001 - no error of user code may propagate into the engine
                outcome = Raised(error)
            if isinstance(outcome, Returned) and inspect.isawaitable(outcome.value):
                # A plain function returned a coroutine. To drop it would lose the records.
                outcome = asyncio.run_coroutine_threadsafe(_await_result(outcome.value), self._loop).result()
            job.outcome.set_result(outcome)


class InlineRunners(HandlerRunners):
    """Runs user code on the engine's own loop, for the simulator and tests. A handler that blocks stops everything."""

    def runner_for(self, name: str, concurrency: int = 1) -> HandlerRunner:  # noqa: ARG002 - part of the protocol
        """Create a runner without a thread."""
        return _InlineRunner()


class _InlineRunner(HandlerRunner):
    def __init__(self) -> None:
        self._posted: set[asyncio.Task[Outcome]] = set()

    async def call(self, function: Function, *arguments: object) -> Outcome:
        try:
            outcome = Returned(function(*arguments))
        except BaseException as error:  # noqa: BLE001 - no error of user code may propagate into the engine
            return Raised(error)
        return await _await_result(outcome.value) if inspect.isawaitable(outcome.value) else outcome

    def post(self, function: Function, *arguments: object) -> None:
        task = asyncio.get_running_loop().create_task(self.call(function, *arguments))
        self._posted.add(task)  # the loop itself keeps only a weak reference
        task.add_done_callback(self._posted.discard)

    def close(self) -> None:
        pass


async def _call_async(function: Function, arguments: tuple[object, ...]) -> Outcome:
    try:
        result: Any = function(*arguments)
    except BaseException as error:  # noqa: BLE001 - no error of user code may propagate into the engine
        return Raised(error)
    return await _await_result(result)


async def _await_result(result: Awaitable[object]) -> Outcome:
    try:
        return Returned(await result)
    except asyncio.CancelledError as error:
        task = asyncio.current_task()
        assert task is not None
        if task.cancelling():
            raise  # the engine cancelled the call, because the lease is lost
        return Raised(error)
    except BaseException as error:  # noqa: BLE001 - no error of user code may propagate into the engine
        return Raised(error)
