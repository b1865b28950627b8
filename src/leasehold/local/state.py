"""What one server holds: the streams, the clock, and who waits for news of a shard."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from dataclasses import dataclass, field

from leasehold.kinesis_model.service import KinesisModel
from leasehold.kinesis_model.settings import ServiceSettings
from leasehold.local.clock import AdjustableClock


@dataclass(slots=True)
class ShardNotifier:
    """Wakes those who wait at the tip of a shard, as soon as something happens to it."""

    _waiting: dict[tuple[str, str], set[asyncio.Event]] = field(default_factory=dict)

    async def wait(self, stream_name: str, shard_id: str, timeout_ms: int) -> None:
        """Return when something happened to the shard, or when the time is over."""
        event = asyncio.Event()
        waiting = self._waiting.setdefault((stream_name, shard_id), set())
        waiting.add(event)
        try:
            await asyncio.wait_for(event.wait(), timeout_ms / 1000)
        except TimeoutError:
            pass
        finally:
            waiting.discard(event)
            if not waiting:
                self._waiting.pop((stream_name, shard_id), None)

    def notify(self, stream_name: str, shard_ids: Iterable[str]) -> None:
        for shard_id in shard_ids:
            for event in self._waiting.get((stream_name, shard_id), ()):
                event.set()

    def notify_all(self) -> None:
        for waiting in self._waiting.values():
            for event in waiting:
                event.set()


@dataclass(slots=True)
class ServerState:
    """Everything that outlives a request."""

    service: KinesisModel
    initial_settings: ServiceSettings = field(init=False)
    clock: AdjustableClock = field(default_factory=AdjustableClock)
    notifier: ShardNotifier = field(default_factory=ShardNotifier)
    # Counts what changed, so that the state file is written only when there is something to write.
    changes: int = 0
    # Set when the server shuts down, so that subscriptions come to a proper end.
    is_stopping: bool = False

    def __post_init__(self) -> None:
        self.initial_settings = self.service.settings

    def reset(self) -> None:
        """Back to no streams, the first settings and the system's time; numbers go on rising."""
        self.service.streams.clear()
        self.service.settings = self.initial_settings
        self.clock.offset_ms = 0

    def stop(self) -> None:
        self.is_stopping = True
        self.notifier.notify_all()

    def on_records_written(self, stream_name: str, shard_ids: Iterable[str]) -> None:
        self.changes += 1
        self.notifier.notify(stream_name, shard_ids)

    def on_change(self) -> None:
        self.changes += 1
        self.notifier.notify_all()
