"""Operations on consumers: register, describe, list, deregister. `fan_out` serves their subscriptions."""

from __future__ import annotations

from typing import Final

from leasehold.kinesis_model.api_errors import invalid_argument_error
from leasehold.kinesis_model.consumers import Consumer
from leasehold.kinesis_model.listing import require_fresh_token
from leasehold.kinesis_model.tokens import decode_token, encode_token
from leasehold.local.operations.call import Call, Members, Operation

_PAGE_DEFAULT: Final = 100


def register_consumer(call: Call) -> Members:
    consumer = call.service.register_consumer(call.now_ms, call.stream_name, call["ConsumerName"])
    return {"Consumer": _consumer_to_members(call, consumer)}


def describe_consumer(call: Call) -> Members:
    consumer_name, stream_name = _consumer_and_stream(call)
    consumer = call.service.consumer(call.now_ms, stream_name, consumer_name)
    stream_arn = call.service.account.stream_arn(stream_name)
    return {"ConsumerDescription": _consumer_to_members(call, consumer) | {"StreamARN": stream_arn}}


def deregister_consumer(call: Call) -> None:
    consumer_name, stream_name = _consumer_and_stream(call)
    call.service.deregister_consumer(call.now_ms, stream_name, consumer_name)


def list_consumers(call: Call) -> Members:
    stream = call.stream()
    after = _name_from_token(call) if "NextToken" in call.members else ""
    limit = call.get("MaxResults", _PAGE_DEFAULT)
    rest = [consumer for name, consumer in sorted(stream.consumers.items()) if name > after]
    response: Members = {"Consumers": [_consumer_to_members(call, consumer) for consumer in rest[:limit]]}
    if len(rest) > limit:
        response["NextToken"] = encode_token("consumers", call.now_ms, rest[limit - 1].name)
    return response


def _consumer_and_stream(call: Call) -> tuple[str, str]:
    """Return the names of the consumer and its stream, from the consumer's ARN or from stream ARN and name."""
    arn, name, stream_arn = call.get("ConsumerARN"), call.get("ConsumerName"), call.get("StreamARN")
    if arn is not None:
        consumer_name, stream_name = call.service.account.parse_consumer_arn(arn)
        if name not in {None, consumer_name} or stream_arn not in {
            None,
            call.service.account.stream_arn(stream_name),
        }:
            raise invalid_argument_error(
                f"ConsumerARN {arn} does not agree with the given ConsumerName or StreamARN."
            )
        return consumer_name, stream_name
    if name is None or stream_arn is None:
        raise invalid_argument_error(
            "Either ConsumerARN, or both StreamARN and ConsumerName should be provided."
        )
    return name, call.stream_name


def _consumer_to_members(call: Call, consumer: Consumer) -> Members:
    return {
        "ConsumerName": consumer.name,
        "ConsumerARN": consumer.arn,
        "ConsumerStatus": consumer.status(call.now_ms),
        "ConsumerCreationTimestamp": call.encoding.encode_time(consumer.created_ms),
    }


def _name_from_token(call: Call) -> str:
    fields = decode_token("consumers", call["NextToken"])
    if fields is None:
        raise invalid_argument_error(
            "Invalid NextToken: it does not come from ListStreamConsumers of this server."
        )
    issued_ms, name = fields
    require_fresh_token(int(issued_ms or 0), call.now_ms, call.service.settings.list_token_lifetime_ms)
    return str(name)


OPERATIONS: Final[dict[str, Operation]] = {
    "RegisterStreamConsumer": register_consumer,
    "DescribeStreamConsumer": describe_consumer,
    "DeregisterStreamConsumer": deregister_consumer,
    "ListStreamConsumers": list_consumers,
}
