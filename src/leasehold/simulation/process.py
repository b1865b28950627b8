"""Processes on one event loop: each can be paused, resumed and killed between any two steps of its tasks.

A task belongs to the process in whose context it was made. The loop asks the process before each step: a paused one
puts the step off, a dead one drops it. So nothing that a killed process would still have done (its `finally` blocks
included) can reach the world, and what it had already sent travels on, as it does on a real network.

Everything is in the order of creation, never in that of memory addresses: tasks hash by a serial number, since
asyncio keeps them in sets.
"""

from __future__ import annotations

import asyncio
import contextvars
from collections import defaultdict, deque
from collections.abc import Callable, Coroutine, Iterable, Sequence
from enum import Enum
from itertools import count
from typing import Any, Final, TypeVarTuple, Unpack

from leasehold.core.model import WorkerId
from leasehold.ports import Clock
from leasehold.simulation.virtual_time import START_WALL_MS, VirtualLoop

_Arguments = TypeVarTuple("_Arguments")

PROCESS: Final[contextvars.ContextVar[SimulatedProcess | None]] = contextvars.ContextVar(
    "process", default=None
)
# How often a coroutine may catch its own end and wait again before it is left alone.
_CLOSINGS_MAX: Final = 100


class ProcessState(Enum):
    """What a process is doing."""

    RUNNING = "running"
    PAUSED = "paused"
    DEAD = "dead"  # killed; it will never do anything again
    ENDED = "ended"  # by itself


class SimulatedTask(asyncio.Task[Any]):
    """A task that knows its process and hashes the same in every run."""

    def __init__(self, serial: int, coro: Coroutine[Any, Any, Any], **arguments: Any) -> None:
        self.serial = serial
        context = arguments.get("context")
        self.process = PROCESS.get() if context is None else context.get(PROCESS)
        super().__init__(coro, **arguments)

    def __hash__(self) -> int:
        return self.serial


class SimulatedLoop(VirtualLoop):
    """A virtual loop that many processes share."""

    _ready: deque[asyncio.Handle]  # asyncio's own

    def __init__(self) -> None:
        super().__init__()
        serials = count()

        def make_task(loop: asyncio.AbstractEventLoop, coro: Any, **arguments: Any) -> SimulatedTask:
            task = SimulatedTask(next(serials), coro, loop=loop, **arguments)
            if task.process is not None:
                task.process.add_task(task)
            return task

        self.set_task_factory(make_task)

    def call_soon(
        self,
        callback: Callable[[Unpack[_Arguments]], object],
        *args: *_Arguments,
        context: contextvars.Context | None = None,
    ) -> asyncio.Handle:
        """Schedule a step, unless its process is paused or dead."""
        process = PROCESS.get() if context is None else context.get(PROCESS)
        if process is None or process.may_step():
            return super().call_soon(callback, *args, context=context)
        handle = asyncio.Handle(callback, args, self, context)
        process.postpone(handle)
        return handle

    def drop_steps_of(self, process: SimulatedProcess) -> None:
        """Forget what a process was about to do at this very moment."""
        for handle in self._ready:
            if _owner_of(handle) is process:
                handle.cancel()

    def run_postponed(self, handles: list[asyncio.Handle]) -> None:
        """Let steps happen now that were put off."""
        self._ready.extend(handles)

    def tasks_of(self, process: SimulatedProcess) -> list[SimulatedTask]:
        """The unfinished tasks of a process, oldest first."""
        return [task for task in self._tasks() if task.process is process]

    def kill_all(self, processes: Iterable[SimulatedProcess]) -> None:
        """Kill every process, and take apart what all the dead have left behind. To be called by a task of the loop."""
        tasks = defaultdict(list)
        for task in self._tasks():
            tasks[task.process].append(task)
        for process in processes:
            process.kill(tasks[process])
        for process in processes:
            process.close_tasks()

    def _tasks(self) -> list[SimulatedTask]:
        tasks = (task for task in asyncio.all_tasks(self) if isinstance(task, SimulatedTask))
        return sorted(tasks, key=lambda task: task.serial)


class ProcessClock(Clock):
    """Time as one process sees it. Its wall clock may be wrong, and may jump."""

    def __init__(self, loop: VirtualLoop) -> None:
        self._loop = loop
        self.wall_error_ms = 0

    def now_ms(self) -> int:
        """Monotonic: the same for everyone, and never wrong."""
        return round(self._loop.time() * 1000)

    def wall_ms(self) -> int:
        """What this machine believes that the time is."""
        return START_WALL_MS + self.now_ms() + self.wall_error_ms

    async def sleep_ms(self, duration_ms: int) -> None:
        """Wait; a paused process wakes up late."""
        await asyncio.sleep(duration_ms / 1000)


class SimulatedProcess:
    """One operating-system process of a worker."""

    def __init__(self, name: str, worker: WorkerId, loop: SimulatedLoop) -> None:
        self.name = name
        self.worker = worker
        self.clock = ProcessClock(loop)
        self.state = ProcessState.RUNNING
        self.steps_left: int | None = None  # before it is killed
        self.on_killed: Callable[[], None] = lambda: None
        self.stop = asyncio.Event()
        self.main: asyncio.Task[Any] | None = None
        self.is_stopping = False
        self._loop = loop
        self._context = contextvars.copy_context()
        self._context.run(PROCESS.set, self)
        self._put_off: list[asyncio.Handle] = []
        self._wreck: list[SimulatedTask] = []

    @property
    def is_alive(self) -> bool:
        """Whether it runs, or would go on after a pause."""
        return self.state in {ProcessState.RUNNING, ProcessState.PAUSED}

    def start(self, main: Callable[[], Coroutine[Any, Any, object]]) -> None:
        """Begin to run `main`."""
        self.main = self._context.run(lambda: self._loop.create_task(main(), context=self._context))

    def may_step(self) -> bool:
        """Asked before each step. Counts down to a death that was ordered."""
        if self.steps_left is not None:
            self.steps_left -= 1
            if self.steps_left < 0:
                self.steps_left = None
                self.kill()
        return self.state is ProcessState.RUNNING or self.state is ProcessState.ENDED

    def postpone(self, handle: asyncio.Handle) -> None:
        """Keep a step for after the pause. A dead process keeps nothing."""
        if self.state is ProcessState.PAUSED:
            self._put_off.append(handle)

    def pause(self) -> None:
        """SIGSTOP."""
        if self.state is ProcessState.RUNNING:
            self.state = ProcessState.PAUSED

    def resume(self) -> None:
        """SIGCONT."""
        if self.state is ProcessState.PAUSED:
            self.state = ProcessState.RUNNING
            steps, self._put_off = self._put_off, []
            self._loop.run_postponed(steps)

    def kill(self, tasks: Sequence[SimulatedTask] | None = None) -> None:
        """SIGKILL. `tasks` are its tasks, where someone knows them already."""
        if self.is_alive:
            self.state = ProcessState.DEAD
            self._put_off.clear()
            self._loop.drop_steps_of(self)
            # Were they collected as garbage, their cleanup would run at a moment that no seed decides.
            self._wreck = list(self._loop.tasks_of(self) if tasks is None else tasks)
            self.on_killed()

    def add_task(self, task: SimulatedTask) -> None:
        """A task was made. That of a dead process, in the very step in which it was killed, will never run."""
        if self.state is ProcessState.DEAD:
            self._wreck.append(task)

    def close_tasks(self) -> None:
        """Take apart what a dead process left behind. Its loop must still run."""
        while self._wreck:
            task = self._wreck.pop()
            task._log_destroy_pending = False  # type: ignore[attr-defined]  # noqa: SLF001 - it is meant to be pending
            self._context.run(_close, task.get_coro())


def _owner_of(handle: asyncio.Handle) -> SimulatedProcess | None:
    # Public only since Python 3.12, as `get_context`.
    context: contextvars.Context = handle._context  # type: ignore[attr-defined]  # noqa: SLF001
    return context.get(PROCESS)


def _close(coroutine: Any) -> None:
    """End a coroutine from outside. Where its cleanup waits for something, it is ended again, there."""
    for _ in range(_CLOSINGS_MAX):
        try:
            coroutine.close()
        except BaseException:  # noqa: BLE001, S112 - whatever a wreck raises, nobody is there to hear it
            continue
        return
