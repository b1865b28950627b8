"""A Kinesis client that sends nothing: it responses each request from a list and keeps the requests for the test."""

import json
from collections.abc import Iterator, Mapping
from typing import Any

from botocore.awsrequest import AWSResponse

from tests.servers import aws_client

# A response: status and body. Bytes are sent unchanged, other values as JSON.
Response = tuple[int, Any]


class CannedKinesis:
    """`client` returns the given responses one after the other; `requests` holds (operation, fields)."""

    def __init__(self, *responses: Response, **config: Any) -> None:
        self.client = aws_client("kinesis", "http://127.0.0.1:9", **config)
        self.requests: list[tuple[str, Mapping[str, Any]]] = []
        self._responses = iter(responses)
        self.client.meta.events.register("before-send.kinesis.*", self._respond)

    def _respond(self, request: Any, **_: Any) -> AWSResponse:
        operation = request.headers["X-Amz-Target"].decode().partition(".")[2]
        self.requests.append((operation, json.loads(request.body)))
        status, body = next(self._responses)
        content = body if isinstance(body, bytes) else json.dumps(body).encode()
        headers = {"content-type": "application/x-amz-json-1.1", "x-amzn-requestid": "1"}
        return AWSResponse(request.url, status, headers, _Raw(content))


class _Raw:
    def __init__(self, content: bytes) -> None:
        self._content = content

    def stream(self, *_: Any, **__: Any) -> Iterator[bytes]:
        yield self._content
