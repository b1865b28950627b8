"""Lease writes whose request or response is lost, and writes of a previous owner."""

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import replace
from pathlib import Path

import pytest

from leasehold.adapters.aws.dynamodb_rows import DynamoDbRows
from leasehold.adapters.memory.faults import FaultyRows, StoreFault
from leasehold.core.model import (
    Lease,
)
from leasehold.core.position import Position
from leasehold.errors import (
    ThrottledError,
    UnavailableError,
)
from leasehold.fleet.table.lease_table import Contended, LeaseTable
from leasehold.fleet.table.write_and_confirm import WRITE_ATTEMPTS_MAX
from tests.contract.lease_samples import S1, S2, A, B, applied_lease, new_lease, with_child
from tests.contract.lease_stores import TableLocation, create_filled
from tests.proxy import run_proxy
from tests.servers import Server


def once(operation: str, fault: StoreFault, times: int = 1) -> Callable[[str, str], StoreFault | None]:
    """Faults for the first calls of an operation."""
    left = [times]

    def fault_for(called: str, _key: str) -> StoreFault | None:
        if called != operation or left[0] == 0:
            return None
        left[0] -= 1
        return fault

    return fault_for


async def open_faulty(
    location: TableLocation, fault_for: Callable[[str, str], StoreFault | None]
) -> tuple[LeaseTable, LeaseTable]:
    """A table with one free lease, and the same table with faults."""
    store = await create_filled(location.open, ())
    table = LeaseTable(store)
    await table.create(new_lease(1))
    return table, LeaseTable(FaultyRows(store, fault_for))


@pytest.mark.parametrize("fault", [StoreFault.RESPONSE_LOST, StoreFault.REQUEST_LOST])
def test_a_write_without_a_response_is_confirmed(location: TableLocation, fault: StoreFault) -> None:
    """Whether the request or the response was lost, the caller gets the lease, and the counter increased once per
    write.
    """

    async def scenario() -> None:
        _, after_take = await open_faulty(location, once("write", fault))
        lease = applied_lease(await after_take.take(new_lease(1), A, S1))
        store = after_take._rows
        moves: tuple[Callable[[LeaseTable, Lease], Awaitable[Lease | Contended]], ...] = (
            lambda table, lease: table.renew(lease),
            lambda table, lease: table.checkpoint(lease, Position("100")),
            lambda table, lease: table.prepare_checkpoint(lease, Position("150"), b"note"),
            lambda table, lease: table.checkpoint(lease, Position("150")),
            lambda table, lease: table.pin(lease, Position("200")),
            lambda table, lease: table.repin(lease, b"ours"),
            lambda table, lease: table.promote(lease),
            lambda table, lease: table.stamp(lease, ("00c0ffee", 3)),
            lambda table, lease: table.request_handoff(lease, B),
            lambda table, lease: table.renew(lease),
            lambda table, lease: table.complete_handoff(lease),
            lambda table, lease: table.begin_session(lease, B, S2),
            lambda table, lease: table.finish(lease, with_child(2)),
            lambda table, lease: table.release(lease),
        )
        for move in moves:
            before = lease
            lease = applied_lease(await move(LeaseTable(FaultyRows(store, once("write", fault))), lease))
            assert lease.counter == before.counter + (
                0 if lease.checkpoint_owner and not before.checkpoint_owner else 1
            )
            assert await LeaseTable(store).get(lease.key) == lease
        assert await LeaseTable(store).get(new_lease(2).key) == new_lease(2)
        deleting = LeaseTable(FaultyRows(store, once("write", fault)))
        assert await deleting.delete(lease)
        assert await deleting.get(lease.key) is None
        await after_take.close()

    asyncio.run(scenario())


def test_a_lost_request_does_not_hide_a_lost_race(location: TableLocation) -> None:
    """If another member took the lease in between, the result is Contended."""

    async def scenario() -> None:
        table, _ = await open_faulty(location, lambda *_: None)
        seen = new_lease(1)
        winner = applied_lease(await table.take(seen, B, S2))
        loser = LeaseTable(FaultyRows(table._rows, once("write", StoreFault.REQUEST_LOST)))
        assert await loser.take(seen, A, S1) == Contended(winner)
        await table.close()

    asyncio.run(scenario())


def test_a_lasting_failure_is_raised(location: TableLocation) -> None:
    """After a few attempts, and nothing was written."""

    async def scenario() -> None:
        silent = once("write", StoreFault.REQUEST_LOST, times=WRITE_ATTEMPTS_MAX)
        table, behind = await open_faulty(location, silent)
        with pytest.raises(UnavailableError):
            await behind.take(new_lease(1), A, S1)
        assert await table.get(new_lease(1).key) == new_lease(1)
        await table.close()

    asyncio.run(scenario())


def test_throttling_is_raised_at_once(location: TableLocation) -> None:
    """A throttled write was not applied; the caller decides when to retry."""

    async def scenario() -> None:
        table, behind = await open_faulty(location, once("write", StoreFault.THROTTLED))
        with pytest.raises(ThrottledError):
            await behind.take(new_lease(1), A, S1)
        assert await table.get(new_lease(1).key) == new_lease(1)
        await table.close()

    asyncio.run(scenario())


def test_a_connection_cut_before_the_response_is_handled(on_server: TableLocation, tmp_path: Path) -> None:
    """On a real connection: the server applied the write, the connection was cut, boto3 retried, and the lease is
    ours.
    """

    async def scenario() -> None:
        direct = LeaseTable(await create_filled(on_server.open, ()))
        await direct.create(new_lease(1))
        with run_proxy(on_server.url) as proxy:
            client = Server(on_server.kind, proxy.url, tmp_path).client("dynamodb")
            behind = LeaseTable(DynamoDbRows(client, on_server.table))
            lease = applied_lease(await behind.take(new_lease(1), A, S1))
            for step in range(1, 6):
                proxy.responses_to_cut = 1
                lease = applied_lease(await behind.checkpoint(lease, Position(str(step * 100))))
                assert lease.counter == step + 1
            assert proxy.injected == 5
            await behind.close()
        assert await direct.get(lease.key) == lease
        await direct.close()

    asyncio.run(scenario())


def test_every_write_of_a_previous_owner_is_refused(location: TableLocation) -> None:
    """The row keeps the values of the new owner."""

    async def scenario() -> None:
        table = LeaseTable(await create_filled(location.open, ()))
        await table.create(new_lease(1))
        zombie = applied_lease(await table.take(new_lease(1), A, S1))
        owner = applied_lease(await table.take(zombie, B, S2))
        owner = applied_lease(await table.checkpoint(owner, Position("500")))
        # Even if it knows the counter from a scan, its session id is outdated.
        for stale in (zombie, replace(zombie, counter=owner.counter)):
            for write in _owner_writes(table, stale):
                assert await write() == Contended(owner)
        assert await table.get(owner.key) == owner
        assert await table.get(new_lease(2).key) is None
        await table.close()

    asyncio.run(scenario())


def _owner_writes(table: LeaseTable, lease: Lease) -> Iterable[Callable[[], Awaitable[object]]]:
    pinned = replace(lease, pin=None)
    return (
        lambda: table.renew(lease),
        lambda: table.checkpoint(lease, Position("900")),
        lambda: table.prepare_checkpoint(lease, Position("900")),
        lambda: table.pin(pinned, Position("900")),
        lambda: table.finish(lease, with_child(2)),
        lambda: table.release(lease),
    )
