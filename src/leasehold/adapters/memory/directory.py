"""The streams of an account in memory, on the same model as the local server."""

from __future__ import annotations

from collections.abc import Mapping

from leasehold.adapters.memory.stream import MemoryStream
from leasehold.core.model import StreamIdentifier, stream_identifier
from leasehold.kinesis_model.service import KinesisModel
from leasehold.ports import Clock, Stream, StreamDirectory, StreamFilter


class MemoryDirectory(StreamDirectory):
    """The streams of a `KinesisModel`."""

    def __init__(self, service: KinesisModel, clock: Clock) -> None:
        self._service = service
        self._clock = clock

    async def list_streams(self, which: StreamFilter) -> Mapping[str, StreamIdentifier]:
        """All streams that match."""
        streams = [self._service.streams[name] for name in self._service.stream_names(self._clock.wall_ms())]
        return {
            each.name: stream_identifier(self._service.account.id, each.name, each.created_ms // 1000)
            for each in streams
            if each.name.startswith(which.prefix) and which.matches_tags(each.config.tags)
        }

    def open_stream(self, name: str, identifier: StreamIdentifier | None = None) -> Stream:  # noqa: ARG002
        """Open a stream by its name."""
        return MemoryStream(self._service, name, self._clock)

    async def close(self) -> None:
        """Nothing to close."""
