"""The network between a process and the services it uses: it delays, refuses and loses requests and responses.

A request that was sent arrives, or is lost, even if its sender has died meanwhile. This module knows nothing of rows
and records.
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

from leasehold.errors import AccessDeniedError, LeaseholdError, ThrottledError, UnavailableError
from leasehold.simulation.environment.process import SimulatedProcess

T = TypeVar("T")


class Dependency(Enum):
    """A service that processes use."""

    LEASES = "leases"
    STREAM = "stream"
    SINK = "sink"
    DEAD_LETTERS = "dead letters"
    OBJECTS = "objects"


class CallFault(Enum):
    """What can go wrong with one call."""

    THROTTLED = "throttled"  # the service refuses the request and does nothing
    REQUEST_LOST = "request lost"
    RESPONSE_LOST = "response lost"  # the service has done its work; the caller gets no response
    LATE = "late"  # the request arrives after the caller's timeout
    DUPLICATED = "duplicated"  # the client sends the request twice and gets the second response
    REFUSED = "refused"  # the credentials do not allow the request


@dataclass(frozen=True, slots=True)
class Partition:
    """A one-way partition between a dependency and one process (None: all processes), or credentials without rights."""

    process: SimulatedProcess | None
    dependency: Dependency
    fault: CallFault  # REQUEST_LOST, RESPONSE_LOST or REFUSED


@dataclass(slots=True)
class NetworkConditions:
    """The current state of the network. Without faults, calls only take time."""

    rng: random.Random
    latency_ms: int = 10
    timeout_ms: int = 2_000
    # For each dependency, the probability of each fault of a call.
    chances: dict[Dependency, dict[CallFault, float]] = field(default_factory=dict)
    throttle_chances: dict[Dependency, float] = field(default_factory=dict)
    partitions: list[Partition] = field(default_factory=list)
    slow_share: float = 0.0

    def draw_fault(self, process: SimulatedProcess, dependency: Dependency) -> CallFault | None:
        """Draw the fault of the next call; None if the call succeeds."""
        for partition in self.partitions:
            if partition.dependency is dependency and partition.process in {None, process}:
                return partition.fault
        if self.rng.random() < self.throttle_chances.get(dependency, 0.0):
            return CallFault.THROTTLED
        chances = self.chances.get(dependency)
        if chances:
            draw = self.rng.random()
            for fault, chance in chances.items():
                draw -= chance
                if draw < 0:
                    return fault
        return None

    def is_cut_off(self, process: SimulatedProcess, dependency: Dependency) -> bool:
        """Return whether a partition lies between a process and a dependency."""
        return any(
            partition.dependency is dependency and partition.process in {None, process}
            for partition in self.partitions
        )

    def draw_delay_ms(self) -> float:
        """Draw the time that a message takes in one direction."""
        if self.slow_share and self.rng.random() < self.slow_share:
            return self.latency_ms * self.rng.uniform(5, 100)
        return self.latency_ms * self.rng.uniform(0.5, 1.5)

    def clear_faults(self) -> None:
        """End all faults."""
        self.chances.clear()
        self.throttle_chances.clear()
        self.partitions.clear()
        self.slow_share = 0.0


@dataclass(frozen=True, slots=True)
class _Call:
    name: str
    serve: Callable[[], Any]
    response: asyncio.Future[Any]


class Network:
    """Carries calls from processes to services. Create it outside of every process."""

    def __init__(self, loop: asyncio.AbstractEventLoop, conditions: NetworkConditions) -> None:
        self.conditions = conditions
        self.calls: Counter[tuple[Dependency, str]] = Counter()
        self.on_refused: Callable[[SimulatedProcess, Dependency], None] = lambda _, __: None
        self._loop = loop
        self._context = contextvars.copy_context()

    async def call(
        self, process: SimulatedProcess, dependency: Dependency, name: str, serve: Callable[[], T]
    ) -> T:
        """Send a request and wait for the response. `serve` runs when the request arrives at the service."""
        response: asyncio.Future[T] = self._loop.create_future()
        if process.is_alive:
            self.calls[dependency, name] += 1
            fault = self.conditions.draw_fault(process, dependency)
            if fault is CallFault.REFUSED:
                self.on_refused(process, dependency)
            self._send(_Call(f"{dependency.value} {name}", serve, response), fault)
        return await response

    def call_later(self, delay_ms: float, action: Callable[[], None]) -> None:
        """Run an action after a delay, outside of every process: it runs even if the calling process dies."""
        self._loop.call_later(delay_ms / 1000, action, context=self._context)

    def _send(self, call: _Call, fault: CallFault | None) -> None:
        conditions = self.conditions
        arrives_ms = conditions.draw_delay_ms()
        if fault is CallFault.LATE:
            arrives_ms = conditions.timeout_ms * conditions.rng.uniform(1.1, 3)
        if fault in {CallFault.REQUEST_LOST, CallFault.RESPONSE_LOST, CallFault.LATE}:
            error = UnavailableError(f"{call.name}: no response")
            self.call_later(conditions.timeout_ms, lambda: _respond(call, error))
        if fault is not CallFault.REQUEST_LOST:
            self.call_later(arrives_ms, lambda: self._arrive(call, fault))

    def _arrive(self, call: _Call, fault: CallFault | None) -> None:
        result: object
        if fault is CallFault.THROTTLED:
            result = ThrottledError(f"{call.name}: too many requests")
        elif fault is CallFault.REFUSED:
            result = AccessDeniedError(f"{call.name}: access denied")
        else:
            result = _serve(call)
            if fault is CallFault.DUPLICATED:
                result = _serve(call)
        if fault not in {CallFault.RESPONSE_LOST, CallFault.LATE}:
            self.call_later(self.conditions.draw_delay_ms(), lambda: _respond(call, result))


def _serve(call: _Call) -> object:
    try:
        return call.serve()
    except LeaseholdError as error:
        return error


def _respond(call: _Call, result: object) -> None:
    if call.response.done():
        return
    if isinstance(result, Exception):
        call.response.set_exception(result)
    else:
        call.response.set_result(result)
