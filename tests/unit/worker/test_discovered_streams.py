"""Workers that find their streams while they run: by a prefix, by a tag, or by a function."""

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest

from leasehold.core.events import LeaseDeleted, OperationFailed, StreamsChanged
from leasehold.core.model import StreamIdentifier
from leasehold.errors import ConfigError
from leasehold.kinesis_model.service import add_tags
from leasehold.worker.options import consumer_settings
from leasehold.worker.stream_lists import FUNCTION_LIMIT_MS
from tests.unit.worker.multi_stream_world import MODES, ORDERS, RETURNS, MultiStreamWorld, run_scenario

REFUNDS = "refunds"


async def until_free(world: MultiStreamWorld, stream: str) -> None:
    """Wait until no member owns a lease of a stream."""
    for _ in range(6000):
        leases = (await world.table.list()).leases
        if not any(lease.owner for lease in leases if lease.stream and f":{stream}:" in lease.stream):
            return
        await world.clock.sleep_ms(50)
    raise AssertionError(f"the leases of {stream} are not released")


@MODES
def test_streams_are_added_and_removed_while_two_members_run(mode: str) -> None:
    """Both members read a stream that appears. One that disappears is released, and continues when it is back."""
    listed = [ORDERS, RETURNS]

    async def scenario(world: MultiStreamWorld) -> None:
        options: dict[str, Any] = {
            "streams": lambda: list(listed),
            "mode": mode,
            "discover_streams_every": "10s",
        }
        first, second = world.start("first", **options), world.start("second", **options)
        world.put(80)
        await world.until(lambda: world.all_handled() and len(world.readers(ORDERS)) == 2)
        world.service.create_stream(world.clock.wall_ms(), REFUNDS, shard_count=4)
        listed.append(REFUNDS)
        listed.remove(RETURNS)
        world.put(40, ORDERS, REFUNDS)
        await world.until(lambda: world.all_handled(ORDERS, REFUNDS), within_s=600)
        await until_free(world, RETURNS)
        handled = len(world.handled)
        world.put(40, RETURNS)
        world.put(80, REFUNDS)
        await world.until(lambda: world.all_handled(REFUNDS), within_s=600)
        await world.clock.sleep_ms(20_000)
        assert {each.batch.stream for each in world.handled[handled:]} == {REFUNDS}
        listed.append(RETURNS)
        await world.until(lambda: world.all_handled(RETURNS), within_s=600)
        for _ in range(20):
            world.put(8, REFUNDS)
            await world.clock.sleep_ms(5_000)
            if world.readers(REFUNDS) == {first, second}:
                break
        await world.until(lambda: world.all_handled(ORDERS, RETURNS, REFUNDS), within_s=600)
        assert world.readers(REFUNDS) == {first, second}
        assert {event for event in world.events[first] if isinstance(event, StreamsChanged)} == {
            StreamsChanged((ORDERS, RETURNS), ()),
            StreamsChanged((REFUNDS,), (RETURNS,)),
            StreamsChanged((RETURNS,), ()),
        }

    world = run_scenario(scenario)
    # No process was killed, so the removal and the return of a stream repeat nothing.
    assert len(world.handled) == len({each.data for each in world.handled})


def test_streams_are_found_by_their_names_and_tags() -> None:
    """Only a stream that matches is read. One that loses its tag is not read any longer."""

    async def scenario(world: MultiStreamWorld) -> None:
        for name, team in (("orders-eu", "billing"), ("orders-us", "other"), ("refunds-eu", "billing")):
            world.service.create_stream(world.clock.wall_ms(), name, shard_count=1, tags={"team": team})
            world.put(4, name)
        world.put(4)
        world.start("one", streams_with_prefix="orders", streams_with_tag="team=billing", mode="peer")
        await world.until(lambda: world.all_handled("orders-eu"))
        add_tags(world.service.streams["orders-us"], {"team": "billing"})
        await world.until(lambda: world.all_handled("orders-us"))
        del world.service.streams["orders-eu"].config.tags["team"]
        await until_free(world, "orders-eu")

    world = run_scenario(scenario)
    assert {each.batch.stream for each in world.handled} == {"orders-eu", "orders-us"}


def test_a_stream_that_was_recreated_between_two_listings_is_read_from_its_beginning() -> None:
    """The listing contains its time of creation, so the member need not stop."""

    async def scenario(world: MultiStreamWorld) -> None:
        world.start("one", streams_with_prefix=ORDERS, initial_position="latest", mode="peer")
        await world.until_leases(lambda number: number == 2)
        await world.clock.sleep_ms(5_000)
        world.put(8, ORDERS)
        await world.until(lambda: world.all_handled(ORDERS))
        world.service.delete_stream(world.clock.wall_ms(), ORDERS)
        await world.clock.sleep_ms(2_000)
        world.service.create_stream(world.clock.wall_ms(), ORDERS, shard_count=1)
        world.put(8, ORDERS)
        await world.until(lambda: world.all_handled(ORDERS), within_s=300)

    run_scenario(scenario)


def failing_generator() -> Iterator[str]:
    yield ORDERS
    raise LookupError("secret")


async def never_returning() -> list[str]:
    await asyncio.Event().wait()
    return []


def test_a_function_that_fails_changes_nothing() -> None:
    """So does one whose result fails, or that does not return. It is reported, and the function is asked again."""
    listed: list[object] = [[ORDERS]]

    def streams() -> object:
        if isinstance(listed[0], Exception):
            raise listed[0]
        return listed[0]() if callable(listed[0]) else listed[0]

    async def scenario(world: MultiStreamWorld) -> None:
        one = world.start("one", streams=streams, discover_streams_every="5s", mode="peer")
        world.put(8, ORDERS)
        await world.until(lambda: world.all_handled(ORDERS))
        for answer in (LookupError("secret"), 7, failing_generator, never_returning):
            listed[0] = answer
            failures = len([e for e in world.events[one] if isinstance(e, OperationFailed)])
            await world.clock.sleep_ms(6_000 + FUNCTION_LIMIT_MS)
            failed = [e for e in world.events[one] if isinstance(e, OperationFailed)][failures:]
            assert {e.operation for e in failed} == {"discover streams"}
            assert "secret" not in str(failed)
        world.put(8, ORDERS)
        await world.until(lambda: world.all_handled(ORDERS))
        listed[0] = {ORDERS: None, RETURNS: "trim_horizon"}
        world.put(8, RETURNS)
        await world.until(lambda: world.all_handled(RETURNS))

    run_scenario(scenario)


@MODES
def test_leases_of_former_streams_are_deleted_after_a_while_if_no_member_renews_them(mode: str) -> None:
    """A member with a longer list keeps its stream, and those of a stream that nobody reads are deleted."""

    async def scenario(world: MultiStreamWorld) -> None:
        options: dict[str, Any] = {"mode": mode, "delete_former_streams_after": "1m"}
        world.start("both", [ORDERS, RETURNS], **options)
        world.put(16)
        await world.until(world.all_handled)
        one = world.start("one", [ORDERS], **options)
        await world.clock.sleep_ms(120_000)
        assert len((await world.table.list()).leases) == 4
        world.put(16)
        await world.until(world.all_handled)
        await world.stop_all()
        one = world.start("one", [ORDERS], **options)
        await world.clock.sleep_ms(55_000)
        assert len((await world.table.list()).leases) == 4
        await world.until_leases(lambda number: number == 2)
        assert len([event for event in world.events[one] if isinstance(event, LeaseDeleted)]) == 2
        assert {lease.stream for lease in (await world.table.list()).leases} == {
            StreamIdentifier(f"000000000000:{ORDERS}:{world.service.streams[ORDERS].created_ms // 1000}")
        }

    run_scenario(scenario)


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ({"stream": "a", "streams_with_prefix": "b"}, "give one of the two"),
        ({"streams": ["a"], "streams_with_tag": "b"}, "give a list, or what to list"),
        ({"streams_with_prefix": "b", "discover_streams_every": "10ms"}, "at least a second"),
        ({"streams": ["a"], "delete_former_streams_after": "10s"}, "at least twice"),
        ({"stream": "a", "delete_former_streams_after": "1h"}, "only with several streams"),
    ],
)
def test_settings_that_contradict_each_other_are_refused(options: dict[str, object], problem: str) -> None:
    """Each message says what to do."""
    with pytest.raises(ConfigError, match=problem):
        consumer_settings({"application": "billing", **options}, {})
