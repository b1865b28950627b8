"""The fleet member of a query, together with its lease server and its batch planner. It runs on one event loop."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from typing import Final, TypeVar

from leasehold.config.settings import OnRecreatedStream, milliseconds
from leasehold.core.events import Event, FleetRefreshed, Observer
from leasehold.core.exactly_once.query_offset import QueryOffset
from leasehold.core.exactly_once.query_streams import require_same_streams
from leasehold.core.exactly_once.slice_limits import BatchLimits
from leasehold.core.initial_position import require_past
from leasehold.core.model import WorkerId
from leasehold.core.observing.health import HealthLimits
from leasehold.errors import ConfigError
from leasehold.fleet.finding_watch import FindingWatch
from leasehold.fleet.member import Member, MemberPorts
from leasehold.fleet.reading.stream_consumer import StreamConsumer
from leasehold.fleet.streams import Streams, TrackedStream
from leasehold.fleet.table.lease_table import LeaseTable
from leasehold.ports import Clock, Stream
from leasehold.spark.options import SourceOptions
from leasehold.spark.query.batch_load import BatchLoad
from leasehold.spark.query.batch_planner import BatchPlanner
from leasehold.spark.query.lease_server import LeaseServer
from leasehold.spark.query.pinned_slices import SlicePlan
from leasehold.tasks import first_of, retry

T = TypeVar("T")

# The longest wait of the first plan for leases. A lone member takes them at once; in a full fleet it may get none.
FIRST_LEASES_WAIT: Final = timedelta(seconds=8)
_CHECK_MS: Final = 50
_ATTEMPTS_MAX: Final = 11
# The longest wait of a plan for new records. Spark repeats a call without result after 12 ms, and each call costs as
# much as a few polls. Other sources of the same query wait as well, so it is short.
IDLE_WAIT_MS: Final = 200
_LIST_MS: Final = 250  # between two reads of the whole lease table, while a bounded run waits for leases


@dataclass(frozen=True, slots=True, kw_only=True)
class QueryPorts:
    """Everything that the member of a query uses outside of itself."""

    streams: Mapping[str, Stream]  # by their names in the options
    table: LeaseTable
    clock: Clock
    rng: random.Random
    observe: Observer
    load: BatchLoad
    consumers: Sequence[StreamConsumer] = ()  # with which tasks subscribe; none: they poll


class QueryMember:
    """A fleet member that plans the batches of a query. Call `start` first."""

    def __init__(self, options: SourceOptions, logged: QueryOffset, ports: QueryPorts) -> None:
        worker = WorkerId(f"spark-{logged.generation_id.query_id}")
        self._settings = options.query
        self._fleet = options.fleet
        self._ports = ports
        self._clock = ports.clock
        self._load = ports.load
        self._refreshed: FleetRefreshed | None = None
        streams = _make_streams(options, ports.streams)
        self.server = LeaseServer(
            streams,
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
        failover_ms = milliseconds(options.fleet.failover_after)
        # Tasks read the records, so the events of the driver do not show whether a shard makes progress.
        limits = HealthLimits(failover_ms=failover_ms, stuck_after_ms=failover_ms)
        self.watch = watch = FindingWatch(worker, streams, limits, ports.clock, has_progress=False)
        self._member = Member(
            MemberPorts(
                table=ports.table,
                streams=streams,
                clock=ports.clock,
                rng=ports.rng,
                observe=watch.then(self._observe),
                load=ports.load,
                watch=watch,
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
        await self._identify_streams()
        is_first_run = logged.generation_id.number == 0
        if is_first_run:
            await self._check_shards()
        else:
            self._check_streams(logged)
        # After the checks, so that a refused query registers nothing.
        for consumer in self._ports.consumers:
            # Here and not by the tasks: the driver can say what is wrong before the first batch.
            await consumer.prepare()
        if not is_first_run:
            # Before the member starts: it would create missing leases, and a task of an earlier run could still pin.
            await self.planner.prepare(logged)
        self._running = asyncio.create_task(self._member.run(self._stop))

    async def plan(
        self, logged: QueryOffset, limits: BatchLimits, *, wait_for_all: bool
    ) -> tuple[QueryOffset, list[SlicePlan]] | None:
        """Plan the next generation. The first plan waits for leases; a bounded run waits for all available records."""
        self._load.end()
        await self._wait_until(self._has_leases, FIRST_LEASES_WAIT)
        may_wait = True
        while True:
            self.server.has_news.clear()
            planned = await self.planner.plan(logged, limits)
            if planned is not None:
                self._load.begin()
                return planned
            if not wait_for_all:
                if may_wait and await self._wait_for_news():
                    may_wait = False
                    continue
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

    async def _identify_streams(self) -> None:
        """Read the identifiers of several streams: they are part of the lease keys, and of the log.

        A query needs all of them at its start. Otherwise it could not say whether its log is that of these streams.
        """
        if self.server.streams.is_multi_stream:
            for tracked in self.server.streams.tracked:
                require_past(tracked.initial.timestamp_ms, self._clock.wall_ms())
                await self._retry(partial(self.server.streams.identify, tracked))

    async def _check_shards(self) -> None:
        """Refuse unknown shards in the options. Later on, a shard that they name may have been trimmed.

        Of several streams, refuse one whose shards cannot be listed, as later runs do: the member would join the others
        and try again, and a bounded run would wait for the leases of this stream without end.
        """
        if not (self._settings.starting or self.server.streams.is_multi_stream):
            return
        for tracked in self.server.streams.known:
            shards = await self._retry(tracked.stream.list_shards)
            self._settings.require_known_shards({shard.id for shard in shards})

    def _check_streams(self, logged: QueryOffset) -> None:
        """Refuse other streams than those of the log. A recreated stream begins at its oldest record.

        The member finds that out by itself only while the table has leases of the earlier stream.
        """
        streams = self.server.streams
        starts_over = self._fleet.on_recreated_stream is OnRecreatedStream.START_OVER
        for recreated in require_same_streams(logged, streams.identifiers, starts_over=starts_over):
            streams.start_at_oldest_record(recreated)

    async def _retry(self, call: Callable[[], Awaitable[T]]) -> T:
        return await retry(call, clock=self._clock, rng=self._ports.rng, attempts_max=_ATTEMPTS_MAX)

    async def _wait_for_news(self) -> bool:
        """Wait a while for the lease server to find records. Returns whether it has."""
        news = self.server.has_news
        await first_of(news.wait(), self._clock.sleep_ms(IDLE_WAIT_MS))
        return news.is_set()

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


def _make_streams(options: SourceOptions, opened: Mapping[str, Stream]) -> Streams:
    tracked = [TrackedStream(name, opened[name], at) for name, at in options.initial_positions.items()]
    return Streams(tracked, is_multi_stream=options.is_multi_stream)
