"""A Kinesis client whose requests never leave: each is answered from a list, and kept for the test to look at."""

import json
from collections.abc import Iterator, Mapping
from typing import Any

from botocore.awsrequest import AWSResponse

from tests.servers import aws_client

# An answer: status and body. Text or bytes are sent as they are.
Response = tuple[int, Any]


class CannedKinesis:
    """`client` answers with the given answers, one after the other; `requests` holds (operation, members)."""

    def __init__(self, *answers: Response, **config: Any) -> None:
        self.client = aws_client("kinesis", "http://127.0.0.1:9", **config)
        self.requests: list[tuple[str, Mapping[str, Any]]] = []
        self._answers = iter(answers)
        self.client.meta.events.register("before-send.kinesis.*", self._answer)

    def _answer(self, request: Any, **_: Any) -> AWSResponse:
        operation = request.headers["X-Amz-Target"].decode().partition(".")[2]
        self.requests.append((operation, json.loads(request.body)))
        status, body = next(self._answers)
        content = body if isinstance(body, bytes) else json.dumps(body).encode()
        headers = {"content-type": "application/x-amz-json-1.1", "x-amzn-requestid": "1"}
        return AWSResponse(request.url, status, headers, _Raw(content))


class _Raw:
    def __init__(self, content: bytes) -> None:
        self._content = content

    def stream(self, *_: Any, **__: Any) -> Iterator[bytes]:
        yield self._content
