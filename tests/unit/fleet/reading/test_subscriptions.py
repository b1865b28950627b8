"""Reading by subscriptions of enhanced fan-out: renewal, failures, back-pressure, and the registered consumer."""

import asyncio
from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise

import pytest

from leasehold.adapters.memory import stream as memory_stream
from leasehold.config.settings import FanOutSettings, ReadSettings, Retrieval
from leasehold.core.events import (
    ConsumerFound,
    FanOutRefused,
    FanOutResumed,
    GapFound,
    ReadFailed,
    ReadThrottled,
    SubscriptionEnded,
    SubscriptionLost,
)
from leasehold.core.model import ShardId
from leasehold.core.position import Position
from leasehold.core.records.iterators import IteratorKind
from leasehold.core.records.subscriptions import SILENCE_MAX_MS
from leasehold.errors import (
    AccessDeniedError,
    ConfigError,
    InUseError,
    NotFoundError,
    ServiceError,
    ThrottledError,
    UnavailableError,
)
from leasehold.kinesis_model.service import CONSUMERS_MAX
from leasehold.kinesis_model.settings import ServiceSettings
from leasehold.ports import SubscriptionEvent
from leasehold.simulation.virtual_time import run_in_virtual_time
from tests.unit.fleet.reading.reading_world import HOUR_MS, ReadWorld, numbers_of

ELEVEN_MINUTES_MS = 660_000


@pytest.fixture(autouse=True)
def _fan_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ReadWorld, "retrieval", Retrieval.FAN_OUT)


def fail_once(operation: str, *errors: Exception | None) -> Callable[[str], Exception | None]:
    """Fail the first calls of an operation with these errors. None lets a call succeed."""
    following = iter(errors)
    return lambda called: next(following, None) if called == operation else None


def test_records_arrive_without_polling() -> None:
    """Plain records and aggregates are delivered in order, soon after they were put, and GetRecords is not called."""

    async def main() -> None:
        world = ReadWorld()
        world.put(2)
        async with world.read() as chunks:
            assert numbers_of(await world.take(chunks, 2)) == [0, 1]
            world.put_aggregate(3)
            put_ms = world.clock.now_ms()
            assert numbers_of(await world.take(chunks, 3)) == [2, 3, 4]
            assert world.clock.now_ms() - put_ms <= 100
        assert world.stream.times("get_records") == []
        assert world.fan_out.open_subscriptions == 0
        assert world.budget.used_bytes == 0

    run_in_virtual_time(main())


def test_a_position_inside_an_aggregate_continues_there() -> None:
    """The subscription begins at the aggregate, and its first parts are dropped."""

    async def main() -> None:
        world = ReadWorld()
        number = world.put_aggregate(5)
        async with world.read(Position(number, 2)) as chunks:
            assert numbers_of(await world.take(chunks, 2)) == [3, 4]
        assert [start.kind for start in world.fan_out.starts] == [IteratorKind.AT_SEQUENCE_NUMBER]

    run_in_virtual_time(main())


def test_an_idle_shard_is_renewed_and_loses_nothing() -> None:
    """Three subscriptions in eleven idle minutes; the next record arrives at once."""

    async def main() -> None:
        world = ReadWorld()
        world.put(1)
        async with world.read() as chunks:
            await world.take(chunks, 1)
            while world.clock.now_ms() < ELEVEN_MINUTES_MS:
                assert (await world.next_chunk(chunks)).records == ()
            world.put(1)
            put_ms = world.clock.now_ms()
            assert numbers_of(await world.take(chunks, 1)) == [1]
            assert world.clock.now_ms() - put_ms < 2_000
        assert len(world.fan_out.times("subscribe")) == 3
        assert len(world.events_of(SubscriptionEnded)) == 2
        assert not world.events_of(SubscriptionLost)

    run_in_virtual_time(main())


def test_a_record_put_between_two_subscriptions_is_delivered_once() -> None:
    """The next subscription continues at the continuation number, however the last one ended."""

    async def main() -> None:
        world = ReadWorld()
        seen: list[int] = []
        async with world.read() as chunks:
            for _ in range(20):
                world.put(3)
                seen += numbers_of(await world.take(chunks, 3))
                world.fan_out.failure_for = fail_once("event", UnavailableError("cut"))
                world.put(2)
                seen += numbers_of(await world.take(chunks, 2))
        assert seen == list(range(100))
        assert len(world.events_of(SubscriptionLost)) == 20

    run_in_virtual_time(main())


def test_a_silent_subscription_is_abandoned() -> None:
    """A half-open connection never sends anything. Reading continues with a new subscription, and says so."""

    async def main() -> None:
        world = ReadWorld()
        world.put(1)
        async with world.read() as chunks:
            await world.take(chunks, 1)
            world.fan_out.silent_reads = 1
            await world.next_chunk(chunks)
            world.put(1)
            began_ms = world.clock.now_ms()
            assert numbers_of(await world.take(chunks, 1)) == [1]
            assert world.clock.now_ms() - began_ms <= SILENCE_MAX_MS + 2_000
        (lost,) = world.events_of(SubscriptionLost)
        assert "no event for 20000 ms" in lost.reason

    run_in_virtual_time(main())


@pytest.mark.parametrize("cause", ["held back", "broken"])
def test_a_shard_whose_subscriptions_send_no_event_is_polled_for_a_while(cause: str) -> None:
    """A proxy holds events back, or an event cannot be decoded. Reading continues, and the log says how."""

    async def main() -> None:
        world = ReadWorld()
        world.put(3)
        if cause == "held back":
            world.fan_out.silent_reads = 4
        else:
            world.fan_out.failure_for = fail_once("event", *[UnavailableError("malformed")] * 4)
        async with world.read() as chunks:
            assert numbers_of(await world.take(chunks, 3)) == [0, 1, 2]
            assert world.clock.now_ms() < 75_000
            while len(world.fan_out.times("subscribe")) < 5:
                await world.next_chunk(chunks)
            world.put(1)
            assert numbers_of(await world.take(chunks, 1)) == [3]
            polls = len(world.stream.times("get_records"))
            await world.clock.sleep_ms(60_000)
            assert len(world.stream.times("get_records")) == polls
        lost = world.events_of(SubscriptionLost)
        assert ["is polled meanwhile" in each.reason for each in lost] == [False, False, True, True]
        assert [each.wait_ms for each in lost[2:]] == [60_000, 120_000]

    run_in_virtual_time(main())


def test_a_large_event_on_a_slow_connection_is_not_silence() -> None:
    """It takes a minute, and its parts arrive all the time. Reading would never pass it if it were abandoned."""

    async def main() -> None:
        world = ReadWorld()
        world.fan_out.slow_ms = 60_000
        world.put(1)
        async with world.read() as chunks:
            assert numbers_of(await world.take(chunks, 1)) == [0]
            assert not world.events_of(SubscriptionLost)
            world.fan_out.slow_ms = 1_000_000  # longer than any subscription lasts
            while not world.events_of(SubscriptionLost):
                await world.clock.sleep_ms(1_000)
        assert world.clock.now_ms() < 700_000

    run_in_virtual_time(main())


def test_a_subscription_that_is_in_use_is_requested_again_after_five_seconds() -> None:
    """Kinesis refuses it before. More frequent calls would only be refused."""

    async def main() -> None:
        world = ReadWorld()
        world.put(1)
        world.fan_out.failure_for = fail_once("subscribe", *[InUseError("in use")] * 3)
        async with world.read() as chunks:
            assert numbers_of(await world.take(chunks, 1)) == [0]
        times = world.fan_out.times("subscribe")
        assert all(5_000 < after - before < 7_000 for before, after in pairwise(times))
        assert len(world.events_of(ReadFailed)) == 3

    run_in_virtual_time(main())


def test_a_subscription_that_breaks_at_once_is_not_requested_within_five_seconds() -> None:
    """Our own subscription is as young as one of another process."""

    async def main() -> None:
        world = ReadWorld()
        world.put(1)
        world.fan_out.failure_for = fail_once("event", UnavailableError("cut"), UnavailableError("cut"))
        async with world.read() as chunks:
            await world.take(chunks, 1)
        times = world.fan_out.times("subscribe")
        assert [after - before > 5_000 for before, after in pairwise(times)] == [True, True]
        assert not world.events_of(ReadFailed)

    run_in_virtual_time(main())


def test_a_replaced_subscription_comes_back_after_five_seconds() -> None:
    """Another process with the same consumer takes over, and then stops: our reader continues, and loses nothing."""

    async def main() -> None:
        world = ReadWorld()
        world.put(1)
        async with world.read() as chunks:
            await world.take(chunks, 1)
            await world.clock.sleep_ms(6_000)
            other = world.make_consumer()
            async with world.read(consumer=other) as others:
                await world.take(others, 1)
            world.put(1)
            assert numbers_of(await world.take(chunks, 1)) == [1]
        assert len(world.events_of(SubscriptionLost)) == 1

    run_in_virtual_time(main())


def test_a_throttled_call_is_retried_later() -> None:
    async def main() -> None:
        world = ReadWorld()
        world.put(1)
        world.fan_out.failure_for = fail_once("subscribe", *[ThrottledError("slowly")] * 4)
        async with world.read() as chunks:
            await world.take(chunks, 1)
        assert len(world.events_of(ReadThrottled)) == 4

    run_in_virtual_time(main())


def test_a_shard_that_ends_during_a_subscription_names_its_children() -> None:
    async def main() -> None:
        world = ReadWorld()
        world.put(2)
        async with world.read() as chunks:
            await world.take(chunks, 1)
            world.put(1)
            world.split()
            records, last = await world.take_to_end(chunks)
        assert numbers_of(records) == [2]
        assert len(last.children or ()) == 2

    run_in_virtual_time(main())


def test_an_event_without_continuation_and_children_is_not_the_end() -> None:
    """As for GetRecords: the rest of the shard would stay unread. The event is asked for again."""

    async def main() -> None:
        world = ReadWorld()
        world.put(3)
        broken = iter([True])

        def change(event: SubscriptionEvent) -> SubscriptionEvent:
            return replace(event, continuation=None) if next(broken, False) else event

        world.fan_out.change_event = change
        async with world.read() as chunks:
            assert numbers_of(await world.take(chunks, 3)) == [0, 1, 2]
        assert len(world.events_of(SubscriptionLost)) == 1

    run_in_virtual_time(main())


def test_events_in_a_wrong_order_after_a_renewal_are_refused() -> None:
    """A subscription begins at the last record that was read. If it begins later, it has skipped records."""

    async def main() -> None:
        world = ReadWorld()
        world.put(1)
        async with world.read() as chunks:
            await world.take(chunks, 1)
            skipped = iter([True])

            def skip(event: SubscriptionEvent) -> SubscriptionEvent:
                if len(event.records) > 2 and next(skipped, False):
                    return replace(event, records=event.records[2:])
                return event

            world.fan_out.change_event = skip
            world.fan_out.failure_for = fail_once("event", UnavailableError("cut"))
            world.put(3)
            assert numbers_of(await world.take(chunks, 3)) == [1, 2, 3]
        assert ["begins with record" in each.reason for each in world.events_of(SubscriptionLost)] == [
            False,
            True,
        ]

    run_in_virtual_time(main())


def test_a_consumer_that_takes_nothing_stops_the_subscription() -> None:
    """No event is requested while the chunks of earlier ones wait, or while the byte budget is used up."""

    async def main() -> None:
        world = ReadWorld(settings=ReadSettings(buffer_bytes=1024 * 1024))
        async with world.read() as chunks:
            for _ in range(30):
                world.put(3, size=90_000)
                await world.clock.sleep_ms(2_000)
            assert world.budget.used_bytes <= 1.5 * 1024 * 1024
            assert len(world.fan_out.times("event")) < 10
            assert numbers_of(await world.take(chunks, 90)) == list(range(90))
        assert world.budget.used_bytes == 0

    run_in_virtual_time(main())


def test_idle_shards_take_no_room_from_others() -> None:
    """A hundred idle subscriptions reserve nothing while they wait."""

    async def main() -> None:
        world = ReadWorld(shards=20, settings=ReadSettings(buffer_bytes=1024 * 1024))

        async def idle(number: int) -> None:
            async with world.read(shard=ShardId(f"shardId-{number:012}")) as chunks:
                while True:
                    await world.next_chunk(chunks)

        readers = [asyncio.create_task(idle(number)) for number in range(20)]
        await world.clock.sleep_ms(10_000)
        assert world.budget.used_bytes == 0
        for reader in readers:
            reader.cancel()
        await asyncio.gather(*readers, return_exceptions=True)
        assert world.fan_out.open_subscriptions == 0

    run_in_virtual_time(main())


def test_many_shards_subscribe_at_a_bounded_pace() -> None:
    """200 shards that are renewed at the same moment make 50 calls a second."""

    async def main() -> None:
        short = ServiceSettings(subscription_lifetime_ms=60_000, heartbeat_ms=15_000)
        world = ReadWorld(shards=200, service_settings=short)

        async def read(number: int) -> None:
            async with world.read(shard=ShardId(f"shardId-{number:012}")) as chunks:
                while world.clock.now_ms() < 70_000:
                    await world.next_chunk(chunks)

        await asyncio.gather(*(read(number) for number in range(200)))
        times = sorted(world.fan_out.times("subscribe"))
        assert len(times) == 400
        assert all(times[index + 50] - times[index] >= 1_000 for index in range(350))
        assert not world.events_of(ReadFailed)
        assert not world.events_of(SubscriptionLost)

    run_in_virtual_time(main())


def test_a_process_has_one_subscription_for_each_shard() -> None:
    """A second reader of the shard waits for the first one. They would replace each other for ever."""

    async def main() -> None:
        world = ReadWorld()
        world.put(3)

        async def read() -> None:
            async with world.read() as chunks:
                assert numbers_of(await world.take(chunks, 3)) == [0, 1, 2]
                assert world.fan_out.open_subscriptions == 1
                await world.clock.sleep_ms(8_000)

        await asyncio.gather(read(), read())
        assert not world.events_of(SubscriptionLost)
        assert not world.events_of(ReadFailed)

    run_in_virtual_time(main())


def test_a_reader_that_is_far_behind_polls_and_reports_the_gap() -> None:
    """A subscription skips trimmed records silently, so the reader polls until it has caught up."""

    async def main() -> None:
        world = ReadWorld()
        numbers = world.put(600, size=10_000)  # several events
        await world.clock.sleep_ms(22 * HOUR_MS)
        async with world.read() as chunks:
            seen = numbers_of(await world.take(chunks, 1))
            await world.clock.sleep_ms(3 * HOUR_MS)
            world.put(1)
            while seen[-1] < 600:
                seen += numbers_of(await world.take(chunks, 1))
            polls = len(world.stream.times("get_records"))
            await world.clock.sleep_ms(10_000)
            world.put(1)
            assert numbers_of(await world.take(chunks, 1)) == [601]
        (found,) = world.events_of(GapFound)
        assert seen == [*range(seen[-2] + 1), 600]
        assert found.gap.after == Position(numbers[seen[-2]])
        assert (polls, len(world.stream.times("get_records"))) == (polls, polls)
        assert (polls > 0, len(world.fan_out.times("subscribe"))) == (True, 2)

    run_in_virtual_time(main())


def test_a_record_that_was_trimmed_early_is_a_gap() -> None:
    """The subscription does not begin with the last record, and polling shows that it is gone. Reading continues."""

    async def main() -> None:
        world = ReadWorld()
        (number,) = world.put()
        async with world.read() as chunks:
            await world.take(chunks, 1)
            world.fan_out.failure_for = fail_once("event", UnavailableError("cut"))
            world.put()
            world.service.stream(world.clock.wall_ms(), "orders").trim_all_records()
            world.put()
            assert numbers_of(await world.take(chunks, 1)) == [2]
            world.put()
            assert numbers_of(await world.take(chunks, 1)) == [3]
        assert [event.gap.after for event in world.events_of(GapFound)] == [Position(number)]

    run_in_virtual_time(main())


def test_an_idle_shard_whose_last_record_was_trimmed_has_no_gap(monkeypatch: pytest.MonkeyPatch) -> None:
    """The reader was at the tip all the time. The next record and the end of the shard are no gap, and are read."""

    async def main() -> None:
        monkeypatch.setattr(memory_stream, "LOOK_AFTER_MAX_MS", 4_000)
        world = ReadWorld(service_settings=ServiceSettings(heartbeat_ms=14_000))
        world.put()
        async with world.read() as chunks:
            while world.clock.now_ms() < 26 * HOUR_MS:
                await world.next_chunk(chunks)
            world.put()
            assert numbers_of(await world.take(chunks, 1)) == [1]
            world.split()
            await world.take_to_end(chunks)
        assert not world.events_of(GapFound)
        assert not world.events_of(SubscriptionLost)

    run_in_virtual_time(main())


def test_a_deleted_consumer_is_registered_again() -> None:
    """Its subscriptions end with an error. The reader finds out, registers it, and loses nothing."""

    async def main() -> None:
        world = ReadWorld()
        world.put(1)
        async with world.read() as chunks:
            await world.take(chunks, 1)
            (found,) = world.events_of(ConsumerFound)
            await world.clock.sleep_ms(6_000)
            await world.fan_out.deregister_consumer(found.arn)
            world.put(1)
            assert numbers_of(await world.take(chunks, 1)) == [1]
        before, after = world.events_of(ConsumerFound)
        assert (before.consumer, after.consumer) == ("billing", "billing")
        assert before.arn != after.arn

    run_in_virtual_time(main())


def test_a_consumer_that_is_being_created_is_waited_for() -> None:
    async def main() -> None:
        world = ReadWorld(service_settings=ServiceSettings(status_delay_ms=3_000))
        await world.clock.sleep_ms(4_000)
        world.put(1)
        async with world.read() as chunks:
            await world.take(chunks, 1)
        assert len(world.fan_out.times("register")) == 1
        assert len(world.fan_out.times("subscribe")) == 1

    run_in_virtual_time(main())


def test_readers_register_the_consumer_once() -> None:
    """All readers of a process share it, also those that start at the same moment."""

    async def main() -> None:
        world = ReadWorld(shards=3)

        async def read(number: int) -> None:
            async with world.read(shard=ShardId(f"shardId-{number:012}")) as chunks:
                await world.next_chunk(chunks)

        await asyncio.gather(*map(read, range(3)))
        assert (len(world.fan_out.times("describe")), len(world.fan_out.times("register"))) == (2, 1)

    run_in_virtual_time(main())


BY_NAME = FanOutSettings(retrieval=Retrieval.FAN_OUT)
BY_ARN = FanOutSettings(
    retrieval=Retrieval.FAN_OUT,
    consumer_arn="arn:aws:kinesis:us-east-1:000000000000:stream/orders/consumer/given:1790000000",
)


@pytest.mark.parametrize("settings", [BY_NAME, BY_ARN], ids=["name", "arn"])
@pytest.mark.parametrize("deleting_ms", [0, 90_000])
def test_a_stream_that_was_deleted_with_its_consumer_ends(settings: FanOutSettings, deleting_ms: int) -> None:
    """The consumer cannot be registered again. The list of shards shows why, and the shard ends as with polling.

    A stream that is still being deleted may last for a minute and more: the reader waits, at a calm pace.
    """

    async def main() -> None:
        world = ReadWorld(fan_out_settings=settings)
        world.service.register_consumer(world.clock.wall_ms(), "orders", "given")
        world.put(1)
        async with world.read() as chunks:
            await world.take(chunks, 1)
            world.fan_out.failure_for = fail_once("event", NotFoundError("no consumer"))
            await world.clock.sleep_ms(6_000)
            world.service.settings = replace(world.service.settings, status_delay_ms=deleting_ms)
            world.service.delete_stream(world.clock.wall_ms(), "orders", with_consumers=True)
            if deleting_ms:
                world.service.stream(world.clock.wall_ms(), "orders").consumers.clear()
            calls = len(world.fan_out.calls)
            records, last = await world.take_to_end(chunks)
        assert (records, last.children) == ([], ())
        assert len(world.fan_out.calls) - calls < 250

    run_in_virtual_time(main())


@pytest.mark.parametrize("settings", [BY_NAME, BY_ARN], ids=["name", "arn"])
def test_a_stream_that_does_not_exist_yet_keeps_no_process_from_starting(settings: FanOutSettings) -> None:
    async def main() -> None:
        world = ReadWorld(fan_out_settings=settings)
        world.service.delete_stream(world.clock.wall_ms(), "orders")
        await world.make_consumer().prepare()
        assert not world.events_of(FanOutRefused)

    run_in_virtual_time(main())


def test_a_consumer_that_stays_in_another_status_is_reported() -> None:
    """Such as one that is deleted for ever. Readers say every minute for what they wait, and continue after it."""

    async def main() -> None:
        world = ReadWorld(service_settings=ServiceSettings(status_delay_ms=150_000))
        await world.clock.sleep_ms(151_000)
        world.put(1)
        async with world.read() as chunks:
            await world.take(chunks, 1)
        failures = world.events_of(ReadFailed)
        assert len(failures) == 2
        assert "consumer billing is not ACTIVE after 60 s, its status is CREATING" in failures[0].error

    run_in_virtual_time(main())


def use_up_consumers(world: ReadWorld) -> None:
    for number in range(CONSUMERS_MAX):
        world.service.register_consumer(world.clock.wall_ms(), "orders", f"other-{number}")


@pytest.mark.parametrize("cause", ["limit", "right"])
def test_auto_polls_where_fan_out_is_refused(cause: str) -> None:
    """The limit of consumers is reached, or the role lacks the right: a warning says so, and the shard is polled."""

    async def main() -> None:
        world = ReadWorld(fan_out_settings=FanOutSettings(retrieval=Retrieval.AUTO))
        if cause == "limit":
            use_up_consumers(world)
        else:
            world.fan_out.failure_for = lambda called: (
                ServiceError("AccessDenied") if called == "describe" else None
            )
        world.put(3)
        async with world.read() as chunks:
            assert numbers_of(await world.take(chunks, 3)) == [0, 1, 2]
        assert len(world.events_of(FanOutRefused)) == 1
        assert world.fan_out.times("subscribe") == []

    run_in_virtual_time(main())


@pytest.mark.parametrize("cause", ["limit", "right to register", "right to subscribe", "proxy"])
def test_auto_tries_fan_out_again_after_minutes(cause: str) -> None:
    """A shard is polled until a subscription is accepted. Each change is one event, and a try that fails is none."""
    refused = {
        "right to register": ("register", AccessDeniedError("not authorized")),
        "right to subscribe": ("subscribe", AccessDeniedError("not authorized")),
        "proxy": ("subscribe", ConfigError("a proxy")),
    }

    async def main() -> None:
        world = ReadWorld(shards=3, fan_out_settings=FanOutSettings(retrieval=Retrieval.AUTO))
        if cause == "limit":
            use_up_consumers(world)
        else:
            operation, error = refused[cause]
            world.fan_out.failure_for = lambda called: error if called == operation else None
        polls: list[int] = []

        async def read(number: int) -> None:
            async with world.read(shard=ShardId(f"shardId-{number:012}")) as chunks:
                while world.clock.now_ms() < 31 * 60_000:
                    await world.next_chunk(chunks)

        async def mend() -> None:
            await world.clock.sleep_ms(20 * 60_000)
            tried = {"limit": "describe", "right to register": "describe"}.get(cause, "subscribe")
            assert 2 <= len(world.fan_out.times(tried)) < 10
            assert not world.events_of(FanOutResumed)
            world.fan_out.failure_for = lambda _: None
            world.service.stream(world.clock.wall_ms(), "orders").consumers.pop("other-0", None)
            await world.clock.sleep_ms(10 * 60_000)
            polls.extend(world.stream.times("get_records"))

        await asyncio.gather(*map(read, range(3)), mend())
        (refusal,), (resumed,) = world.events_of(FanOutRefused), world.events_of(FanOutResumed)
        assert (refusal.name, resumed.name) == ("orders", "orders")
        assert len(polls) == len(world.stream.times("get_records"))  # none after the last minute
        assert all(after - before < 30_000 for before, after in pairwise(polls))

    run_in_virtual_time(main())


def test_a_missing_right_to_subscribe_is_retried_if_fan_out_is_demanded() -> None:
    """As polling retries it: the reader continues once the right is granted."""

    async def main() -> None:
        world = ReadWorld()
        world.put(1)
        world.fan_out.failure_for = fail_once("subscribe", *[AccessDeniedError("not authorized")] * 3)
        async with world.read() as chunks:
            await world.take(chunks, 1)
        assert [each.error for each in world.events_of(ReadFailed)] == ["not authorized"] * 3

    run_in_virtual_time(main())


def test_a_role_that_may_not_list_consumers_learns_of_the_limit() -> None:
    async def main() -> None:
        world = ReadWorld()
        use_up_consumers(world)
        world.fan_out.failure_for = lambda called: AccessDeniedError("no") if called == "list" else None
        async with world.read() as chunks:
            with pytest.raises(ConfigError, match=r"limit of consumers.*retrieval='auto'"):
                await world.next_chunk(chunks)

    run_in_virtual_time(main())


def test_a_registration_that_is_throttled_is_repeated() -> None:
    """Kinesis refuses too many calls as it refuses too many consumers. The list of consumers shows the difference."""

    async def main() -> None:
        world, refused = ReadWorld(), list[str]()

        def throttle(called: str) -> Exception | None:
            if called != "register" or len(refused) == 12:
                return None
            refused.append(called)
            return ThrottledError("too many requests")

        world.fan_out.failure_for = throttle
        world.put(1)
        async with world.read() as chunks:
            await world.take(chunks, 1)
        assert len(refused) == 12

    run_in_virtual_time(main())


def test_fan_out_is_an_error_where_it_is_refused() -> None:
    """The settings demand it. The message names the cause and the remedy."""

    async def main() -> None:
        world = ReadWorld()
        use_up_consumers(world)
        async with world.read() as chunks:
            with pytest.raises(ConfigError, match=r"limit of consumers.*retrieval='auto'"):
                await world.next_chunk(chunks)

    run_in_virtual_time(main())


def test_a_configured_consumer_is_used_and_never_registered() -> None:
    async def main() -> None:
        world = ReadWorld(fan_out_settings=BY_ARN)
        async with world.read() as chunks:
            with pytest.raises(ConfigError, match="has no consumer"):
                await world.next_chunk(chunks)
        world.service.register_consumer(world.clock.wall_ms(), "orders", "given")
        world.put(1)
        async with world.read() as chunks:
            await world.take(chunks, 1)
        assert world.fan_out.times("register") == []

    run_in_virtual_time(main())
