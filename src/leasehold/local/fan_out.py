"""SubscribeToShard: a long response that sends events as records arrive. A put wakes it; it never polls."""

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
from leasehold.tasks import cancel_and_wait


async def subscribe_to_shard(
    state: ServerState, call: Call, headers: list[tuple[bytes, bytes]], receive: Receive, send: Send
) -> None:
    """Send events until the subscription or the shard ends, or the client disconnects."""
    subscription = _start_subscription(state, call)
    await send_response_start(send, 200, [*headers, (b"content-type", b"application/vnd.amazon.eventstream")])
    sending = asyncio.create_task(_send_events(state, subscription, call.encoding, send))
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
    subscription = call.service.subscribe(call.now_ms, call["ConsumerARN"], call["ShardId"], start)
    # Wake the subscription that this one replaced, so that it ends.
    state.notifier.notify(subscription.stream_name, [subscription.shard_id])
    return subscription


async def _wait_for_disconnect(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


async def _send_events(
    state: ServerState, subscription: Subscription, encoding: Encoding, send: Send
) -> None:
    """Send the initial response, the events, and an exception if the subscription is lost."""
    content_type = encoding.content_type
    await send_chunk(
        send, event_stream.event("initial-response", content_type, encoding.encode({})), more=True
    )
    try:
        async for page in _pages(state, subscription):
            encryption = encryption_members(state.service.streams[subscription.stream_name])
            payload = encoding.encode(_event_to_members(page, encryption, encoding))
            await send_chunk(
                send, event_stream.event("SubscribeToShardEvent", content_type, payload), more=True
            )
    except KinesisApiError as error:
        payload = encoding.encode({"message": error.message})
        await send_chunk(send, event_stream.exception(error.error_type, content_type, payload), more=True)
    await send_chunk(send, b"", more=False)


async def _pages(state: ServerState, subscription: Subscription) -> AsyncIterator[RecordsPage]:
    """Yield records as soon as they arrive, and an empty page as a heartbeat. The last page names the children."""
    service, next_number = state.service, subscription.next_number
    heartbeat_sent_ms = state.clock.now_ms()
    while (now_ms := state.clock.now_ms()) < subscription.ends_ms and not state.is_stopping:
        if not service.is_current_subscription(now_ms, subscription):
            # Raises if the consumer or the stream is gone.
            service.consumer(now_ms, subscription.stream_name, subscription.consumer_name)
            raise in_use_error(f"Another subscription replaced this one on shard {subscription.shard_id}.")
        page = service.read_subscription(now_ms, subscription, next_number)
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


def _event_to_members(page: RecordsPage, encryption: Members, encoding: Encoding) -> Members:
    members: Members = {
        "Records": records_to_members(page.records, encryption, encoding),
        "MillisBehindLatest": page.millis_behind_latest,
    }
    if page.next_number is None:
        return members | {"ChildShards": children_to_members(page.children)}
    return members | {"ContinuationSequenceNumber": str(page.continuation_number)}
