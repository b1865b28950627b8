"""Enhanced fan-out as one process reaches it: the model's consumers and subscriptions, over the simulated network.

A subscription may fall silent, break, end early or be refused. The event that it would have sent is lost with it, so
a reader that does not continue at the right place loses or repeats records.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import Enum, auto
from typing import Final, Protocol, TypeVar

from leasehold.adapters.memory.stream import MemoryFanOut, MemorySubscription
from leasehold.core.model import ShardId
from leasehold.core.records.iterators import IteratorStart
from leasehold.errors import InUseError, UnavailableError
from leasehold.ports import ConsumerDescription, FanOut, Page, Subscription, SubscriptionEvent
from leasehold.simulation.environment.network import Dependency, Network
from leasehold.simulation.environment.process import SimulatedProcess
from leasehold.simulation.environment.stream import PageListener
from leasehold.simulation.environment.table import run_synchronously

T = TypeVar("T")

_LOOK_AFTER_MIN_MS: Final = 50
_LOOK_AFTER_MAX_MS: Final = 1_000
_FOR_EVER_MS: Final = 10**10


class EventFate(Enum):
    """What happens instead of an event."""

    SILENCE = auto()  # the connection looks open, and nothing arrives any more
    CUT = auto()
    EARLY_END = auto()  # as after five minutes


@dataclass(slots=True)
class FanOutQuirks:
    """How often subscriptions misbehave."""

    rng: random.Random
    chances: dict[EventFate, float]
    in_use_chance: float = 0.0  # of a call, as if another process had just subscribed

    def draw_fate(self) -> EventFate | None:
        """Draw what happens to the next event; None if it arrives."""
        if self.chances:
            draw = self.rng.random()
            for fate, chance in self.chances.items():
                draw -= chance
                if draw < 0:
                    return fate
        return None

    def draw_in_use(self) -> bool:
        """Draw whether a call is refused."""
        return bool(self.in_use_chance) and self.rng.random() < self.in_use_chance

    def clear(self) -> None:
        """End the quirks. A subscription that is silent stays so."""
        self.chances = {}
        self.in_use_chance = 0.0


class ReadListener(PageListener, Protocol):
    """Gets what processes read, and which subscriptions they have."""

    def subscription_opened(self, process: SimulatedProcess, stream: str, shard: ShardId) -> None: ...
    def subscription_closed(self, process: SimulatedProcess, stream: str, shard: ShardId) -> None: ...


class ProcessFanOut(FanOut):
    """The consumers of one stream and their subscriptions, used by one process over the network."""

    def __init__(
        self,
        fan_out: MemoryFanOut,
        *,
        name: str,
        network: Network,
        process: SimulatedProcess,
        quirks: FanOutQuirks,
        listener: ReadListener,
    ) -> None:
        self._fan_out = fan_out
        self._name = name
        self._network = network
        self._process = process
        self._quirks = quirks
        self._listener = listener

    @property
    def is_cut_off(self) -> bool:
        """Whether a partition lies between the process and the stream."""
        return self._network.conditions.is_cut_off(self._process, Dependency.STREAM)

    def draw_fate(self) -> EventFate | None:
        """Draw what happens to the next event; None if it arrives."""
        return self._quirks.draw_fate()

    async def sleep_ms(self, duration_ms: int) -> None:
        """Wait in the process."""
        await self._process.clock.sleep_ms(duration_ms)

    async def deliver(self, event: SubscriptionEvent) -> None:
        """Let an event arrive at the process."""
        await self.sleep_ms(round(self._network.conditions.draw_delay_ms()))
        page = Page(event.records, event.continuation, event.millis_behind)
        self._listener.page_read(self._process, self._name, page)

    def note_closed(self, shard: ShardId) -> None:
        """The process has closed a subscription."""
        self._listener.subscription_closed(self._process, self._name, shard)

    async def register_consumer(self, name: str) -> ConsumerDescription:
        """Register a consumer."""
        return await self._call("register", lambda: run_synchronously(self._fan_out.register_consumer(name)))

    async def describe_consumer(self, name_or_arn: str) -> ConsumerDescription:
        """Describe a consumer."""
        return await self._call(
            "describe", lambda: run_synchronously(self._fan_out.describe_consumer(name_or_arn))
        )

    async def list_consumers(self) -> Sequence[ConsumerDescription]:
        """Return all consumers."""
        return await self._call("list_consumers", lambda: run_synchronously(self._fan_out.list_consumers()))

    async def deregister_consumer(self, arn: str) -> None:
        """Delete a consumer."""
        await self._call("deregister", lambda: run_synchronously(self._fan_out.deregister_consumer(arn)))

    async def require_stream(self) -> None:
        """Raise NotFoundError if the stream does not exist."""
        await self._call("require_stream", lambda: run_synchronously(self._fan_out.require_stream()))

    async def subscribe(self, consumer_arn: str, shard: ShardId, start: IteratorStart) -> Subscription:
        """Subscribe to a shard."""

        def serve() -> MemorySubscription:
            if self._quirks.draw_in_use():
                raise InUseError("another subscription exists")
            return run_synchronously(self._fan_out.subscribe(consumer_arn, shard, start))

        subscription = await self._call("subscribe", serve)
        opened = ProcessSubscription(self, shard, subscription)
        self._listener.subscription_opened(self._process, self._name, shard)
        return opened

    async def close(self) -> None:
        """Do nothing: other processes use the same consumers."""

    async def _call(self, name: str, serve: Callable[[], T]) -> T:
        return await self._network.call(self._process, Dependency.STREAM, name, serve)


class ProcessSubscription(Subscription):
    """One subscription of a process. A partition makes it silent."""

    def __init__(self, fan_out: ProcessFanOut, shard: ShardId, subscription: MemorySubscription) -> None:
        self._fan_out = fan_out
        self._shard = shard
        self._subscription = subscription
        self._is_open = True

    def __aiter__(self) -> ProcessSubscription:
        return self

    async def __anext__(self) -> SubscriptionEvent:
        event = await self._wait_for_event()
        match self._fan_out.draw_fate():
            case EventFate.SILENCE:
                await self._fan_out.sleep_ms(_FOR_EVER_MS)
            case EventFate.CUT:
                raise UnavailableError("the connection was cut in the middle of an event")
            case EventFate.EARLY_END:
                self._subscription.end_early()
                raise StopAsyncIteration
        await self._fan_out.deliver(event)
        return event

    async def close(self) -> None:
        """Close the connection."""
        if self._is_open:
            self._is_open = False
            self._fan_out.note_closed(self._shard)
        await self._subscription.close()

    async def _wait_for_event(self) -> SubscriptionEvent:
        look_after_ms = _LOOK_AFTER_MIN_MS
        while not self._subscription.has_ended():
            if self._fan_out.is_cut_off:
                await self._fan_out.sleep_ms(_FOR_EVER_MS)
            event = self._subscription.poll()
            if event is not None:
                return event
            await self._fan_out.sleep_ms(look_after_ms)
            look_after_ms = min(2 * look_after_ms, _LOOK_AFTER_MAX_MS)
        raise StopAsyncIteration
