"""The way between a process and what it depends on: it takes time, refuses, and loses requests and answers.

A request that was sent arrives (or not) whatever becomes of its sender. Knows nothing of rows and records.
"""

from __future__ import annotations

import asyncio
import contextvars
import random
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, TypeVar

from leasehold.errors import LeaseholdError, ThrottledError, UnavailableError
from leasehold.simulation.process import SimulatedProcess

T = TypeVar("T")


class Dependency(Enum):
    """What a process depends on."""

    LEASES = "leases"
    STREAM = "stream"
    SINK = "sink"
    LETTERS = "letters"


class CallFault(Enum):
    """What may happen to a call."""

    THROTTLED = "throttled"  # refused before anything happened
    REQUEST_LOST = "request lost"
    ANSWER_LOST = "answer lost"  # it happened, and nobody heard of it
    LATE = "late"  # it arrives after its sender has given it up
    ECHOED = "echoed"  # the client sent it twice, and hears what became of the second


@dataclass(frozen=True, slots=True)
class Partition:
    """A partition between one process (None: all of them) and a dependency, one way: requests or answers are lost."""

    process: SimulatedProcess | None
    dependency: Dependency
    trouble: CallFault


@dataclass(slots=True)
class NetworkConditions:
    """How bad the network is now. Faults change it; a healed one is only slow."""

    rng: random.Random
    latency_ms: int = 10
    timeout_ms: int = 2_000
    # Of each dependency, how likely each trouble is for one call.
    chances: dict[Dependency, dict[CallFault, float]] = field(default_factory=dict)
    throttle_chances: dict[Dependency, float] = field(default_factory=dict)
    partitions: list[Partition] = field(default_factory=list)
    slow_share: float = 0.0

    def draw_fault(self, process: SimulatedProcess, dependency: Dependency) -> CallFault | None:
        """What happens to the next call."""
        for cut in self.partitions:
            if cut.dependency is dependency and cut.process in {None, process}:
                return cut.trouble
        if self.rng.random() < self.throttle_chances.get(dependency, 0.0):
            return CallFault.THROTTLED
        chances = self.chances.get(dependency)
        if chances:
            draw = self.rng.random()
            for trouble, chance in chances.items():
                draw -= chance
                if draw < 0:
                    return trouble
        return None

    def delay_ms(self) -> float:
        """How long one way takes now."""
        if self.slow_share and self.rng.random() < self.slow_share:
            return self.latency_ms * self.rng.uniform(5, 100)
        return self.latency_ms * self.rng.uniform(0.5, 1.5)

    def clear_faults(self) -> None:
        """The end of all trouble."""
        self.chances.clear()
        self.throttle_chances.clear()
        self.partitions.clear()
        self.slow_share = 0.0


@dataclass(frozen=True, slots=True)
class _Call:
    process: SimulatedProcess
    name: str
    serve: Callable[[], Any]
    answered: asyncio.Future[Any]


class Network:
    """Carries calls. To be made outside of any process."""

    def __init__(self, loop: asyncio.AbstractEventLoop, conditions: NetworkConditions) -> None:
        self.conditions = conditions
        self.calls: Counter[tuple[Dependency, str]] = Counter()
        self._loop = loop
        self._outside = contextvars.copy_context()

    async def call(
        self, process: SimulatedProcess, dependency: Dependency, name: str, serve: Callable[[], T]
    ) -> T:
        """Send a request and wait for the answer. `serve` is what the other side does when it arrives."""
        answered: asyncio.Future[T] = self._loop.create_future()
        if process.is_alive:
            self.calls[dependency, name] += 1
            self._send(
                _Call(process, f"{dependency.value} {name}", serve, answered),
                self.conditions.draw_fault(process, dependency),
            )
        return await answered

    def _send(self, call: _Call, trouble: CallFault | None) -> None:
        conditions = self.conditions
        arrives_ms = conditions.delay_ms()
        if trouble is CallFault.LATE:
            arrives_ms = conditions.timeout_ms * conditions.rng.uniform(1.1, 3)
        if trouble in {CallFault.REQUEST_LOST, CallFault.ANSWER_LOST, CallFault.LATE}:
            self.call_later(
                conditions.timeout_ms, lambda: _answer(call, UnavailableError(f"{call.name}: no answer"))
            )
        if trouble is not CallFault.REQUEST_LOST:
            self.call_later(arrives_ms, lambda: self._arrive(call, trouble))

    def _arrive(self, call: _Call, trouble: CallFault | None) -> None:
        answer: object
        if trouble is CallFault.THROTTLED:
            answer = ThrottledError(f"{call.name}: too many requests")
        else:
            answer = _served(call)
            if trouble is CallFault.ECHOED:
                answer = _served(call)
        if trouble not in {CallFault.ANSWER_LOST, CallFault.LATE}:
            self.call_later(self.conditions.delay_ms(), lambda: _answer(call, answer))

    def call_later(self, delay_ms: float, action: Callable[[], None]) -> None:
        """Let something happen in the world, whatever becomes of the process that asked for it."""
        self._loop.call_later(delay_ms / 1000, action, context=self._outside)


def _served(call: _Call) -> object:
    try:
        return call.serve()
    except LeaseholdError as error:
        return error


def _answer(call: _Call, answer: object) -> None:
    if call.answered.done():
        return
    if isinstance(answer, Exception):
        call.answered.set_exception(answer)
    else:
        call.answered.set_result(answer)
