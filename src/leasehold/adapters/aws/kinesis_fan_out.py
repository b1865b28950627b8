"""Enhanced fan-out of a Kinesis stream: consumers through boto3, subscriptions over our own HTTP.

boto3 reads a subscription on a blocked thread that cannot be woken, and decodes events slowly. So SubscribeToShard is
signed by botocore and sent on the event loop, as `direct_calls` does with GetRecords. The caller retries.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import datetime, timedelta
from typing import Any, Final

import orjson
from botocore.exceptions import BotoCoreError, ClientError, HTTPClientError

from leasehold.adapters.aws.async_http import HttpLimits
from leasehold.adapters.aws.blocking import THREADS_DEFAULT, BlockingCalls
from leasehold.adapters.aws.call_counts import KinesisCalls
from leasehold.adapters.aws.direct_calls import client_error
from leasehold.adapters.aws.error_translation import error_code, translate_error
from leasehold.adapters.aws.event_stream import Message, MessageDecoder
from leasehold.adapters.aws.kinesis_stream import EPOCH, INLINE_DECODING_BYTES_MAX
from leasehold.adapters.aws.request_signing import Operation, open_signer
from leasehold.adapters.aws.streamed_http import StreamedResponse
from leasehold.adapters.aws.streaming_endpoint import StreamingEndpoint, http2_factory
from leasehold.core.model import ShardId
from leasehold.core.records.iterators import IteratorStart
from leasehold.errors import ConfigError, InUseError, LeaseholdError, NotFoundError, UnavailableError
from leasehold.ports import ConsumerDescription, FanOut, Subscription, SubscriptionEvent

SUBSCRIBE: Final = Operation("Kinesis_20131202.SubscribeToShard", "application/x-amz-json-1.1")
_ERROR_BYTES_MAX: Final = 64 * 1024


class KinesisFanOut(FanOut):
    """The consumers of one stream, by name or ARN, through a boto3 client of the caller. Streams may share a client."""

    def __init__(
        self,
        client: Any,
        stream: str,
        *,
        threads: int = THREADS_DEFAULT,
        http2: bool = False,
        calls: KinesisCalls | None = None,
    ) -> None:
        if http2:
            http2_factory()  # a missing extra is reported at the start, not by the first subscription
        self._client = client
        self._http2 = http2
        self._name = stream
        self._stream_arn = stream if stream.startswith("arn:") else None
        self._calls = BlockingCalls("fan-out", threads)
        self._counted = calls or KinesisCalls()
        self._signer = open_signer(client)
        self._endpoints: dict[str, StreamingEndpoint] = {}  # by URL: a TLS context is expensive
        self._open: set[_KinesisSubscription] = set()

    async def register_consumer(self, name: str) -> ConsumerDescription:
        """Register a consumer. It can subscribe once it is ACTIVE."""
        arn = await self._arn()
        response = await self._call(self._client.register_stream_consumer, StreamARN=arn, ConsumerName=name)
        return self._describe(response.get("Consumer"), "register_stream_consumer")

    async def describe_consumer(self, name_or_arn: str) -> ConsumerDescription:
        """Describe a consumer of this stream, by name or ARN."""
        arn = await self._arn()
        if name_or_arn.startswith("arn:"):
            if not name_or_arn.startswith(f"{arn}/consumer/"):
                raise ConfigError(
                    f"{name_or_arn} is not a consumer of stream {arn}: use a consumer of this stream"
                )
            request = {"ConsumerARN": name_or_arn}
        else:
            request = {"StreamARN": arn, "ConsumerName": name_or_arn}
        response = await self._call(self._client.describe_stream_consumer, **request)
        return self._describe(response.get("ConsumerDescription"), "describe_stream_consumer")

    async def list_consumers(self) -> Sequence[ConsumerDescription]:
        """All pages of the consumers of the stream."""
        found: list[ConsumerDescription] = []
        page: dict[str, str] = {}
        while True:
            response = await self._call(
                self._client.list_stream_consumers, StreamARN=await self._arn(), **page
            )
            found += (self._describe(each, "list_stream_consumers") for each in response.get("Consumers", ()))
            if not response.get("NextToken"):
                return found
            page = {"NextToken": response["NextToken"]}

    async def deregister_consumer(self, arn: str) -> None:
        """Delete a consumer. Its subscriptions end."""
        await self._call(self._client.deregister_stream_consumer, ConsumerARN=arn)

    async def require_stream(self) -> None:
        """Raise NotFoundError if the stream does not exist, or is being deleted."""
        if (await self._summary()).get("StreamStatus") == "DELETING":
            raise NotFoundError(f"stream {self._name} is being deleted")

    async def subscribe(self, consumer_arn: str, shard: ShardId, start: IteratorStart) -> Subscription:
        """Subscribe a consumer to a shard. Returns once the first message of the service has arrived."""
        label = f"stream {self._name}, {shard}, subscribe_to_shard"
        body = orjson.dumps(
            {"ConsumerARN": consumer_arn, "ShardId": shard, "StartingPosition": _position_fields(start)}
        )
        with self._counted_errors("subscribe_to_shard", label):
            response = await self._post(consumer_arn, body)
        subscription = _KinesisSubscription(response, self._calls, self._open, label)
        try:
            with self._counted_errors("subscribe_to_shard", label):
                async with asyncio.timeout(self._client.meta.config.read_timeout):
                    await subscription.open()
        except BaseException:  # also a cancellation
            await subscription.close()
            raise
        self._counted.add("subscribe_to_shard")
        return subscription

    async def close(self) -> None:
        """Close our own subscriptions and threads; the client belongs to the caller."""
        for subscription in list(self._open):
            await subscription.close()
        for endpoint in self._endpoints.values():
            endpoint.close()
        self._calls.close()

    async def _post(self, consumer_arn: str, body: bytes) -> StreamedResponse:
        """Send SubscribeToShard. Its endpoint may depend on the account in the ARN."""
        if self._signer is None:
            raise ConfigError(
                f"stream {self._name}: enhanced fan-out does not work through a proxy, with a client certificate or "
                "without verified TLS; read by polling, or add the endpoint of Kinesis to NO_PROXY"
            )
        route = await self._signer.find_route(SUBSCRIBE, {"ConsumerARN": consumer_arn})
        if route.url not in self._endpoints:
            config = self._client.meta.config
            limits = HttpLimits(
                connections_max=1, connect_s=config.connect_timeout, response_s=config.read_timeout
            )
            tls = self._signer.tls_context(route.url)
            self._endpoints[route.url] = StreamingEndpoint(route.url, limits, tls, http2=self._http2)
        return await self._endpoints[route.url].post(self._signer.headers(SUBSCRIBE, route, body), body)

    async def _arn(self) -> str:
        if self._stream_arn is None:
            arn = (await self._summary()).get("StreamARN")
            if not arn:
                raise UnavailableError(
                    f"stream {self._name}, describe_stream_summary: the response lacks the ARN"
                )
            self._stream_arn = str(arn)
        return self._stream_arn

    async def _summary(self) -> Mapping[str, Any]:
        key = "StreamARN" if self._name.startswith("arn:") else "StreamName"
        response = await self._call(self._client.describe_stream_summary, **{key: self._name})
        summary: Mapping[str, Any] = response.get("StreamDescriptionSummary", {})
        return summary

    async def _call(self, call: Callable[..., Any], **request: Any) -> Any:
        with self._counted_errors(call.__name__, f"stream {self._name}, {call.__name__}"):
            answer = await self._calls.run(call, **request)
        self._counted.add(call.__name__)
        return answer

    @contextmanager
    def _counted_errors(self, call: str, label: str) -> Iterator[None]:
        try:
            with _translated_errors(label):
                yield
        except LeaseholdError as error:
            self._counted.add(call, error)
            raise

    def _describe(self, fields: Any, call: str) -> ConsumerDescription:
        try:
            created: datetime = fields["ConsumerCreationTimestamp"]
            return ConsumerDescription(
                fields["ConsumerName"],
                fields["ConsumerARN"],
                fields["ConsumerStatus"],
                (created - EPOCH) // timedelta(milliseconds=1),
            )
        except (KeyError, TypeError) as error:
            raise UnavailableError(
                f"stream {self._name}, {call}: the response lacks the name, ARN, status or creation time"
            ) from error


class _KinesisSubscription(Subscription):
    """One open response."""

    def __init__(
        self,
        response: StreamedResponse,
        calls: BlockingCalls,
        open_subscriptions: set[_KinesisSubscription],
        label: str,
    ) -> None:
        self._response = response
        self._calls = calls
        self._open = open_subscriptions
        self._label = label
        self._decoder = MessageDecoder()
        self._first: Message | None = None  # if it is an event
        self._has_ended = False
        self._has_received = False
        self._open.add(self)

    async def open(self) -> None:
        """Wait until the service has accepted the subscription. Raises OSError or ClientError.

        The first message of Kinesis is an initial response. Some servers begin with an event, or with an exception.
        """
        if self._response.status != 200:
            raise client_error(SUBSCRIBE.name, self._response.status, await self._read_error())
        message = await self._next_message()
        if message is None:
            raise ConnectionError("the subscription ended before its first message")
        if message.headers.get(":event-type") != "initial-response":
            _raise_exception(message)
            self._first = message

    def __aiter__(self) -> _KinesisSubscription:
        return self

    async def __anext__(self) -> SubscriptionEvent:
        with _translated_errors(self._label):
            payload = None if self._has_ended else await self._next_payload()
        if payload is None:
            await self.close()
            raise StopAsyncIteration
        if len(payload) <= INLINE_DECODING_BYTES_MAX:
            event = event_from_payload(payload)
        else:
            event = await self._calls.run(event_from_payload, payload=payload)
        self._has_ended = event.continuation is None
        return event

    def has_received(self) -> bool:
        """Whether bytes have arrived since the last call."""
        received, self._has_received = self._has_received, False
        return received

    async def close(self) -> None:
        """Close the connection at once."""
        self._open.discard(self)
        self._response.close()

    async def _next_payload(self) -> bytes | None:
        """The payload of the next event; None at the end. Skips events of a type that we do not know."""
        while (message := self._first or await self._next_message()) is not None:
            self._first = None
            _raise_exception(message)
            if message.headers.get(":event-type") == "SubscribeToShardEvent":
                return message.payload
        return None

    async def _next_message(self) -> Message | None:
        while (message := self._decoder.next_message()) is None:
            data = await self._response.read()
            if not data:
                self._decoder.finish()
                return None
            self._has_received = True
            self._decoder.feed(data)
        return message

    async def _read_error(self) -> bytes:
        body = b""
        while len(body) < _ERROR_BYTES_MAX and (data := await self._response.read()):
            body += data
        return body


def _raise_exception(message: Message) -> None:
    """Raise the error in a message, as boto3 would if it were the response."""
    headers = message.headers
    match headers.get(":message-type"):
        case "exception":
            code, text = headers.get(":exception-type", "unknown"), _exception_text(message.payload)
        case "error":
            code, text = headers.get(":error-code", "unknown"), headers.get(":error-message", "")
        case _:
            return
    raise ClientError({"Error": {"Code": code, "Message": text}}, SUBSCRIBE.name)


def _exception_text(payload: bytes) -> str:
    try:
        fields = orjson.loads(payload)
        return str(fields.get("message", fields.get("Message", "")))
    except (ValueError, AttributeError):
        return ""


@contextmanager
def _translated_errors(label: str) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise _translate(HTTPClientError(error=str(error) or "timeout"), label) from error
    except (BotoCoreError, ClientError) as error:
        raise _translate(error, label) from error


def _translate(error: BotoCoreError | ClientError, label: str) -> LeaseholdError:
    if isinstance(error, ClientError) and error_code(error) == "ResourceInUseException":
        return InUseError(f"{label}: {error_code(error)}: {error.response['Error'].get('Message', '')}")
    return translate_error(error, label)


def _position_fields(start: IteratorStart) -> Mapping[str, Any]:
    fields: dict[str, Any] = {"Type": start.kind.name}
    if start.sequence_number is not None:
        fields["SequenceNumber"] = start.sequence_number
    if start.timestamp_ms is not None:
        fields["Timestamp"] = start.timestamp_ms / 1000
    return fields


def event_from_payload(payload: bytes) -> SubscriptionEvent:
    """The event in the payload of a message."""
    from leasehold.adapters.aws import kinesis_decoding  # noqa: PLC0415 - it says why

    return kinesis_decoding.event_from_payload(payload)
