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
from leasehold.core.events import ConsumerFound, FanOutRefused, FanOutResumed, Observer
from leasehold.core.model import ShardId
from leasehold.core.records.iterators import IteratorStart
from leasehold.core.records.subscriptions import (
    CONSUMERS_MAX,
    REGISTER_ATTEMPTS_MAX,
    STATUS_WAIT_MAX_MS,
    RegistrationStep,
    may_subscribe_ms,
    next_call_slot_ms,
    next_registration_step,
    refused_retry_ms,
)
from leasehold.errors import (
    AccessDeniedError,
    ConfigError,
    InUseError,
    LeaseholdError,
    NotFoundError,
    ServiceError,
    ThrottledError,
    UnavailableError,
)
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
        self._retry_ms: int | None = None  # fan-out is refused, and the stream polled; when to try again

    async def prepare(self) -> None:
        """Find or register the consumer at the start of a process. If the service does not respond, or the stream does
        not exist yet, that is done later.

        Raises ConfigError if the settings demand fan-out and the service refuses it.
        """
        try:
            await self._get_arn()
        except _PERHAPS_LATER:
            return

    @property
    def is_refused(self) -> bool:
        """Whether the service refuses fan-out, and it is not time to try again: the stream is polled."""
        return self._retry_ms is not None and self._clock.now_ms() < self._retry_ms

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
        if self._retry_ms is None:
            return await self._subscribe(shard, start)
        if self.is_refused:
            return None
        self._plan_retry()  # first, so that only one reader tries, and the others poll
        try:
            subscription = await self._subscribe(shard, start, is_retry=True)
        except NotFoundError:
            self.forget_arn()
            return None
        except ServiceError:
            return None
        if subscription is not None:
            self._retry_ms = None
            self._observe(FanOutResumed(self._stream))
        return subscription

    async def _subscribe(
        self, shard: ShardId, start: IteratorStart, *, is_retry: bool = False
    ) -> Subscription | None:
        arn = await self._get_arn(is_retry=is_retry)
        if arn is None:
            return None
        now_ms = self._clock.now_ms()
        self._last_call_ms = next_call_slot_ms(self._last_call_ms, now_ms)
        if self._last_call_ms > now_ms:
            await self._clock.sleep_ms(self._last_call_ms - now_ms)
        try:
            return await self._fan_out.subscribe(arn, shard, start)
        except (AccessDeniedError, ConfigError) as error:  # the right is missing, or a proxy is in the way
            if self._settings.retrieval is Retrieval.FAN_OUT:
                raise  # a missing right is requested again, as polling does: somebody may grant it
            self._refuse(error)
            return None

    def forget_arn(self) -> None:
        """The consumer was not found: it was deleted. Before the next subscription, find or register it again."""
        self._arn = None

    async def _get_arn(self, *, is_retry: bool = False) -> str | None:
        async with self._registration:
            if self._arn is None and (is_retry or not self.is_refused):
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
        may_register = self._settings.consumer_arn is None
        until_ms, status = self._clock.now_ms() + STATUS_WAIT_MAX_MS, None
        while self._clock.now_ms() < until_ms:
            found = await self._describe(wanted)
            status = found.status if found else None
            match next_registration_step(status, may_register=may_register):
                case RegistrationStep.USE:
                    assert found is not None
                    self._observe(ConsumerFound(self._stream, found.name, found.arn))
                    return found.arn
                case RegistrationStep.REGISTER:
                    await self._register()
                case RegistrationStep.REFUSE:
                    # A stream that does not exist ends its shards, as with polling.
                    await self._fan_out.require_stream()
                    raise ServiceError(f"stream {self._stream} has no consumer {wanted}; register it")
                case RegistrationStep.WAIT:
                    await self._clock.sleep_ms(_CHECK_STATUS_MS)
        raise UnavailableError(
            f"stream {self._stream}: consumer {wanted} is not ACTIVE after {STATUS_WAIT_MAX_MS // 1000} s, its status "
            f"is {status or 'unknown'}"
        )

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
            # Another member has registered it at the same time, or the stream is being deleted.
            await self._clock.sleep_ms(_CHECK_STATUS_MS)
        except ThrottledError as error:
            if not await self._may_be_full():
                raise  # the calls were too many; later ones succeed
            raise ServiceError(
                f"{error}; if the stream has its limit of consumers, deregister one that is not used"
            ) from error

    async def _may_be_full(self) -> bool:
        """Whether the stream may have its limit of consumers. True if the role may not list them."""
        try:
            return len(await self._fan_out.list_consumers()) >= CONSUMERS_MAX
        except AccessDeniedError:
            return True

    def _refuse(self, error: LeaseholdError) -> None:
        if self._settings.retrieval is Retrieval.FAN_OUT:
            raise ConfigError(
                f"retrieval='fan_out', but consumer {self._name} cannot be used: {error}. Remove the cause, or set "
                "retrieval='auto' to poll the stream instead"
            ) from error
        is_new = self._retry_ms is None
        self._plan_retry()
        if is_new:
            self._observe(FanOutRefused(self._stream, str(error)))

    def _plan_retry(self) -> None:
        self._retry_ms = refused_retry_ms(self._clock.now_ms(), self._rng.random())


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
