"""Simulated processes: kills and pauses."""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

from leasehold.core.model import WorkerId
from leasehold.simulation.environment.process import ProcessState, SimulatedLoop, SimulatedProcess


def _run(scenario: Callable[[SimulatedLoop], Coroutine[Any, Any, None]]) -> None:
    loop = SimulatedLoop()
    try:
        loop.run_until_complete(scenario(loop))
    finally:
        loop.close()


def test_a_killed_process_has_no_more_effects() -> None:
    """Not even a `finally` block of it runs."""
    cleanups: list[str] = []

    async def main() -> None:
        try:
            await asyncio.sleep(10)
        finally:
            cleanups.append("ran")

    async def scenario(loop: SimulatedLoop) -> None:
        process = SimulatedProcess("p", WorkerId("w"), loop)
        process.start(main)
        await asyncio.sleep(1)
        process.kill()
        await asyncio.sleep(100)
        assert cleanups == []
        assert process.state is ProcessState.DEAD
        loop.kill_all([process])

    _run(scenario)


def test_a_paused_process_continues_when_resumed() -> None:
    """It wakes up late and loses nothing."""
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


def test_a_process_can_be_killed_at_any_step() -> None:
    """It is killed after exactly `steps_left` steps."""
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


def test_a_kill_does_not_affect_other_processes() -> None:
    """The other process keeps running."""
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
