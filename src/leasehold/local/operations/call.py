"""One call as a handler sees it."""

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
    """A checked request, the time at which it is served, and the encoding of its answer."""

    service: KinesisModel
    members: Members
    now_ms: int
    wire: Encoding

    def get(self, name: str, default: Any = None) -> Any:
        return self.members.get(name, default)

    def __getitem__(self, name: str) -> Any:
        return self.members[name]

    @property
    def stream_name(self) -> str:
        """The stream that is meant, by name or by ARN."""
        return self.service.account.resolve_stream_name(self.get("StreamName"), self.get("StreamARN"))

    def stream(self) -> StreamState:
        return self.service.stream(self.now_ms, self.stream_name)


Operation = Callable[[Call], Members | None]
