"""Races between real processes: exactly one winner a step, on every table that processes can share."""

import asyncio
import json
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from leasehold.core.model import Lease, LeaseSessionId, ShardId, WorkerId
from leasehold.core.position import TRIM_HORIZON
from leasehold.fleet.table.lease_table import LeaseTable
from tests.contract.lease_stores import SHARED, TableLocation, filled, place
from tests.contract.racer import KEY, command

ROOT = Path(__file__).parent.parent.parent

Racers = list["subprocess.Popen[str]"]


@contextmanager
def _racing(where: TableLocation, operation: str, workers: list[str]) -> Iterator[Racers]:
    processes = [
        subprocess.Popen(
            command(where, operation, worker),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            cwd=ROOT,
            text=True,
        )
        for worker in workers
    ]
    try:
        yield processes
        for process in processes:
            process.communicate(timeout=60)
        assert [process.returncode for process in processes] == [0] * len(processes)
    finally:
        for process in processes:
            process.kill()
            process.wait()
            for pipe in (process.stdin, process.stdout):
                assert pipe is not None
                pipe.close()


def _tell(racers: Racers, word: str) -> list[str]:
    """Tell all of them at once, then hear all of them."""
    for racer in racers:
        assert racer.stdin is not None
        racer.stdin.write(f"{word}\n")
        racer.stdin.flush()
    return [racer.stdout.readline() if racer.stdout else "" for racer in racers]


def _step(racers: Racers) -> list[dict[str, Any]]:
    """One race: all look, then all write."""
    assert set(_tell(racers, "read")) == {"seen\n"}
    return [json.loads(answer) for answer in _tell(racers, "go")]


async def _prepare(where: TableLocation, *, owned: bool) -> None:
    table = LeaseTable(await filled(where.open, ()))
    lease = Lease(key=KEY, shard_id=ShardId(KEY), checkpoint=TRIM_HORIZON)
    await table.create(lease)
    if owned:
        assert isinstance(await table.take(lease, WorkerId("member"), LeaseSessionId("hold")), Lease)
    await table.close()


@pytest.mark.slow
@pytest.mark.parametrize(
    "workers", [["worker-a", "worker-b"], ["twin", "twin"]], ids=["two workers", "one id twice"]
)
@pytest.mark.parametrize("kind", SHARED)
def test_two_processes_race_for_a_lease_a_thousand_times(
    kind: str, workers: list[str], request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    """Each of a thousand races has exactly one winner, also when both processes go by the same worker id."""
    where = place(request, kind, tmp_path)
    asyncio.run(_prepare(where, owned=False))
    with _racing(where, "take", workers) as racers:
        for step in range(1, 1001):
            results = _step(racers)
            assert sorted(result["won"] for result in results) == [False, True]
            assert [result["counter"] for result in results] == [step, step]
            assert len({result["holding"] for result in results}) == 1


@pytest.mark.slow
@pytest.mark.parametrize("kind", SHARED)
def test_tasks_that_cut_a_batch_differently_agree_on_one_pin(
    kind: str, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    """Of several processes that pin the same batch with different ends, one wins, and the others see its end."""
    where = place(request, kind, tmp_path)
    asyncio.run(_prepare(where, owned=True))
    with _racing(where, "pin", ["task", "task-2", "task-no-3"]) as racers:
        for _ in range(300):
            results = _step(racers)
            assert sorted(result["won"] for result in results) == [False, False, True]
            assert len({result["end"] for result in results}) == 1
