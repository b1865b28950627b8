"""Watches the lease table from the side: checkpoints never go back, and the end of a shard is final."""

import asyncio
import threading
from dataclasses import dataclass, field

from leasehold.core.model import LeaseKey
from leasehold.core.position import Position
from leasehold.errors import LeaseholdError
from leasehold.fleet.table.lease_table import LeaseTable
from tests.contract.lease_stores import TableLocation

LOOK_EVERY_S = 0.2


@dataclass
class CheckpointMonitor:
    """Looks at all leases again and again, in a thread of its own."""

    place: TableLocation
    every_s: float = LOOK_EVERY_S
    problems: list[str] = field(default_factory=list)
    looks: int = 0
    ended: set[LeaseKey] = field(default_factory=set)
    _last: dict[LeaseKey, Position] = field(default_factory=dict)
    _stop: threading.Event = field(default_factory=threading.Event)

    def run(self) -> None:
        """Look until told to stop."""
        asyncio.run(self._watch())

    def stop(self) -> None:
        """Make `run` return."""
        self._stop.set()

    async def _watch(self) -> None:
        table = LeaseTable(self.place.open())
        while not self._stop.is_set():
            await asyncio.sleep(self.every_s)
            # One by one and consistently: a scan may be behind, and going back in a scan proves nothing.
            try:
                keys = {lease.key for lease in (await table.list()).leases} | self._last.keys()
                leases = await asyncio.gather(*(table.get(key) for key in keys))
            except LeaseholdError:
                continue  # a busy server; the next look tells as much
            self.looks += 1
            for lease in leases:
                if lease is not None:
                    self._note(lease.key, lease.checkpoint)
        await table.close()

    def _note(self, key: LeaseKey, checkpoint: Position) -> None:
        before = self._last.get(key, checkpoint)
        if checkpoint < before:
            self.problems.append(f"the checkpoint of {key} went back from {before} to {checkpoint}")
        if checkpoint.is_shard_end:
            self.ended.add(key)
        self._last[key] = checkpoint
