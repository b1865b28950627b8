"""The state of one server: the model, the clock, and the subscriptions that wait for records."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from dataclasses import dataclass, field

from leasehold.kinesis_model.service import KinesisModel
from leasehold.kinesis_model.settings import ServiceSettings
from leasehold.local.clock import AdjustableClock
from leasehold.local.fan_out_faults import FanOutFaults


@dataclass(slots=True)
class ShardNotifier:
    """Wakes the subscriptions that wait at the tip of a shard as soon as the shard changes."""

    _waiting: dict[tuple[str, str], set[asyncio.Event]] = field(default_factory=dict)

    async def wait(self, stream_name: str, shard_id: str, timeout_ms: int) -> None:
        """Return when the shard has changed, or after the timeout."""
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
    """The state that is kept between requests."""

    service: KinesisModel
    initial_settings: ServiceSettings = field(init=False)
    clock: AdjustableClock = field(default_factory=AdjustableClock)
    notifier: ShardNotifier = field(default_factory=ShardNotifier)
    faults: FanOutFaults = field(default_factory=FanOutFaults)
    # The number of changes, so that the state file is written only after a change.
    changes: int = 0
    # Set when the server shuts down, so that subscriptions end cleanly.
    is_stopping: bool = False

    def __post_init__(self) -> None:
        self.initial_settings = self.service.settings

    def reset(self) -> None:
        """Remove all streams and planned faults, and restore the initial settings and the system's time. Shard epochs
        stay.
        """
        self.faults.clear()
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
