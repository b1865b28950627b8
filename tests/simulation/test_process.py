"""Processes of a simulated world: what a kill and a pause mean."""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

from leasehold.core.model import WorkerId
from leasehold.simulation.process import ProcessState, SimulatedLoop, SimulatedProcess


def _run(scenario: Callable[[SimulatedLoop], Coroutine[Any, Any, None]]) -> None:
    loop = SimulatedLoop()
    try:
        loop.run_until_complete(scenario(loop))
    finally:
        loop.close()


def test_a_killed_process_does_nothing_more() -> None:
    """Not even its cleanup: no `finally` runs while the world goes on."""
    said: list[str] = []

    async def main() -> None:
        try:
            await asyncio.sleep(10)
        finally:
            said.append("cleanup")

    async def scenario(loop: SimulatedLoop) -> None:
        process = SimulatedProcess("p", WorkerId("w"), loop)
        process.start(main)
        await asyncio.sleep(1)
        process.kill()
        await asyncio.sleep(100)
        assert said == []
        assert process.state is ProcessState.DEAD
        loop.kill_all([process])

    _run(scenario)


def test_a_paused_process_goes_on_where_it_was() -> None:
    """Late, and with nothing lost."""
    woke_at: list[float] = []

    async def scenario(loop: SimulatedLoop) -> None:
        async def main() -> None:
            await asyncio.sleep(1)
            woke_at.append(loop.time())

        process = SimulatedProcess("p", WorkerId("w"), loop)
        process.start(main)
        await asyncio.sleep(0.5)
        process.pause()
        await asyncio.sleep(29.5)
        assert woke_at == []
        process.resume()
        await asyncio.sleep(1)

    _run(scenario)
    assert woke_at == [30.0]


def test_a_process_can_die_at_any_step() -> None:
    """After exactly as many steps as were ordered."""
    steps: list[int] = []

    async def main() -> None:
        for step in range(100):
            steps.append(step)
            await asyncio.sleep(0)

    async def scenario(loop: SimulatedLoop) -> None:
        process = SimulatedProcess("p", WorkerId("w"), loop)
        process.steps_left = 7
        process.start(main)
        await asyncio.sleep(10)
        loop.kill_all([process])

    _run(scenario)
    assert steps == list(range(7))


def test_other_processes_do_not_notice() -> None:
    """What belongs to one process is its own."""
    ticks: list[str] = []

    async def scenario(loop: SimulatedLoop) -> None:
        async def main(name: str) -> None:
            while True:
                ticks.append(name)
                await asyncio.sleep(1)

        first = SimulatedProcess("a", WorkerId("a"), loop)
        second = SimulatedProcess("b", WorkerId("b"), loop)
        first.start(lambda: main("a"))
        second.start(lambda: main("b"))
        await asyncio.sleep(2.5)
        first.kill()
        await asyncio.sleep(3)
        loop.kill_all([first, second])

    _run(scenario)
    assert ticks.count("a") == 3
    assert ticks.count("b") == 6
