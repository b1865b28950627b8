"""One byte budget for many readers: requests are served in their order, and none waits for ever."""

import asyncio
from collections.abc import Coroutine
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from leasehold.fleet.reading.byte_budget import BudgetShare, ByteBudget


def run(main: Coroutine[Any, Any, None]) -> None:
    asyncio.run(main)


async def turns() -> None:
    """Let every task run until it waits."""
    for _ in range(10):
        await asyncio.sleep(0)


def test_a_request_that_fits_is_granted_at_once() -> None:
    """Below the limit no request waits."""

    async def main() -> None:
        budget = ByteBudget(100)
        await budget.acquire(60)
        await budget.acquire(40)
        assert (budget.used_bytes, budget.free_bytes) == (100, 0)
        budget.release(70)
        assert (budget.used_bytes, budget.free_bytes) == (30, 70)

    run(main())


def test_requests_are_served_in_their_order() -> None:
    """A small request does not overtake a large one, which would otherwise starve."""

    async def main() -> None:
        budget = ByteBudget(100)
        served: list[str] = []

        async def acquire(name: str, size: int) -> None:
            await budget.acquire(size)
            served.append(name)

        await budget.acquire(90)
        tasks = [asyncio.create_task(acquire(*each)) for each in (("large", 80), ("small", 5), ("tiny", 1))]
        await turns()
        assert served == []
        budget.release(90)
        await turns()
        assert served == ["large", "small", "tiny"]
        assert budget.used_bytes == 86
        assert all(task.done() for task in tasks)

    run(main())


def test_a_request_above_the_limit_is_granted_when_nothing_else_is_held() -> None:
    """A request above the limit waits until all other bytes are released."""

    async def main() -> None:
        budget = ByteBudget(100)
        await budget.acquire(1)
        waiting = asyncio.create_task(budget.acquire(500))
        await turns()
        assert not waiting.done()
        budget.release(1)
        await waiting
        assert (budget.used_bytes, budget.free_bytes) == (500, 0)

    run(main())


def test_a_cancelled_request_takes_nothing_and_blocks_no_other() -> None:
    """A cancelled request leaves the queue, and the next in it is served if it fits."""

    async def main() -> None:
        budget = ByteBudget(100)
        await budget.acquire(90)
        large, small = asyncio.create_task(budget.acquire(80)), asyncio.create_task(budget.acquire(5))
        await turns()
        large.cancel()
        await turns()
        assert small.done()
        assert budget.used_bytes == 95

    run(main())


def test_a_request_cancelled_while_it_is_granted_loses_no_bytes() -> None:
    """Bytes that were granted to a cancelled request are released."""

    async def main() -> None:
        budget = ByteBudget(100)
        await budget.acquire(90)
        waiting, next_one = asyncio.create_task(budget.acquire(80)), asyncio.create_task(budget.acquire(100))
        await turns()
        budget.release(90)
        waiting.cancel()  # granted above, and not yet resumed
        await turns()
        assert waiting.cancelled()
        assert next_one.done()
        assert budget.used_bytes == 100

    run(main())


def test_a_request_cancelled_before_bytes_are_released_is_skipped() -> None:
    """A request that is cancelled in the same step of the loop in which bytes are released is skipped."""

    async def main() -> None:
        budget = ByteBudget(100)
        await budget.acquire(90)
        waiting, next_one = asyncio.create_task(budget.acquire(80)), asyncio.create_task(budget.acquire(100))
        await turns()
        waiting.cancel()
        budget.release(90)
        await turns()
        assert next_one.done()
        assert budget.used_bytes == 100

    run(main())


def test_releasing_more_than_was_taken_is_an_error() -> None:
    """Otherwise the process could hold more than its limit."""

    async def main() -> None:
        budget = ByteBudget(100)
        await budget.acquire(10)
        with pytest.raises(AssertionError):
            budget.release(11)

    run(main())


def test_a_share_releases_what_it_still_holds() -> None:
    """Bytes that were added, released or passed on before are taken into account."""

    async def main() -> None:
        budget = ByteBudget(100)
        share = BudgetShare(budget)
        await share.acquire(50)
        share.resize(50, 20)
        assert budget.used_bytes == 20
        share.resize(20, 300)
        assert budget.used_bytes == 300
        share.transfer(100)
        share.close()
        share.close()
        assert budget.used_bytes == 100

    run(main())


@given(
    sizes=st.lists(st.integers(1, 150), max_size=30),
    cancelled=st.sets(st.integers(0, 29)),
    seed=st.randoms(use_true_random=False),
)
def test_all_requests_are_served_and_all_bytes_are_released(
    sizes: list[int], cancelled: set[int], seed: Any
) -> None:
    """With any sizes and any cancellations, the others are served within the limit, and no byte stays taken."""

    async def main() -> None:
        budget = ByteBudget(100)
        held: list[int] = []

        async def acquire(size: int) -> None:
            await budget.acquire(size)
            held.append(size)
            assert budget.used_bytes <= 100 or held == [size]

        tasks = [asyncio.create_task(acquire(size)) for size in sizes]
        await asyncio.sleep(0)
        for index in cancelled & set(range(len(tasks))):
            tasks[index].cancel()
        while not all(task.done() for task in tasks):
            await asyncio.sleep(0)
            if held:
                budget.release(held.pop(seed.randrange(len(held))))
        while held:
            budget.release(held.pop())
        assert budget.used_bytes == 0

    run(main())
