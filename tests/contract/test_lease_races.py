"""Races between real processes: exactly one winner a step, on every table that processes can share."""

import asyncio
import json
import subprocess
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from leasehold.core.model import HoldingId, Lease, ShardId, WorkerId
from leasehold.core.position import TRIM_HORIZON
from leasehold.fleet.lease_table import LeaseTable
from tests.contract.lease_stores import SHARED, Place, filled, place
from tests.contract.racer import KEY, command

ROOT = Path(__file__).parent.parent.parent
DEADLINE_S = 300


def _race(where: Place, operation: str, workers: list[str], steps: int) -> list[dict[str, list[Any]]]:
    processes = [
        subprocess.Popen(
            command(where, operation, worker, steps),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            cwd=ROOT,
            text=True,
        )
        for worker in workers
    ]
    try:
        for process in processes:
            assert process.stdout is not None
            assert process.stdout.readline() == "ready\n"
        for process in processes:
            assert process.stdin is not None
            process.stdin.write("go\n")
            process.stdin.flush()
        answers = [process.communicate(timeout=DEADLINE_S)[0] for process in processes]
    finally:
        for process in processes:
            process.kill()
    assert [process.returncode for process in processes] == [0] * len(processes)
    return [json.loads(answer) for answer in answers]


def _contested(results: list[dict[str, list[Any]]]) -> int:
    """At how many steps at least two processes met: someone won it, and someone else tried and lost."""
    return len({json.dumps(_step(lost)) for result in results for lost in result["lost"]})


def _step(tried: Any) -> Any:
    return tried[0] if isinstance(tried, list) else tried


async def _prepare(where: Place, *, owned: bool) -> None:
    table = LeaseTable(await filled(where.open, ()))
    lease = Lease(key=KEY, shard_id=ShardId(KEY), checkpoint=TRIM_HORIZON)
    await table.create(lease)
    if owned:
        assert isinstance(await table.take(lease, WorkerId("member"), HoldingId("hold")), Lease)
    await table.close()


@pytest.mark.slow
@pytest.mark.parametrize(
    "workers", [["worker-a", "worker-b"], ["twin", "twin"]], ids=["two workers", "one id twice"]
)
@pytest.mark.parametrize("kind", SHARED)
def test_two_processes_race_for_a_lease_a_thousand_times(
    kind: str, workers: list[str], request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    """Each of a thousand takings has exactly one winner, also when both processes go by the same worker id."""
    where = place(request, kind, tmp_path)
    asyncio.run(_prepare(where, owned=False))
    results = _race(where, "take", workers, 1000)
    won = sorted(step for result in results for step in result["won"])
    assert won == list(range(1000))
    assert _contested(results) > 10


@pytest.mark.slow
@pytest.mark.parametrize("kind", SHARED)
def test_tasks_that_cut_a_batch_differently_agree_on_one_pin(
    kind: str, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    """Of several processes that pin the same batch with different ends, one wins; the batches form one chain."""
    where = place(request, kind, tmp_path)
    asyncio.run(_prepare(where, owned=True))
    results = _race(where, "pin", ["task-a", "task-b", "task-c"], 2000)
    batches = sorted(tuple(step) for result in results for step in result["won"])
    assert batches[0][0] == 0
    assert all(before[1] == after[0] for before, after in pairwise(batches))
    assert _contested(results) > 10
