"""The archive handler writes every record of a stream exactly once."""

import asyncio
from collections.abc import AsyncGenerator, Sequence
from typing import Any

import pytest

from leasehold.adapters.memory.faults import StoreFault
from leasehold.adapters.memory.objects import MemoryObjects
from leasehold.archive.settings import ArchiveSettings
from leasehold.core.events import ShardEnded
from leasehold.core.exactly_once.object_keys import key_from_text
from leasehold.core.model import Lease
from leasehold.core.position import SHARD_END
from leasehold.errors import ConfigError
from leasehold.ports import Created, Exists, StoredObject
from leasehold.simulation.virtual_time import run_in_virtual_time
from leasehold.testing import consume
from leasehold.worker.archive_handler import ALWAYS, archive_batches, archive_handler, to_archive_table
from leasehold.worker.consumer import Consumer
from tests.unit.archive.archive_world import (
    archive_on,
    keys_in,
    numbers_in,
    with_faults,
    write_with_outdated_listing,
)
from tests.unit.worker.worker_world import WorkerWorld


def options(**more: Any) -> dict[str, Any]:
    return {**ALWAYS, "max_wait": "1s", **more}


@pytest.mark.parametrize("checkpoint", ["automatic", "manual"])
def test_every_record_is_archived_and_checkpointed(checkpoint: str) -> None:
    """The checkpoint follows the objects, to the end of the shards, also if only the handler moves it."""
    store = MemoryObjects()
    consumer = Consumer(stream="orders", application="archive")
    consumer.batch(**options(max_records=10, checkpoint=checkpoint))(
        archive_handler(lambda: archive_on(store))
    )
    run = consume(consumer, [b"record %d" % number for number in range(100)], shards=2, end_shards=True)
    assert run.is_done
    assert len(numbers_in(store)) == len(set(numbers_in(store))) == 100


def test_the_next_owner_writes_the_pinned_range_again() -> None:
    """After a crash between pin and checkpoint the next owner writes the same objects, although more records came."""
    store = MemoryObjects()
    left: list[Any] = []

    async def scenario() -> None:
        world = WorkerWorld()

        async def pin_and_hang(batch: Any) -> None:
            await batch.prepare()
            left.append(
                (batch.shard, batch.session, to_archive_table(batch.records, batch.stream, batch.shard))
            )
            await asyncio.Event().wait()

        world.put("a", "b")
        first = world.start(pin_and_hang, **options())
        await world.until(lambda: bool(left))
        first.task.cancel()
        world.put("c", "d", "e")  # a batch with new bounds would contain them
        second = world.start(archive_handler(lambda: archive_on(store)), **options())
        await world.until(lambda: len(numbers_in(store)) == 5)
        await second.stop_and_wait()
        assert await world.checkpoint() == "e"
        await write_with_outdated_listing(store, *left[0])

    run_in_virtual_time(scenario())
    assert len(numbers_in(store)) == 5
    assert len(keys_in(store)) == 2


class WatchedObjects(MemoryObjects):
    """Records the lease at each call that concerns the objects of the archive."""

    def __init__(self, world: WorkerWorld) -> None:
        super().__init__()
        self._world = world
        self.leases: dict[str, list[Lease]] = {"list": [], "put": []}

    async def put_if_absent(self, key: str, body: bytes) -> Created | Exists:
        if key_from_text(key):
            self.leases["put"].append(await self._world.lease())
        return await super().put_if_absent(key, body)

    async def list_after(
        self, offset: str, *, prefix: str = ""
    ) -> AsyncGenerator[Sequence[StoredObject], None]:
        self.leases["list"].append(await self._world.lease())
        async for page in super().list_after(offset, prefix=prefix):
            yield page


def test_a_batch_is_pinned_before_the_archive_is_listed_or_written() -> None:
    """And it is checkpointed only after it was written."""

    async def scenario() -> None:
        world = WorkerWorld()
        store = WatchedObjects(world)
        world.put("a", "b")
        worker = world.start(archive_handler(lambda: archive_on(store)), **options())
        await world.until(lambda: len(numbers_in(store)) == 2)
        world.put("c")
        await world.until(lambda: len(numbers_in(store)) == 3)
        await worker.stop_and_wait()
        pinned = [(lease.pin and lease.pin.end.sequence_number) for lease in store.leases["put"]]
        assert pinned == [world.sequence_numbers[b"b"], world.sequence_numbers[b"c"]]
        assert [lease.pin for lease in store.leases["list"]] == [store.leases["put"][0].pin]
        assert [lease.checkpoint.sequence_number for lease in store.leases["put"]] == [
            "TRIM_HORIZON",
            world.sequence_numbers[b"b"],
        ]
        assert await world.checkpoint() == "c"
        assert (await world.lease()).pin is None

    run_in_virtual_time(scenario())


def test_a_worker_that_lost_the_lease_writes_nothing() -> None:
    """Another member has taken the lease by the time of the pin, so the pin is refused."""

    async def scenario() -> None:
        world = WorkerWorld()
        store = WatchedObjects(world)
        archive = archive_handler(lambda: archive_on(store))
        calls: list[str] = []

        async def lose_and_archive(batch: Any) -> None:
            await world.steal_lease()
            calls.append("began")
            try:
                await archive(batch)
            finally:
                calls.append("ended")

        world.put("a", "b")
        worker = world.start(lose_and_archive, **options())
        await world.until(lambda: "ended" in calls)
        await worker.stop_and_wait()
        assert (store.objects, store.leases["list"]) == ({}, [])

    run_in_virtual_time(scenario())


def test_an_empty_last_batch_writes_no_object() -> None:
    """With manual checkpoints the handler gets it if the shard ends without further records."""

    async def scenario() -> None:
        world = WorkerWorld()
        store = WatchedObjects(world)
        world.put("a")
        worker = world.start(archive_handler(lambda: archive_on(store)), **options(checkpoint="manual"))
        await world.until(lambda: len(numbers_in(store)) == 1)
        world.split()
        await world.until(lambda: bool(worker.events_of(ShardEnded)))
        await worker.stop_and_wait()
        assert (await world.lease()).checkpoint == SHARD_END
        assert len(keys_in(store)) == 1

    run_in_virtual_time(scenario())


def test_each_lease_session_lists_the_archive() -> None:
    """The same process gets the lease again. Another owner may have written in between."""

    async def scenario() -> None:
        world = WorkerWorld()
        store = WatchedObjects(world)
        archive = archive_handler(lambda: archive_on(store))
        for count, data in enumerate(("a", "b"), 1):
            world.put(data)
            worker = world.start(archive, **options())
            await world.until(lambda: len(numbers_in(store)) == count)  # noqa: B023 - awaited here
            await worker.stop_and_wait()
        assert len(store.leases["list"]) == 2

    run_in_virtual_time(scenario())


def test_the_archive_is_listed_once_for_many_batches() -> None:
    """The archive is opened once, and remembers the listing of the session."""

    async def scenario() -> None:
        world = WorkerWorld()
        store = WatchedObjects(world)
        worker = world.start(archive_handler(lambda: archive_on(store)), **options(max_records=2))
        for count in range(1, 5):
            world.put(count)
            await world.until(lambda: len(numbers_in(store)) == count)  # noqa: B023 - awaited here
        await worker.stop_and_wait()
        assert (len(store.leases["list"]), len(store.leases["put"])) == (1, 4)

    run_in_virtual_time(scenario())


def test_an_unavailable_store_makes_the_shard_wait() -> None:
    """The whole range is retried until it is written, and is never bisected."""
    store = MemoryObjects()
    away: dict[str, list[StoreFault | None]] = {"put": [None, *[StoreFault.REQUEST_LOST] * 50, *[None] * 100]}
    consumer = Consumer(stream="orders", application="archive")
    archive = archive_on(with_faults(store, away))
    consumer.batch(**options())(archive_handler(lambda: archive))
    run = consume(consumer, [b"one", b"two", b"three"])
    assert run.is_done
    assert len(numbers_in(store)) == 3
    assert len(keys_in(store)) == 1


def test_an_archive_holds_one_stream(tmp_path: Any) -> None:
    """The shards of two streams have the same ids, so their objects would collide."""
    consumer = Consumer(streams=["orders", "returns"], application="archive")
    with pytest.raises(ConfigError, match="an archive holds one stream"):
        archive_batches(consumer, ArchiveSettings(url=str(tmp_path)))


def test_a_worker_does_not_divide_its_records(tmp_path: Any) -> None:
    """Columns are computed in Spark only. The setting must not be ignored."""
    consumer = Consumer(stream="orders", application="archive")
    with pytest.raises(ConfigError, match="columns that Spark computes"):
        archive_batches(consumer, ArchiveSettings(url=str(tmp_path), partition_column="region"))


def test_a_handler_refuses_a_second_stream() -> None:
    """Also if one handler is registered with two consumers."""
    store, errors = MemoryObjects(), list[str]()
    archive = archive_handler(lambda: archive_on(store))

    async def archive_or_refuse(batch: Any) -> None:
        try:
            await archive(batch)
        except ConfigError as error:
            errors.append(str(error))

    for stream in ("orders", "returns"):
        consumer = Consumer(stream=stream, application="archive")
        consumer.batch(**options())(archive_or_refuse)
        consume(consumer, [b"one", b"two"])
    assert len(numbers_in(store)) == 2
    assert errors
    assert all(error.startswith("an archive holds one stream") for error in errors)


def test_archive_batches_keeps_the_options_that_protect_a_range(tmp_path: Any) -> None:
    """Batch limits can be chosen. Options that would split a range are overridden."""
    consumer = Consumer(stream="orders", application="archive")
    archive_batches(consumer, ArchiveSettings(url=str(tmp_path)), max_records=7, bisect=True)
    handling = consumer._handling
    assert (handling.batch.max_records, handling.errors.bisect) == (7, False)
    run = consume(consumer, [b"x"] * 20)
    assert run.is_done
    assert len(list(tmp_path.rglob("*.parquet"))) >= 3
