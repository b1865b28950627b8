"""Concurrent calls: results in order, and no task outlives the call that created it."""

import ast
import asyncio
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest

from leasehold.simulation.virtual_time import run_in_virtual_time
from leasehold.tasks import all_of, cancel_and_wait, first_of

SOURCE = Path(__file__).parent.parent.parent / "src" / "leasehold"
MODULES = {str(path.relative_to(SOURCE)): path for path in sorted(SOURCE.rglob("*.py"))}
# Each module that creates tasks itself, and what ends them.
CREATES_TASKS = {
    "adapters/aws/call_counts.py": "`report_calls` ends its task",
    "adapters/metric_flushing.py": "`flush_in_background` ends its task",
    "archive/compaction.py": "`compact` ends the renewal of its lock",
    "archive/shard_rows.py": "`_read_ahead` ends its reads",
    "cli/steering.py": "the command awaits its task",
    "dashboard/server.py": "`run` ends its task",
    "fleet/held_leases.py": "the task group of the member; `_run` ends the task that serves",
    "fleet/heartbeat_loop.py": "the task group of the member",
    "fleet/member.py": "the task group of the member",
    "fleet/reading/shard_reader.py": "`read_shard` ends its task",
    "fleet/reading/subscription_reader.py": "`_next_event` ends its tasks",
    "local/fan_out.py": "`subscribe_to_shard` ends its tasks",
    "local/http2.py": "a request ends with its connection",
    "local/server.py": "`_run` ends its task",
    "multilang/child_client.py": "the end of a child ends its action; `close` ends the ends",
    "multilang/child_process.py": "`end` ends its tasks",
    "multilang/conversation.py": "`perform` ends its tasks",
    "simulation/compacting.py": "`_repeat` ends its tasks",
    "simulation/environment/process.py": "the process ends its tasks",
    "simulation/producing.py": "the run ends its tasks",
    "simulation/simulate.py": "the run ends its tasks",
    "simulation/spark/driver.py": "`_unless_stopped` ends its tasks",
    "simulation/spark/executor.py": "the window of fetches ends its tasks",
    "simulation/spark/reader.py": "`_main` ends its tasks",
    "spark/query/lease_server.py": "`serve` and `_wait` end their tasks",
    "spark/query/query_member.py": "`stop` ends its task",
    "steering/lease_capture.py": "`run` ends its task",
    "steering/replay.py": "`run_replay` ends its task",
    "tasks.py": "the helpers end their tasks",
    "testing.py": "the runner of the loop ends its tasks",
    "worker/batching/batcher.py": "`close` ends its tasks",
    "worker/engine/run_worker.py": "`_run_within_grace` ends its tasks",
    "worker/processes/member_process.py": "the end of the process ends its task",
    "worker/processes/supervisor.py": "`_run_once` ends its task",
    "worker/record_handler.py": "`_watch` ends its tasks",
    "worker/shard_iteration.py": "a request for a batch ends with the lease session",
    "worker/user_code/engine_calls.py": "the caller awaits the task",
    "worker/user_code/handler_runners.py": "user code ends by itself",
}


class Step:
    """A coroutine function that records how its calls end."""

    def __init__(self) -> None:
        self.ended: list[str] = []

    async def run(self, name: str, *, seconds: float, error: Exception | None = None) -> str:
        try:
            await asyncio.sleep(seconds)
            if error is not None:
                raise error
        except asyncio.CancelledError:
            await asyncio.sleep(1)  # the end of a cancelled call takes some time
            self.ended.append(f"{name} cancelled")
            raise
        self.ended.append(name)
        return name


def other_tasks() -> set[asyncio.Task[Any]]:
    return asyncio.all_tasks() - {task for task in [asyncio.current_task()] if task}


def test_results_are_in_the_order_of_the_arguments() -> None:
    """The slowest call comes first."""
    step = Step()

    async def main() -> None:
        assert await all_of(step.run("a", seconds=3), step.run("b", seconds=1)) == ["a", "b"]
        assert await all_of() == []

    run_in_virtual_time(main())
    assert step.ended == ["b", "a"]


def test_a_failed_call_ends_the_others_before_its_error_is_raised() -> None:
    """Otherwise they would go on without a caller."""
    step = Step()

    async def main() -> None:
        with pytest.raises(ValueError, match="broken"):
            await all_of(
                step.run("a", seconds=9),
                step.run("b", seconds=1, error=ValueError("broken")),
                step.run("c", seconds=1),
            )
        assert not other_tasks()

    run_in_virtual_time(main())
    assert step.ended == ["c", "a cancelled"]


@pytest.mark.parametrize("combine", [all_of, first_of])
@pytest.mark.parametrize("times", [1, 2, 3])
def test_a_cancelled_caller_ends_all_calls(
    combine: Callable[..., Coroutine[Any, Any, object]], times: int
) -> None:
    """Also if it is cancelled again while it waits for their end."""
    step = Step()

    async def main() -> None:
        caller = asyncio.ensure_future(combine(step.run("a", seconds=9), step.run("b", seconds=8)))
        await asyncio.sleep(1)
        for _ in range(times):
            caller.cancel()
            await asyncio.sleep(0.1)
        with pytest.raises(asyncio.CancelledError):
            await caller
        assert not other_tasks()

    run_in_virtual_time(main())


def test_errors_of_cancelled_tasks_are_not_raised() -> None:
    """They stay in the tasks."""

    async def main() -> None:
        task = asyncio.ensure_future(Step().run("a", seconds=0, error=ValueError("broken")))
        await asyncio.sleep(1)
        await cancel_and_wait(task)
        assert isinstance(task.exception(), ValueError)

    run_in_virtual_time(main())


def _calls(path: Path) -> set[str]:
    """The names of all called methods and functions."""
    calls = (node.func for node in ast.walk(ast.parse(path.read_text("utf-8"))) if isinstance(node, ast.Call))
    return {call.attr for call in calls if isinstance(call, ast.Attribute)}


@pytest.mark.parametrize("name", MODULES)
def test_no_module_leaves_tasks_without_an_owner(name: str) -> None:
    """`asyncio.gather` goes on after an error, so `all_of` replaces it. Every other task has an owner that ends it."""
    calls = _calls(MODULES[name])
    if name not in {"tasks.py", "loop_thread.py", "simulation/simulate.py"}:
        assert "gather" not in calls
    assert bool(calls & {"ensure_future", "create_task"}) == (name in CREATES_TASKS)
