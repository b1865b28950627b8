"""Races between real processes: exactly one winner per round, on every store that processes can share."""

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
from tests.contract.lease_stores import SHARED, TableLocation, create_filled, new_location
from tests.contract.racer import KEY, command

ROOT = Path(__file__).parent.parent.parent
# On a busy machine a round takes a second or more.
pytestmark = [pytest.mark.slow, pytest.mark.timeout(3_000)]

Racers = list["subprocess.Popen[str]"]


@contextmanager
def _start_racers(location: TableLocation, operation: str, workers: list[str]) -> Iterator[Racers]:
    processes = [
        subprocess.Popen(
            command(location, operation, worker),
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
            process.communicate(timeout=300)
        assert [process.returncode for process in processes] == [0] * len(processes)
    finally:
        for process in processes:
            process.kill()
            process.wait()
            for pipe in (process.stdin, process.stdout):
                assert pipe is not None
                pipe.close()


def _send_all(racers: Racers, command_name: str) -> list[str]:
    """Send a command to all racers, then read all their responses."""
    for racer in racers:
        assert racer.stdin is not None
        racer.stdin.write(f"{command_name}\n")
        racer.stdin.flush()
    return [racer.stdout.readline() if racer.stdout else "" for racer in racers]


def _race_once(racers: Racers) -> list[dict[str, Any]]:
    """One round: all racers read, then all write."""
    assert set(_send_all(racers, "read")) == {"seen\n"}
    return [json.loads(line) for line in _send_all(racers, "go")]


async def _prepare(location: TableLocation, *, owned: bool) -> None:
    table = LeaseTable(await create_filled(location.open, ()))
    lease = Lease(key=KEY, shard_id=ShardId(KEY), checkpoint=TRIM_HORIZON)
    await table.create(lease)
    if owned:
        assert isinstance(await table.take(lease, WorkerId("member"), LeaseSessionId("hold")), Lease)
    await table.close()


@pytest.mark.parametrize(
    "workers", [["worker-a", "worker-b"], ["twin", "twin"]], ids=["two workers", "one id twice"]
)
@pytest.mark.parametrize("kind", SHARED)
def test_each_of_a_thousand_races_has_one_winner(
    kind: str, workers: list[str], request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    """Also when both processes use the same worker id."""
    location = new_location(request, kind, tmp_path)
    asyncio.run(_prepare(location, owned=False))
    with _start_racers(location, "take", workers) as racers:
        for step in range(1, 1001):
            results = _race_once(racers)
            assert sorted(result["won"] for result in results) == [False, True]
            assert [result["counter"] for result in results] == [step, step]
            assert len({result["session"] for result in results}) == 1


@pytest.mark.parametrize("kind", SHARED)
def test_tasks_with_different_ends_agree_on_one_pin(
    kind: str, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    """Of several processes that pin the same batch with different ends, one wins, and the others see its end."""
    location = new_location(request, kind, tmp_path)
    asyncio.run(_prepare(location, owned=True))
    with _start_racers(location, "pin", ["task", "task-2", "task-no-3"]) as racers:
        for _ in range(300):
            results = _race_once(racers)
            assert sorted(result["won"] for result in results) == [False, False, True]
            assert len({result["end"] for result in results}) == 1
