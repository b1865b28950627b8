"""One call of an operation."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from leasehold.kinesis_model.service import KinesisModel
from leasehold.kinesis_model.stream import StreamState
from leasehold.local.encodings import Encoding

Members = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Call:
    """A validated request, the time at which it is served, and the encoding of its response."""

    service: KinesisModel
    members: Members
    now_ms: int
    encoding: Encoding

    def get(self, name: str, default: Any = None) -> Any:
        return self.members.get(name, default)

    def __getitem__(self, name: str) -> Any:
        return self.members[name]

    @property
    def stream_name(self) -> str:
        """The name of the stream that the request names by name or ARN."""
        return self.service.account.resolve_stream_name(self.get("StreamName"), self.get("StreamARN"))

    def stream(self) -> StreamState:
        return self.service.stream(self.now_ms, self.stream_name)


Operation = Callable[[Call], Members | None]
