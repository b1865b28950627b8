"""The fleet member of a query, together with its lease server and its batch planner. It runs on one event loop."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from typing import Final

from leasehold.core.events import Event, FleetRefreshed, Observer
from leasehold.core.exactly_once.query_offset import QueryOffset
from leasehold.core.exactly_once.slice_limits import BatchLimits
from leasehold.core.model import WorkerId
from leasehold.errors import ConfigError
from leasehold.fleet.member import Member, MemberPorts
from leasehold.fleet.reading.stream_consumer import StreamConsumer
from leasehold.fleet.streams import Streams
from leasehold.fleet.table.lease_table import LeaseTable
from leasehold.ports import Clock, Stream
from leasehold.spark.options import SourceOptions
from leasehold.spark.query.batch_load import BatchLoad
from leasehold.spark.query.batch_planner import BatchPlanner
from leasehold.spark.query.lease_server import LeaseServer
from leasehold.spark.query.pinned_slices import SlicePlan
from leasehold.tasks import retry

# The longest wait of the first plan for leases. A lone member takes them at once; in a full fleet it may get none.
FIRST_LEASES_WAIT: Final = timedelta(seconds=8)
_CHECK_MS: Final = 50
_ATTEMPTS_MAX: Final = 11
_LIST_MS: Final = 250  # between two reads of the whole lease table, while a bounded run waits for leases


@dataclass(frozen=True, slots=True, kw_only=True)
class QueryPorts:
    """Everything that the member of a query uses outside of itself."""

    stream: Stream
    table: LeaseTable
    clock: Clock
    rng: random.Random
    observe: Observer
    load: BatchLoad
    consumer: StreamConsumer | None = None  # with which tasks subscribe; None: they poll


class QueryMember:
    """A fleet member that plans the batches of a query. Call `start` first."""

    def __init__(self, options: SourceOptions, logged: QueryOffset, ports: QueryPorts) -> None:
        worker = WorkerId(f"spark-{logged.generation_id.query_id}")
        self._settings = options.query
        self._ports = ports
        self._clock = ports.clock
        self._load = ports.load
        self._refreshed: FleetRefreshed | None = None
        self.server = LeaseServer(
            ports.stream,
            options.query.poll_every,
            ports.clock,
            ports.rng,
            records_min=options.limits.records_min,
            deaggregation=options.deaggregation,
        )
        self.planner = BatchPlanner(
            worker=worker,
            table=ports.table,
            server=self.server,
            settings=options.query,
            clock=ports.clock,
            rng=ports.rng,
        )
        self._member = Member(
            MemberPorts(
                table=ports.table,
                streams=Streams.single(ports.stream, options.stream, options.query.initial),
                clock=ports.clock,
                rng=ports.rng,
                observe=self._observe,
                load=ports.load,
            ),
            application=options.application,
            worker=worker,
            serve=self.server.serve,
            settings=options.fleet,
        )
        self._stop = asyncio.Event()
        self._running: asyncio.Task[None] | None = None

    async def start(self, logged: QueryOffset) -> None:
        """Check the settings, compare the log of an earlier run with the lease table, and join the fleet."""
        self._settings.require_past_start(self._clock.wall_ms())
        if self._ports.consumer is not None:
            # Here and not by the tasks: the driver can say what is wrong before the first batch.
            await self._ports.consumer.prepare()
        if logged.generation_id.number == 0:
            await self._check_starting_shards()
        else:
            # Before the member starts: it would create missing leases, and a task of an earlier run could still pin.
            await self.planner.prepare(logged)
        self._running = asyncio.create_task(self._member.run(self._stop))

    async def plan(
        self, logged: QueryOffset, limits: BatchLimits, *, wait_for_all: bool
    ) -> tuple[QueryOffset, list[SlicePlan]] | None:
        """Plan the next generation. The first plan waits for leases; a bounded run waits for all available records."""
        self._load.end()
        await self._wait_until(self._has_leases, FIRST_LEASES_WAIT)
        while True:
            planned = await self.planner.plan(logged, limits)
            if planned is not None:
                self._load.begin()
                return planned
            if not wait_for_all:
                return None
            if await self.planner.has_read_all_available():
                final = self.planner.plan_final(logged)
                return None if final is None else (final, [])
            self.raise_failure()
            await self._clock.sleep_ms(_LIST_MS)

    async def replay(self, logged: QueryOffset) -> list[SlicePlan]:
        """Plan a logged generation again."""
        await self._wait_until(self._has_leases, FIRST_LEASES_WAIT)
        self._load.begin()
        return await self.planner.replay(logged)

    def raise_failure(self) -> None:
        """Raise the error that ended the member, if it has ended."""
        if self._running is not None and self._running.done():
            self._running.result()
            raise ConfigError("the fleet member of this query has stopped: restart the query")

    async def stop(self) -> None:
        """Stop the member, and wait until it has released its leases. If cancelled, it ends without releasing them."""
        self.server.stop(self._load.ends.last_committed())
        self._stop.set()
        if self._running is not None:
            await self._running

    async def _check_starting_shards(self) -> None:
        """Refuse unknown shards in the options. Later on, a shard that they name may have been trimmed."""
        if not self._settings.starting:
            return
        shards = await retry(
            self._ports.stream.list_shards,
            clock=self._clock,
            rng=self._ports.rng,
            attempts_max=_ATTEMPTS_MAX,
        )
        self._settings.require_known_shards({shard.id for shard in shards})

    def _observe(self, event: Event) -> None:
        self._ports.observe(event)
        if isinstance(event, FleetRefreshed):
            self._refreshed = event

    def _has_leases(self) -> bool:
        """True if the member has had time to take its share of the leases, or has failed."""
        if self._running is None or self._running.done():
            return True
        if self._refreshed is None:
            return False
        fleet, held = self._refreshed, len(self.server.shards)
        return held >= fleet.leases > 0 or (fleet.unclaimed == 0 and held >= fleet.mine)

    async def _wait_until(self, condition: Callable[[], bool], patience: timedelta) -> None:
        until_ms = self._clock.now_ms() + patience // timedelta(milliseconds=1)
        while not condition() and self._clock.now_ms() < until_ms:
            await self._clock.sleep_ms(_CHECK_MS)
