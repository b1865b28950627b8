"""Names of streams and consumers, and their ARNs in one account and region."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

from leasehold.errors import ConfigError
from leasehold.kinesis_model.api_errors import invalid_argument_error, not_found_error

STREAM_NAME: Final = re.compile(r"[a-zA-Z0-9_.-]{1,128}")
_STREAM_ARN: Final = re.compile(r"arn:aws[^:]*:kinesis:[^:]*:\d{12}:stream/([a-zA-Z0-9_.-]{1,128})")
_CONSUMER_ARN: Final = re.compile(
    r"(?P<stream>arn:aws[^:]*:kinesis:[^:]*:\d{12}:stream/[a-zA-Z0-9_.-]{1,128})/consumer/"
    r"(?P<name>[a-zA-Z0-9_.-]{1,128}):[0-9]+"
)


@dataclass(frozen=True, slots=True)
class Account:
    """The AWS account and region of all streams of a model."""

    id: str = "000000000000"
    region: str = "us-east-1"

    def __post_init__(self) -> None:
        if not re.fullmatch(r"[0-9]{12}", self.id) or not re.fullmatch(r"[a-z0-9-]{1,32}", self.region):
            raise ConfigError(
                f"account {self.id!r} in region {self.region!r}: expected an account of 12 digits and a region such as "
                "us-east-1"
            )

    def stream_arn(self, name: str) -> str:
        return f"arn:aws:kinesis:{self.region}:{self.id}:stream/{name}"

    def consumer_arn(self, stream_name: str, consumer_name: str, created_ms: int) -> str:
        return f"{self.stream_arn(stream_name)}/consumer/{consumer_name}:{created_ms // 1000}"

    def resolve_stream_name(self, name: str | None, arn: str | None) -> str:
        """Return the name of the stream that a request names: by name, by ARN, or by both if they agree.

        >>> Account().resolve_stream_name(None, "arn:aws:kinesis:us-east-1:000000000000:stream/orders")
        'orders'
        """
        if arn is None:
            if name is None:
                raise invalid_argument_error("Either StreamName or StreamARN should be provided.")
            return name
        match = _STREAM_ARN.fullmatch(arn)
        if match is None:
            raise invalid_argument_error(f"StreamARN {arn} is not the ARN of a stream.")
        if name is not None and name != match[1]:
            raise invalid_argument_error(f"StreamName {name} and StreamARN {arn} name two different streams.")
        if arn != self.stream_arn(match[1]):
            raise not_found_error(
                f"Stream {arn} under account {self.id} not found: streams of this server have ARNs such as "
                f"{self.stream_arn('...')}"
            )
        return match[1]

    def parse_consumer_arn(self, arn: str) -> tuple[str, str]:
        """Return the name of the consumer and the name of its stream."""
        match = _CONSUMER_ARN.fullmatch(arn)
        if match is None:
            raise invalid_argument_error(f"ConsumerARN {arn} is not the ARN of a consumer.")
        return match["name"], self.resolve_stream_name(None, match["stream"])
