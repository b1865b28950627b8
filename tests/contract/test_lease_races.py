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
        subprocess.Popen(command(where, operation, worker, steps), stdout=subprocess.PIPE, cwd=ROOT)
        for worker in workers
    ]
    try:
        answers = [process.communicate(timeout=DEADLINE_S)[0] for process in processes]
    finally:
        for process in processes:
            process.kill()
    assert [process.returncode for process in processes] == [0] * len(processes)
    return [json.loads(answer) for answer in answers]


async def _prepare(where: Place, *, owned: bool) -> None:
    table = LeaseTable(await filled(where.open, ()))
    lease = Lease(key=KEY, shard_id=ShardId(KEY), checkpoint=TRIM_HORIZON)
    await table.create(lease)
    if owned:
        assert isinstance(await table.take(lease, WorkerId("member"), HoldingId("hold")), Lease)
    await table.close()


@pytest.mark.slow
@pytest.mark.parametrize("kind", SHARED)
def test_two_processes_race_for_a_lease_a_thousand_times(
    kind: str, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    """Each of a thousand takings has exactly one winner, and the two did meet."""
    where = place(request, kind, tmp_path)
    asyncio.run(_prepare(where, owned=False))
    results = _race(where, "take", ["worker-a", "worker-b"], 1000)
    won = sorted(step for result in results for step in result["won"])
    assert won == list(range(1000))
    assert sum(len(result["lost"]) for result in results) > 0


@pytest.mark.slow
@pytest.mark.parametrize("kind", SHARED)
def test_tasks_that_cut_a_batch_differently_agree_on_one_pin(
    kind: str, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    """Of several processes that pin the same batch with different ends, one wins; the batches form one chain."""
    where = place(request, kind, tmp_path)
    asyncio.run(_prepare(where, owned=True))
    results = _race(where, "pin", ["task-a", "task-b", "task-c"], 600)
    batches = sorted(tuple(step) for result in results for step in result["won"])
    assert batches[0][0] == 0
    assert all(before[1] == after[0] for before, after in pairwise(batches))
    assert sum(len(result["lost"]) for result in results) > 0
