"""The registered consumer of one stream, for all readers of a process: it is found or registered on first need.

All members of an application use the same consumer, named like the application, as in the Java KCL. It is never
deregistered by a member, because others may use it.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Final

from leasehold.config.settings import FanOutSettings, Retrieval
from leasehold.core.events import ConsumerFound, FanOutRefused, Observer
from leasehold.core.model import ShardId
from leasehold.core.records.iterators import IteratorStart
from leasehold.core.records.subscriptions import (
    CONSUMERS_MAX,
    REGISTER_ATTEMPTS_MAX,
    RegistrationStep,
    may_subscribe_ms,
    next_call_slot_ms,
    next_registration_step,
)
from leasehold.errors import ConfigError, InUseError, NotFoundError, ServiceError, ThrottledError
from leasehold.ports import Clock, ConsumerDescription, FanOut, Subscription
from leasehold.tasks import TRANSIENT_ERRORS, all_of, retry

_CHECK_STATUS_MS: Final = 1_000
_PERHAPS_LATER: Final[tuple[type[Exception], ...]] = (*TRANSIENT_ERRORS, NotFoundError)


@dataclass(slots=True)
class ShardSlot:
    """At most one subscription of this process to one shard. `subscribed_ms` is when the last one began."""

    lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    subscribed_ms: int | None = None


class StreamConsumer:
    """The consumer with which this process subscribes to the shards of one stream."""

    def __init__(
        self,
        fan_out: FanOut,
        settings: FanOutSettings,
        *,
        stream: str,
        application: str,
        clock: Clock,
        rng: random.Random,
        observe: Observer,
    ) -> None:
        self._fan_out = fan_out
        self._settings = settings
        self._stream = stream
        self._name = settings.consumer_name or application
        self._clock = clock
        self._rng = rng
        self._observe = observe
        self._registration = asyncio.Lock()
        self._arn: str | None = None
        self._slots: dict[ShardId, ShardSlot] = {}
        self._last_call_ms: int | None = None
        self.is_refused = False  # the stream is polled instead

    async def prepare(self) -> None:
        """Find or register the consumer at the start of a process. If the service does not respond, or the stream does
        not exist yet, that is done later.

        Raises ConfigError if the settings demand fan-out and the service refuses it.
        """
        try:
            await self._get_arn()
        except _PERHAPS_LATER:
            return

    @asynccontextmanager
    async def slot(self, shard: ShardId) -> AsyncIterator[ShardSlot]:
        """Wait until no other reader of this process is subscribed to the shard."""
        slot = self._slots.setdefault(shard, ShardSlot())
        async with slot.lock:
            yield slot

    def may_subscribe_now(self, shard: ShardId) -> bool:
        """Whether no other reader of this process is subscribed to the shard, or was a moment ago."""
        slot, now_ms = self._slots.get(shard), self._clock.now_ms()
        return slot is None or (
            not slot.lock.locked() and may_subscribe_ms(slot.subscribed_ms, now_ms) <= now_ms
        )

    async def subscribe(self, shard: ShardId, start: IteratorStart) -> Subscription | None:
        """Subscribe to a shard, at the pace of the process. None if the service refuses fan-out: poll instead.

        Raises the errors of `FanOut.subscribe`, and ConfigError if polling is not allowed.
        """
        arn = await self._get_arn()
        if arn is None:
            return None
        now_ms = self._clock.now_ms()
        self._last_call_ms = next_call_slot_ms(self._last_call_ms, now_ms)
        if self._last_call_ms > now_ms:
            await self._clock.sleep_ms(self._last_call_ms - now_ms)
        return await self._fan_out.subscribe(arn, shard, start)

    def forget_arn(self) -> None:
        """The consumer was not found: it was deleted. Before the next subscription, find or register it again."""
        self._arn = None

    async def _get_arn(self) -> str | None:
        async with self._registration:
            if self._arn is None and not self.is_refused:
                try:
                    self._arn = await self._find_or_register()
                except _PERHAPS_LATER:
                    raise  # the service may respond later; a stream that does not exist ends its shards
                except ServiceError as error:
                    self._refuse(error)
            return self._arn

    async def _find_or_register(self) -> str:
        """Return the ARN of the consumer once it is ACTIVE."""
        wanted = self._settings.consumer_arn or self._name
        while True:
            found = await self._describe(wanted)
            may_register = self._settings.consumer_arn is None
            match next_registration_step(found.status if found else None, may_register=may_register):
                case RegistrationStep.USE:
                    assert found is not None
                    self._observe(ConsumerFound(self._stream, found.name, found.arn))
                    return found.arn
                case RegistrationStep.REGISTER:
                    await self._register()
                case RegistrationStep.REFUSE:
                    raise ServiceError(f"stream {self._stream} has no consumer {wanted}; register it")
                case RegistrationStep.WAIT:
                    await self._clock.sleep_ms(_CHECK_STATUS_MS)

    async def _describe(self, wanted: str) -> ConsumerDescription | None:
        try:
            return await self._fan_out.describe_consumer(wanted)
        except NotFoundError:
            return None

    async def _register(self) -> None:
        try:
            await retry(
                lambda: self._fan_out.register_consumer(self._name),
                clock=self._clock,
                rng=self._rng,
                attempts_max=REGISTER_ATTEMPTS_MAX,
            )
        except InUseError:
            return  # another member has registered it at the same time
        except ThrottledError as error:
            if len(await self._fan_out.list_consumers()) < CONSUMERS_MAX:
                raise  # the calls were too many; later ones succeed
            raise ServiceError(
                f"{error}; if the stream has its limit of consumers, deregister one that is not used"
            ) from error

    def _refuse(self, error: ServiceError) -> None:
        if self._settings.retrieval is Retrieval.FAN_OUT:
            raise ConfigError(
                f"retrieval='fan_out', but consumer {self._name} cannot be used: {error}. Remove the cause, or set "
                "retrieval='auto' to poll the stream instead"
            ) from error
        self.is_refused = True
        self._observe(FanOutRefused(self._stream, str(error)))


class StreamConsumers:
    """The consumers of all streams of a process. `open_fan_out` is called once for each stream."""

    def __init__(
        self,
        open_fan_out: Callable[[str], FanOut],
        settings: FanOutSettings,
        *,
        application: str,
        clock: Clock,
        rng: random.Random,
        observe: Observer,
    ) -> None:
        self._open_fan_out = open_fan_out
        self._settings = settings
        self._application = application
        self._clock = clock
        self._rng = rng
        self._observe = observe
        self._consumers: dict[str, StreamConsumer] = {}

    def of(self, stream: str) -> StreamConsumer:
        """The consumer of a stream."""
        if stream not in self._consumers:
            self._consumers[stream] = StreamConsumer(
                self._open_fan_out(stream),
                self._settings,
                stream=stream,
                application=self._application,
                clock=self._clock,
                rng=self._rng,
                observe=self._observe,
            )
        return self._consumers[stream]

    async def prepare(self, streams: Iterable[str]) -> None:
        """Find or register the consumers of these streams, at the start of a process."""
        await all_of(*(self.of(stream).prepare() for stream in streams))
