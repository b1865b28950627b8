"""The services that simulated processes use: a stream, a lease table, a sink and objects, behind one network."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import Final

from leasehold.adapters.memory.directory import MemoryDirectory
from leasehold.adapters.memory.stream import MemoryFanOut, MemoryStream
from leasehold.core.leases.lease_row import is_lease_row
from leasehold.core.model import Lease, LeaseKey
from leasehold.core.shards.shard_graph import unfinished_parents
from leasehold.kinesis_model.service import KinesisModel
from leasehold.kinesis_model.settings import ServiceSettings
from leasehold.simulation.environment.fan_out import FanOutQuirks, ProcessFanOut, ReadListener
from leasehold.simulation.environment.network import Network, NetworkConditions
from leasehold.simulation.environment.objects import ProcessObjects, SimulatedObjects
from leasehold.simulation.environment.ownership import RowReader
from leasehold.simulation.environment.process import ProcessClock, SimulatedLoop, SimulatedProcess
from leasehold.simulation.environment.sink import Sink
from leasehold.simulation.environment.stream import ProcessDirectory, ProcessStream, StreamQuirks
from leasehold.simulation.environment.streams import STREAM, SimulatedStreams, StreamPlan
from leasehold.simulation.environment.table import ProcessRows, SimulatedTable

APPLICATION: Final = "billing"


class SimulatedServices:
    """All services of one run, with their true state. Create it outside of every process."""

    def __init__(
        self,
        loop: SimulatedLoop,
        *,
        shards: int,
        is_two_phase: bool,
        streams: StreamPlan,
        rng_for: Callable[[str], random.Random],
    ) -> None:
        self.clock = ProcessClock(loop)
        # The purposes are part of what a seed means: another text would change every run.
        self.network = Network(loop, NetworkConditions(rng_for("weather")))
        self.table = SimulatedTable(self.clock.now_ms, rng_for("scans"))
        self.quirks = StreamQuirks(rng_for("oddities"))
        self.fan_out_quirks = FanOutQuirks(rng_for("subscriptions"), chances={})
        self.sink = Sink(is_two_phase=is_two_phase)
        self.objects = SimulatedObjects(self.clock.now_ms, rng_for("objects"))
        ends_with_records = rng_for("shard ends").random() < 0.5
        lifetime_ms = rng_for("subscription lifetimes").choice((15_000, 60_000, 300_000))
        self.kinesis = KinesisModel(
            settings=ServiceSettings(
                shard_end_with_last_records=ends_with_records, subscription_lifetime_ms=lifetime_ms
            )
        )
        self.streams = SimulatedStreams(
            self.kinesis, self.clock, streams, shards=shards, rng=rng_for("stream lists")
        )
        self._row_reader = RowReader()

    def rows_for(self, process: SimulatedProcess) -> ProcessRows:
        """Return the lease table as a process reaches it."""
        return ProcessRows(self.table, self.network, process)

    def objects_for(self, process: SimulatedProcess) -> ProcessObjects:
        """Return the object store as a process reaches it."""
        return ProcessObjects(self.objects, self.network, process)

    def stream_for(
        self, process: SimulatedProcess, listener: ReadListener, name: str = STREAM
    ) -> ProcessStream:
        """Return a stream as a process reaches it. `listener` gets every page that the process reads."""
        stream = MemoryStream(self.kinesis, name, self.clock)
        return ProcessStream(
            stream,
            name=name,
            network=self.network,
            process=process,
            quirks=self.quirks,
            listener=listener,
        )

    def directory_for(self, process: SimulatedProcess, listener: ReadListener) -> ProcessDirectory:
        """Return the list of streams as a process reaches it."""
        directory = MemoryDirectory(self.kinesis, self.clock)
        return ProcessDirectory(
            directory, self.network, process, lambda name: self.stream_for(process, listener, name)
        )

    def fan_out_for(
        self, process: SimulatedProcess, listener: ReadListener, name: str = STREAM
    ) -> ProcessFanOut:
        """Return enhanced fan-out as a process reaches it. `listener` gets every event that the process reads."""
        fan_out = MemoryFanOut(self.kinesis, name, self.clock)
        return ProcessFanOut(
            fan_out,
            name=name,
            network=self.network,
            process=process,
            quirks=self.fan_out_quirks,
            listener=listener,
        )

    def leases(self) -> Sequence[Lease]:
        """Return every lease in the table that can be parsed."""
        leases = (self._row_reader.lease(row) for row in self.table.rows())
        return [lease for lease in leases if lease is not None]

    def has_malformed_leases(self) -> bool:
        """Return whether the table has a lease row that cannot be parsed."""
        return any(is_lease_row(row) and self._row_reader.lease(row) is None for row in self.table.rows())

    def active_leases(self) -> Sequence[Lease]:
        """Return the leases whose shards can be read now: not finished, all parents finished, stream followed."""
        followed = self.streams.followed_ids
        by_key: dict[LeaseKey, Lease] = {
            lease.key: lease for lease in self.leases() if lease.stream in followed
        }
        return [
            lease
            for lease in by_key.values()
            if not lease.checkpoint.is_shard_end and not unfinished_parents(lease, by_key)
        ]

    def has_shards_to_end(self) -> bool:
        """Return whether a shard is closed and not read to its end. Then its children will get owners."""
        return any(self._is_closed(lease.key) for lease in self.active_leases())

    def _is_closed(self, key: LeaseKey) -> bool:
        shard = self.streams.find_shard(key)
        return shard is not None and shard.closed_ms is not None

    def clear_faults(self) -> None:
        """End all faults of the network, the stream, the table and the object store."""
        self.network.conditions.clear_faults()
        self.quirks.clear()
        self.fan_out_quirks.clear()
        self.streams.failing_lists = 0.0
        self.table.stale_chance = 0.0
        self.objects.conflict_chance = 0.0
