"""SubscribeToShard: one long answer of events, pushed as records arrive. Woken by puts, never by polling."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

from leasehold.kinesis_model.api_errors import KinesisApiError, in_use_error
from leasehold.kinesis_model.reading import IteratorType, RecordsPage, StartingPosition
from leasehold.kinesis_model.service import Subscription
from leasehold.local import event_stream
from leasehold.local.asgi import Receive, Send, send_chunk, send_response_start
from leasehold.local.encodings import Encoding
from leasehold.local.operations import Call
from leasehold.local.operations.call import Members
from leasehold.local.operations.records import children_to_members, encryption_members, records_to_members
from leasehold.local.state import ServerState


async def subscribe_to_shard(
    state: ServerState, call: Call, headers: list[tuple[bytes, bytes]], receive: Receive, send: Send
) -> None:
    """Push events until the subscription ends, the shard ends, someone takes over, or the client hangs up."""
    subscription = _begin(state, call)
    await send_response_start(send, 200, [*headers, (b"content-type", b"application/vnd.amazon.eventstream")])
    pushing = asyncio.create_task(_push(state, subscription, call.wire, send))
    hanging_up = asyncio.create_task(_hung_up(receive))
    try:
        await asyncio.wait({pushing, hanging_up}, return_when=asyncio.FIRST_COMPLETED)
    finally:
        hanging_up.cancel()
        pushing.cancel()
        await asyncio.wait({pushing, hanging_up})


def _begin(state: ServerState, call: Call) -> Subscription:
    position = call["StartingPosition"]
    start = StartingPosition(
        IteratorType(position["Type"]), position.get("SequenceNumber"), position.get("Timestamp")
    )
    subscription = call.service.subscribe(call.now_ms, call["ConsumerARN"], call["ShardId"], start)
    # Whoever held the subscription before shall notice that it is lost.
    state.notifier.notify(subscription.stream_name, [subscription.shard_id])
    return subscription


async def _hung_up(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


async def _push(state: ServerState, subscription: Subscription, wire: Encoding, send: Send) -> None:
    """Frames: the initial response, the events, and an exception if the subscription is lost."""
    content_type = wire.content_type
    await send_chunk(send, event_stream.event("initial-response", content_type, wire.encode({})), more=True)
    try:
        async for page in _pages(state, subscription):
            encryption = encryption_members(state.service.streams[subscription.stream_name])
            payload = wire.encode(_event_to_members(page, encryption, wire))
            await send_chunk(
                send, event_stream.event("SubscribeToShardEvent", content_type, payload), more=True
            )
    except KinesisApiError as refused:
        payload = wire.encode({"message": refused.message})
        await send_chunk(send, event_stream.exception(refused.error_type, content_type, payload), more=True)
    await send_chunk(send, b"", more=False)


async def _pages(state: ServerState, subscription: Subscription) -> AsyncIterator[RecordsPage]:
    """Records as soon as they are there; an empty page as a heartbeat; the last one names the children."""
    service, next_number = state.service, subscription.next_number
    beat_ms = state.clock.now_ms()
    while (now_ms := state.clock.now_ms()) < subscription.ends_ms and not state.is_stopping:
        if not service.is_current_subscription(now_ms, subscription):
            raise in_use_error(
                f"Another subscription took over shard {subscription.shard_id}, or its consumer is gone."
            )
        page = service.read_subscription(now_ms, subscription, next_number)
        if page.next_number is None:
            yield page
            break
        if page.records or now_ms - beat_ms >= service.settings.heartbeat_ms:
            yield page
            next_number, beat_ms = page.next_number, now_ms
        else:
            wait_ms = min(beat_ms + service.settings.heartbeat_ms, subscription.ends_ms) - now_ms
            await state.notifier.wait(subscription.stream_name, subscription.shard_id, wait_ms)
    service.end_subscription(state.clock.now_ms(), subscription)


def _event_to_members(page: RecordsPage, encryption: Members, wire: Encoding) -> Members:
    members: Members = {
        "Records": records_to_members(page.records, encryption, wire),
        "MillisBehindLatest": page.millis_behind_latest,
    }
    if page.next_number is None:
        return members | {"ChildShards": children_to_members(page.children)}
    return members | {"ContinuationSequenceNumber": str(page.continuation_number)}
