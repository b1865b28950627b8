"""The queue between a reader and its consumer: pages without records do not wake a consumer that skips them."""

import asyncio
from collections.abc import Awaitable, Callable

from leasehold.fleet.reading.byte_budget import BudgetShare, ByteBudget
from leasehold.fleet.reading.chunking import ReadChunk
from leasehold.fleet.reading.read_ahead import ReadAhead


def page(millis_behind: int) -> ReadChunk:
    return ReadChunk((), 0, millis_behind, None, None)


class Skipper:
    """Skips the pages at the tip, and remembers which pages it was asked about."""

    def __init__(self) -> None:
        self.asked: list[ReadChunk] = []

    def skip(self, chunk: ReadChunk) -> bool:
        self.asked.append(chunk)
        return chunk.millis_behind == 0


def run(use: Callable[[ReadAhead, Skipper], Awaitable[None]]) -> None:
    async def main() -> None:
        chunks, skipper = ReadAhead(BudgetShare(ByteBudget(1_000))), Skipper()
        chunks.skip_pages(skipper.skip)
        await use(chunks, skipper)

    asyncio.run(main())


def test_a_waiting_consumer_gets_only_the_pages_that_it_does_not_skip() -> None:
    """A skipped page leaves no trace in the queue."""

    async def use(chunks: ReadAhead, skipper: Skipper) -> None:
        waiting = asyncio.create_task(anext(chunks))
        await asyncio.sleep(0)
        for _ in range(100):  # more than fit into the queue
            await chunks.put_empty_page(page(0))
        await asyncio.sleep(0)
        assert not waiting.done()
        await chunks.put_empty_page(page(5))
        assert await waiting == page(5)
        assert len(skipper.asked) == 101

    run(use)


def test_a_busy_consumer_gets_every_page() -> None:
    """It has not handled earlier chunks yet, so it cannot say whether a page is new."""

    async def use(chunks: ReadAhead, skipper: Skipper) -> None:
        await chunks.put_empty_page(page(0))
        waiting = asyncio.create_task(anext(chunks))
        await asyncio.sleep(0)
        await chunks.put_empty_page(page(0))
        assert await waiting == page(0)
        assert await anext(chunks) == page(0)
        assert not skipper.asked

    run(use)


def test_a_chunk_on_its_way_to_the_consumer_keeps_the_order() -> None:
    """The page after it waits in the queue."""

    async def use(chunks: ReadAhead, skipper: Skipper) -> None:
        waiting = asyncio.create_task(anext(chunks))
        await asyncio.sleep(0)
        await chunks.put(page(7))
        await chunks.put_empty_page(page(0))
        assert await waiting == page(7)
        assert await anext(chunks) == page(0)
        assert not skipper.asked

    run(use)
