"""Monitors the lease table during a run: checkpoints never move backwards, and the end of a shard is final."""

import asyncio
import threading
from dataclasses import dataclass, field

from leasehold.core.model import LeaseKey
from leasehold.core.position import Position
from leasehold.errors import LeaseholdError
from leasehold.fleet.table.lease_table import LeaseTable
from tests.contract.lease_stores import TableLocation

READ_EVERY_S = 0.2


@dataclass
class CheckpointMonitor:
    """Reads all leases periodically, on a thread of its own."""

    location: TableLocation
    every_s: float = READ_EVERY_S
    problems: list[str] = field(default_factory=list)
    reads: int = 0
    ended: set[LeaseKey] = field(default_factory=set)
    _last: dict[LeaseKey, Position] = field(default_factory=dict)
    _stop: threading.Event = field(default_factory=threading.Event)

    def run(self) -> None:
        """Read until `stop` is called."""
        asyncio.run(self._monitor())

    def stop(self) -> None:
        """Make `run` return."""
        self._stop.set()

    async def _monitor(self) -> None:
        table = LeaseTable(self.location.open())
        while not self._stop.is_set():
            await asyncio.sleep(self.every_s)
            # Each lease with a consistent read, because a scan may return an older checkpoint.
            try:
                keys = {lease.key for lease in (await table.list()).leases} | self._last.keys()
                leases = await asyncio.gather(*(table.get(key) for key in keys))
            except LeaseholdError:
                continue  # a busy server; the next read shows the same
            self.reads += 1
            for lease in leases:
                if lease is not None:
                    self._check(lease.key, lease.checkpoint)
        await table.close()

    def _check(self, key: LeaseKey, checkpoint: Position) -> None:
        before = self._last.get(key, checkpoint)
        if checkpoint < before:
            self.problems.append(f"the checkpoint of {key} moved backwards from {before} to {checkpoint}")
        if checkpoint.is_shard_end:
            self.ended.add(key)
        self._last[key] = checkpoint
