"""What only a wide run draws: concurrent handlers, several streams, streams that appear and disappear, and refusals.

These draws have a random generator of their own, and are made only if the options ask for them. So a seed without
`--wide` means what it meant before they existed.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import timedelta
from typing import Final

from leasehold.core.stream_lists import StreamSettings
from leasehold.simulation.environment.load import LoadPlan
from leasehold.simulation.environment.streams import ONE_STREAM, STREAM, StreamChoice, StreamPlan
from leasehold.simulation.faults import Fault, FaultMix
from leasehold.simulation.runtime import Runtime
from leasehold.worker.settings import ConsumerSettings, RecordSettings

DISCOVER_EVERY: Final = timedelta(seconds=5)
_REFUSALS_SHARE: Final = 0.35
_LOAD_SHARE: Final = 0.3
_CONCURRENCY_SHARE: Final = 0.4
# A handler of single records is called so much more often than one of batches. Without this, slow and failing handlers
# would not keep up.
_RECORDS_IN_BATCH: Final = 10
# How often the user's function fails while faults are injected.
_FAILING_LISTS: Final = 0.2


def draw_stream_plan(
    rng: random.Random, *, runtime: Runtime, is_wide: bool, choice: StreamChoice | None, mix: FaultMix
) -> StreamPlan:
    """Draw the streams of a run, unless `choice` says what they are.

    Workers that archive read one. The streams of a query do not change while it runs.
    """
    drawn = rng.choices(list(StreamChoice), (2, 2, 3, 2))[0]
    more_shards = tuple(rng.randint(1, 4) for _ in range(rng.randint(1, 2)))
    deletes_former = rng.random() < 0.5
    chosen = choice or (drawn if is_wide else StreamChoice.ONE)
    is_possible = runtime is Runtime.WORKER or (runtime is Runtime.SPARK and chosen is StreamChoice.SEVERAL)
    if not is_possible or chosen is StreamChoice.ONE:
        return ONE_STREAM
    # A stream that the function leaves out for long would start over if its leases were deleted.
    is_deleting = deletes_former and chosen is StreamChoice.LISTED
    return StreamPlan(chosen, more_shards, timedelta(seconds=3 * mix.failover_s) if is_deleting else None)


def draw_load_plan(
    rng: random.Random, has_load: bool | None, mix: FaultMix, *, is_wide: bool, seed: int
) -> LoadPlan | None:
    """Draw whether a run has unequal loads, unless the options say so."""
    is_drawn, has_slow_worker = rng.random() < _LOAD_SHARE and is_wide, rng.random() < 0.5
    plan = LoadPlan(seed, has_slow_worker, is_steady=not mix.slow_handler_share)
    return plan if (is_drawn if has_load is None else has_load) else None


def draw_concurrency(rng: random.Random, is_concurrent: bool | None, *, is_wide: bool) -> tuple[int, int]:
    """Draw how many records of a shard are handled at one time, and the number of partition keys."""
    is_drawn = rng.random() < _CONCURRENCY_SHARE and is_wide
    concurrency, keys = rng.choice((2, 4, 16)), rng.choice((2, 5, 30))
    return (concurrency, keys) if (is_drawn if is_concurrent is None else is_concurrent) else (1, 1)


def with_concurrency(
    mix: FaultMix, settings: ConsumerSettings, concurrency: int, keys: int
) -> tuple[FaultMix, ConsumerSettings]:
    """Let handlers get single records. They have no two-phase checkpoints."""
    if concurrency == 1:
        return mix, settings
    mix = replace(
        mix,
        is_two_phase=False,
        workload=replace(mix.workload, partition_keys=keys),
        slow_handler_share=mix.slow_handler_share / _RECORDS_IN_BATCH,
        failing_share=mix.failing_share / _RECORDS_IN_BATCH,
    )
    handling = replace(settings.handling, records=RecordSettings(concurrency=concurrency))
    return mix, replace(settings, handling=handling)


def with_wide_faults(
    rng: random.Random, mix: FaultMix, plan: StreamPlan, *, is_wide: bool, runtime: Runtime
) -> FaultMix:
    """Add the faults that only wide runs draw, and that streams appear and disappear where members discover them."""
    added = set()
    if rng.random() < _REFUSALS_SHARE and is_wide and runtime is not Runtime.SPARK:
        added.add(Fault.REFUSALS)
    if plan.choice.is_discovering:
        added.add(Fault.STREAM_CHANGES)
    return replace(mix, faults=mix.faults | added)


def with_streams(
    settings: ConsumerSettings, plan: StreamPlan, list_names: Callable[[], Sequence[str]]
) -> ConsumerSettings:
    """Return the settings of members that read the streams of a plan."""
    names = [STREAM, *(f"{STREAM}-{number}" for number in range(1, len(plan.more_shards) + 1))]
    identity = replace(settings.identity, discover_streams_every=DISCOVER_EVERY)
    match plan.choice:
        case StreamChoice.ONE:
            return settings
        case StreamChoice.SEVERAL:
            identity = replace(identity, stream="", streams=tuple(map(StreamSettings, names)))
        case StreamChoice.LISTED:
            identity = replace(identity, stream="", streams_with_prefix=STREAM)
        case StreamChoice.FUNCTION:
            identity = replace(identity, stream="", streams=list_names)
    fleet = replace(settings.fleet, delete_former_streams_after=plan.delete_former_after)
    return replace(settings, identity=identity, fleet=fleet)


def failing_lists(mix: FaultMix) -> float:
    """Return how often the user's function that lists streams fails while faults are injected."""
    return _FAILING_LISTS if mix.has(Fault.HANDLER_FAILURES) else 0.0
