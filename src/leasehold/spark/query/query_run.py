"""Answers Spark's calls in one run of a query: offsets in, offsets and slices out.

It runs on one event loop and reaches the outside through ports, so the simulator can run it. `driver` runs it on a
thread for Spark's reader.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from typing import Any

from leasehold.core.exactly_once.pinned_batch import GenerationId
from leasehold.core.exactly_once.query_offset import QueryOffset, offset_from_json
from leasehold.core.exactly_once.slice_limits import BatchLimits, deal_round_robin
from leasehold.core.finding import finding_to_json
from leasehold.errors import ConfigError
from leasehold.spark.options import SourceOptions
from leasehold.spark.query.pinned_slices import SlicePlan
from leasehold.spark.query.query_member import QueryMember, QueryPorts


class QueryRun:
    """Plans the batches of one query, from the first plan to the stop."""

    def __init__(self, options: SourceOptions, ports: QueryPorts, draw_query_id: Callable[[], str]) -> None:
        self.is_available_now = False  # a bounded run: read each shard to its tip, once
        self._options = options
        self._ports = ports
        self._draw_query_id = draw_query_id
        self._member: QueryMember | None = None
        self._query_id: str | None = None
        self._planned: tuple[GenerationId, list[SlicePlan]] | None = None
        # The last committed offset. Spark passes it several times a second while there are no new records, and to
        # parse the positions of all shards takes longer than to compare their texts.
        self._start: tuple[Mapping[str, Any], QueryOffset] | None = None

    async def plan(
        self, start: Mapping[str, Any], limits: BatchLimits, *, wait_for_all: bool
    ) -> Mapping[str, Any]:
        """Plan the offset after `start`, which is committed. Returns `start` itself if there are no new records."""
        if self._start is None or self._start[0] != start:
            self._start = start, self._parse_start(start)
        logged = self._start[1]
        member = await self._member_for(logged)
        planned = await member.plan(logged, limits, wait_for_all=wait_for_all or self.is_available_now)
        if planned is None:
            return start
        offset, plans = planned
        self._planned = (offset.generation_id, plans)
        return offset.to_json()

    async def slices(self, start: Mapping[str, Any], end: Mapping[str, Any]) -> list[list[SlicePlan]]:
        """Return the slices of a generation: one list for each task."""
        planned = offset_from_json(end)
        if planned is None:
            return []
        before = offset_from_json(start)
        expected = (before.generation_id.number if before else 0) + 1
        if planned.generation_id.number != expected:
            raise ConfigError(
                f"Spark asks for generations {expected} to {planned.generation_id.number} in one batch, as it does "
                "with asynchronous progress tracking: turn that off"
            )
        member = await self._member_for(planned)
        if self._planned is not None and self._planned[0] == planned.generation_id:
            plans = self._planned[1]
        else:
            plans = await member.replay(planned)
        if not plans:
            await member.planner.stamp(planned.generation_id)
        return deal_round_robin(plans, self._options.partitions or os.cpu_count() or 1)

    def report(self) -> dict[str, Any] | None:
        """Return the lag of each shard and the findings, or None before the member has started."""
        if self._member is None:
            return None
        findings = [{"shard": each.shard, **finding_to_json(each)} for each in self._member.watch.lasting]
        return {**self._member.planner.report(), "findings": findings}

    async def stop(self) -> None:
        """Release the leases and stop the member. Further calls do nothing."""
        member, self._member = self._member, None
        if member is not None:
            await member.stop()

    def _parse_start(self, start: Mapping[str, Any]) -> QueryOffset:
        return offset_from_json(start) or QueryOffset(GenerationId(self._new_query_id(), 0), {})

    def _new_query_id(self) -> str:
        self._query_id = self._query_id or self._draw_query_id()
        return self._query_id

    async def _member_for(self, logged: QueryOffset) -> QueryMember:
        """Start the member at the first call. Its worker id contains the query id, so it finds its leases after a
        crash.
        """
        if self._member is None:
            member = QueryMember(self._options, logged, self._ports)
            await member.start(logged)
            self._member = member
        self._member.planner.is_available_now = self.is_available_now
        self._member.raise_failure()
        return self._member
