"""Simulated processes on one event loop: each can be paused, resumed and killed between any two steps of its tasks.

A task belongs to the process in whose context it was created. Before each step the loop asks the process: a paused
process postpones the step, a dead process drops it. So a killed process has no more effects, not even from its
`finally` blocks. A request that it has already sent still arrives, as on a real network.

All orders are orders of creation, never of memory addresses. Tasks hash by a serial number because asyncio keeps them
in sets.
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
# A coroutine may catch GeneratorExit and wait again. After so many attempts it is left alone.
_CLOSE_ATTEMPTS_MAX: Final = 100


class ProcessState(Enum):
    """The state of a process."""

    RUNNING = "running"
    PAUSED = "paused"
    DEAD = "dead"  # it was killed
    ENDED = "ended"  # its main coroutine returned or raised


class Role(Enum):
    """What a process does."""

    WORKER = "worker"
    DRIVER = "driver"  # Spark's JVM, which runs the batches of a query
    READER = "reader"  # the Python process of a query's source on the driver: a member of the fleet
    EXECUTOR = "executor"  # a Python process that runs tasks of a query
    COMPACTOR = "compactor"  # compacts the archive from time to time
    ARCHIVE_READER = "archive reader"  # reads the whole archive from time to time


class SimulatedTask(asyncio.Task[Any]):
    """A task that knows its process and has the same hash in every run."""

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
        """Cancel the steps of a process that are scheduled for now."""
        for handle in self._ready:
            if _process_of(handle) is process:
                handle.cancel()

    def run_postponed(self, handles: list[asyncio.Handle]) -> None:
        """Schedule postponed steps."""
        self._ready.extend(handles)

    def tasks_of(self, process: SimulatedProcess) -> list[SimulatedTask]:
        """Return the unfinished tasks of a process, oldest first."""
        return [task for task in self._tasks() if task.process is process]

    def kill_all(self, processes: Iterable[SimulatedProcess]) -> None:
        """Kill every process and close the tasks of all dead processes. Call it from a task of this loop."""
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
    """The clocks of one process. Its wall clock may be wrong and may jump; its monotonic clock is always right.

    Timers stop while the machine is suspended. The clocks do not.
    """

    def __init__(self, loop: VirtualLoop) -> None:
        self._loop = loop
        self.wall_error_ms = 0
        self.suspended_ms = 0  # how long the machine was suspended in total
        self.woken_ms: int | None = None  # when the last suspension ended

    def now_ms(self) -> int:
        """Return the monotonic time, which is the same for all processes."""
        return round(self._loop.time() * 1000)

    def note_suspension(self, duration_ms: int) -> None:
        """The machine was suspended until now, and its timers did not count the time."""
        self.suspended_ms += duration_ms
        self.woken_ms = self.now_ms()

    def wall_ms(self) -> int:
        """Return the time of this process's wall clock."""
        return START_WALL_MS + self.now_ms() + self.wall_error_ms

    async def sleep_ms(self, duration_ms: int) -> None:
        """Wait. A paused process wakes up late, and the timers of a suspended one go on after it."""
        began_s, before_ms = self._loop.time(), self.suspended_ms
        known_ms = before_ms
        await asyncio.sleep(duration_ms / 1000)
        while known_ms < self.suspended_ms:
            known_ms = self.suspended_ms
            due_s = began_s + (duration_ms + known_ms - before_ms) / 1000
            await asyncio.sleep(max(0.0, due_s - self._loop.time()))


class SimulatedProcess:
    """One operating-system process.

    It has more than 12 attributes because it is all that the simulator knows of a process.
    """

    def __init__(
        self,
        name: str,
        worker: WorkerId,
        loop: SimulatedLoop,
        *,
        role: Role = Role.WORKER,
        runs_for: SimulatedProcess | None = None,
    ) -> None:
        self.name = name
        self.worker = worker
        self.role = role
        self.member = runs_for or self  # the member of the fleet for which it writes to the lease table
        self.on_exit: list[Callable[[], None]] = []
        self.clock = ProcessClock(loop)
        self.state = ProcessState.RUNNING
        self.steps_left: int | None = None  # until it is killed; None: no kill is scheduled
        self.on_killed: Callable[[], None] = lambda: None
        self.stop = asyncio.Event()
        self.handled_bytes = 0  # that its handlers got
        self.slowness = 1.0  # the processor time for a byte, compared with other processes
        self.main: asyncio.Task[Any] | None = None
        self._loop = loop
        self._context = contextvars.copy_context()
        self._context.run(PROCESS.set, self)
        self._postponed: list[asyncio.Handle] = []
        self._tasks_left: list[SimulatedTask] = []  # of a dead process, until they are closed

    @property
    def is_alive(self) -> bool:
        """Whether it runs or is paused."""
        return self.state in {ProcessState.RUNNING, ProcessState.PAUSED}

    @property
    def is_member(self) -> bool:
        """Whether it is a member of the fleet."""
        return self.role in {Role.WORKER, Role.READER}

    @property
    def is_stopping(self) -> bool:
        """Whether it was asked to stop."""
        return self.stop.is_set()

    def start(self, main: Callable[[], Coroutine[Any, Any, object]]) -> None:
        """Start to run `main`."""
        self.main = self.spawn(main)

    def spawn(self, main: Callable[[], Coroutine[Any, Any, Any]]) -> asyncio.Task[Any]:
        """Start another task of this process."""
        return self._context.run(lambda: self._loop.create_task(main(), context=self._context))

    def may_step(self) -> bool:
        """Return whether the next step may run. The loop asks before each step; a scheduled kill counts the calls."""
        if self.steps_left is not None:
            self.steps_left -= 1
            if self.steps_left < 0:
                self.steps_left = None
                self.kill()
        return self.state is ProcessState.RUNNING or self.state is ProcessState.ENDED

    def postpone(self, handle: asyncio.Handle) -> None:
        """Keep a step until the process is resumed. A dead process drops the step."""
        if self.state is ProcessState.PAUSED:
            self._postponed.append(handle)

    def pause(self) -> None:
        """Send SIGSTOP."""
        if self.state is ProcessState.RUNNING:
            self.state = ProcessState.PAUSED

    def resume(self) -> None:
        """Send SIGCONT."""
        if self.state is ProcessState.PAUSED:
            self.state = ProcessState.RUNNING
            steps, self._postponed = self._postponed, []
            self._loop.run_postponed(steps)

    def kill(self, tasks: Sequence[SimulatedTask] | None = None) -> None:
        """Send SIGKILL. `tasks` are the process's tasks, if the caller has listed them already."""
        if self.is_alive:
            self.state = ProcessState.DEAD
            # The references keep the tasks alive: garbage collection would run their cleanup at a random moment. They
            # are made first, since a step may have the only reference to its task.
            self._tasks_left = list(self._loop.tasks_of(self) if tasks is None else tasks)
            self._postponed.clear()
            self._loop.drop_steps_of(self)
            self.on_killed()

    def add_task(self, task: SimulatedTask) -> None:
        """Keep a task that is created in the step in which its process was killed. It will never run."""
        if self.state is ProcessState.DEAD:
            self._tasks_left.append(task)

    def close_tasks(self) -> None:
        """Close the coroutines of a dead process. The loop must still be running."""
        while self._tasks_left:
            task = self._tasks_left.pop()
            task._log_destroy_pending = False  # type: ignore[attr-defined]  # noqa: SLF001 - it is pending on purpose
            self._context.run(_close, task.get_coro())


def _process_of(handle: asyncio.Handle) -> SimulatedProcess | None:
    # Public as `get_context` only since Python 3.12.
    context: contextvars.Context = handle._context  # type: ignore[attr-defined]  # noqa: SLF001
    return context.get(PROCESS)


def _close(coroutine: Any) -> None:
    """Close a coroutine. If its cleanup waits for something, close it again there."""
    for _ in range(_CLOSE_ATTEMPTS_MAX):
        try:
            coroutine.close()
        except BaseException:  # noqa: BLE001, S112 - errors of a dead process have no effect
            continue
        return
