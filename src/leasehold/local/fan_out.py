"""SubscribeToShard: a long response that sends events as records arrive. A put wakes it; it never polls.

A test can plan faults, which subscriptions take (`fan_out_faults`).
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Final

from leasehold.kinesis_model.api_errors import KinesisApiError, in_use_error
from leasehold.kinesis_model.reading import IteratorType, RecordsPage, StartingPosition
from leasehold.kinesis_model.service import EVENT_BYTES_MAX, Subscription
from leasehold.local import event_stream
from leasehold.local.asgi import Receive, Send, send_chunk, send_response_start
from leasehold.local.encodings import Encoding
from leasehold.local.fan_out_faults import FAULTS_OF_OPEN_SUBSCRIPTIONS, FanOutFault
from leasehold.local.operations import Call
from leasehold.local.operations.call import Members
from leasehold.local.operations.records import children_to_members, encryption_members, records_to_members
from leasehold.local.state import ServerState
from leasehold.tasks import cancel_and_wait

# How often a silent subscription looks whether the server stops. The notifier wakes it earlier.
_SILENCE_MS: Final = 60_000
# How many records the first event of a subscription repeats that begins too early.
_REPEATED_RECORDS: Final = 10


async def subscribe_to_shard(
    state: ServerState, call: Call, headers: list[tuple[bytes, bytes]], receive: Receive, send: Send
) -> None:
    """Send events until the subscription or the shard ends, or the client disconnects."""
    subscription = _start_subscription(state, call)
    await send_response_start(send, 200, [*headers, (b"content-type", b"application/vnd.amazon.eventstream")])
    events = _EventSender(state, subscription, call.encoding, send)
    sending = asyncio.create_task(events.send_all())
    disconnect = asyncio.create_task(_wait_for_disconnect(receive))
    try:
        await asyncio.wait({sending, disconnect}, return_when=asyncio.FIRST_COMPLETED)
    finally:
        await cancel_and_wait(sending, disconnect)


def _start_subscription(state: ServerState, call: Call) -> Subscription:
    position = call["StartingPosition"]
    start = StartingPosition(
        IteratorType(position["Type"]), position.get("SequenceNumber"), position.get("Timestamp")
    )
    _, stream_name = call.service.account.parse_consumer_arn(call["ConsumerARN"])
    if state.faults.take([FanOutFault.IN_USE], stream_name, call["ShardId"]):
        raise in_use_error("A planned fault: as if another subscription were active.")
    subscription = call.service.subscribe(call.now_ms, call["ConsumerARN"], call["ShardId"], start)
    # Wake the subscription that this one replaced, so that it ends.
    state.notifier.notify(subscription.stream_name, [subscription.shard_id])
    return subscription


async def _wait_for_disconnect(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


class _EventSender:
    """Sends the messages of one subscription."""

    def __init__(
        self, state: ServerState, subscription: Subscription, encoding: Encoding, send: Send
    ) -> None:
        self._state = state
        self._subscription = subscription
        self._encoding = encoding
        self._send = send

    async def send_all(self) -> None:
        """Send the initial response, the events, and an exception if the subscription is lost.

        After a fault that cuts the connection, the response has no end: the HTTP server then closes the connection.
        """
        if not self._take_fault(FanOutFault.NO_INITIAL_RESPONSE):
            await self._send_bytes(self._message("initial-response", {}))
        try:
            async with aclosing(_pages(self._state, self._subscription)) as pages:
                async for page in pages:
                    await self._send_bytes(self._event(page))
        except KinesisApiError as error:
            payload = self._encoding.encode({"message": error.message})
            await self._send_bytes(
                event_stream.exception(error.error_type, self._encoding.content_type, payload)
            )
        except _FaultTakenError as taken:
            await self._misbehave(taken)
            if taken.fault is FanOutFault.CUT:
                return
        await send_chunk(self._send, b"", more=False)

    async def _misbehave(self, taken: _FaultTakenError) -> None:
        event = self._event(taken.page)
        match taken.fault:
            case FanOutFault.SILENCE:
                while not self._state.is_stopping:
                    await self._state.notifier.wait(
                        self._subscription.stream_name, self._subscription.shard_id, _SILENCE_MS
                    )
            case FanOutFault.CUT:
                await self._send_bytes(event[: len(event) // 2])
            case FanOutFault.GARBAGE:
                await self._send_bytes(bytes(range(256)))
            case FanOutFault.WRONG_CRC:
                await self._send_bytes(event[:-1] + bytes([event[-1] ^ 1]))
            case FanOutFault.EARLY_END:
                self._state.service.end_subscription(self._state.clock.now_ms(), self._subscription)

    async def _send_bytes(self, message: bytes) -> None:
        await send_chunk(self._send, message, more=True)

    def _event(self, page: RecordsPage) -> bytes:
        encryption = encryption_members(self._state.service.streams[self._subscription.stream_name])
        return self._message("SubscribeToShardEvent", _event_to_members(page, encryption, self._encoding))

    def _message(self, event_type: str, members: Members) -> bytes:
        return event_stream.event(event_type, self._encoding.content_type, self._encoding.encode(members))

    def _take_fault(self, *kinds: FanOutFault) -> FanOutFault | None:
        return _take_fault(self._state, self._subscription, *kinds)


class _FaultTakenError(Exception):
    """A planned fault takes the place of the next event."""

    def __init__(self, fault: FanOutFault, page: RecordsPage) -> None:
        super().__init__(fault)
        self.fault = fault
        self.page = page


async def _pages(state: ServerState, subscription: Subscription) -> AsyncGenerator[RecordsPage, None]:
    """Yield records as soon as they arrive, and an empty page as a heartbeat. The last page names the children."""
    service, next_number = state.service, subscription.next_number
    heartbeat_sent_ms = state.clock.now_ms()
    if _take_fault(state, subscription, FanOutFault.OUT_OF_ORDER):
        yield _earlier_page(state, subscription)
    while (now_ms := state.clock.now_ms()) < subscription.ends_ms and not state.is_stopping:
        if not service.is_current_subscription(now_ms, subscription):
            # Raises if the consumer or the stream is gone.
            service.consumer(now_ms, subscription.stream_name, subscription.consumer_name)
            raise in_use_error(f"Another subscription replaced this one on shard {subscription.shard_id}.")
        page = service.read_subscription(now_ms, subscription, next_number)
        if fault := _take_fault(state, subscription, *FAULTS_OF_OPEN_SUBSCRIPTIONS):
            raise _FaultTakenError(fault, page)
        if page.next_number is None:
            yield page
            break
        if page.records or now_ms - heartbeat_sent_ms >= service.settings.heartbeat_ms:
            yield page
            next_number, heartbeat_sent_ms = page.next_number, now_ms
        else:
            wait_ms = min(heartbeat_sent_ms + service.settings.heartbeat_ms, subscription.ends_ms) - now_ms
            await state.notifier.wait(subscription.stream_name, subscription.shard_id, wait_ms)
    service.end_subscription(state.clock.now_ms(), subscription)


def _take_fault(state: ServerState, subscription: Subscription, *kinds: FanOutFault) -> FanOutFault | None:
    return state.faults.take(kinds, subscription.stream_name, subscription.shard_id)


def _earlier_page(state: ServerState, subscription: Subscription) -> RecordsPage:
    """The last records before the starting position, as if the subscription had begun too early."""
    stream = state.service.stream(state.clock.now_ms(), subscription.stream_name)
    shard = stream.shard(subscription.shard_id)
    end = shard.log.first_index_from_number(subscription.next_number)
    begin = max(shard.log.first_index_from_number(0), end - _REPEATED_RECORDS)
    records = shard.log.page(begin, records_max=end - begin, bytes_max=EVENT_BYTES_MAX)
    following = records[-1].number + 1 if records else subscription.next_number
    return RecordsPage(records, following, max(following - 1, shard.start_number), 0)


def _event_to_members(page: RecordsPage, encryption: Members, encoding: Encoding) -> Members:
    members: Members = {
        "Records": records_to_members(page.records, encryption, encoding),
        "MillisBehindLatest": page.millis_behind_latest,
    }
    if page.next_number is None:
        return members | {"ChildShards": children_to_members(page.children)}
    return members | {"ContinuationSequenceNumber": str(page.continuation_number)}
