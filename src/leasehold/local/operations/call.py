"""One call as a handler sees it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from leasehold.core.stream_model.service import StreamService
from leasehold.core.stream_model.stream import Stream
from leasehold.local.wire import Wire

Members = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Call:
    """A checked request, the time at which it is served, and the encoding of its answer."""

    service: StreamService
    members: Members
    now_ms: int
    wire: Wire

    def get(self, name: str, default: Any = None) -> Any:
        return self.members.get(name, default)

    def __getitem__(self, name: str) -> Any:
        return self.members[name]

    @property
    def stream_name(self) -> str:
        """The stream that is meant, by name or by ARN."""
        return self.service.account.stream_name(self.get("StreamName"), self.get("StreamARN"))

    def stream(self) -> Stream:
        return self.service.stream(self.now_ms, self.stream_name)


Handler = Callable[[Call], Members | None]
