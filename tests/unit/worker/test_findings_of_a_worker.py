"""What a worker finds out about its own shards while its handler hangs or fails."""

import asyncio
import re

import pytest

from leasehold.core.events import BatchHandled, FindingBegan, FindingsReviewed
from leasehold.simulation.virtual_time import run_in_virtual_time
from leasehold.worker.batch import Batch
from tests.unit.worker.worker_world import RecordingHandler, WorkerWorld


@pytest.mark.parametrize("fails", [False, True])
def test_a_shard_that_stands_still_has_a_finding_with_its_cause_and_no_other(*, fails: bool) -> None:
    """Its lag grows, but no faster handler and no other worker would change that."""

    async def scenario() -> None:
        world, may_end = WorkerWorld(), asyncio.Event()

        async def handle(batch: Batch) -> None:
            if b"poison" not in [record.data for record in batch]:
                return
            if fails:
                raise ValueError("cannot read this")
            await may_end.wait()

        world.put("good", "poison")
        await world.clock.sleep_ms(90_000)
        worker = world.start(handle, initial_position="trim_horizon", max_records=1, bisect=False)
        await world.until(lambda: bool(worker.events_of(BatchHandled)), within_s=120)
        for _ in range(40):
            world.put("more")
            await world.clock.sleep_ms(15_000)
        began = {event.finding.code for event in worker.events_of(FindingBegan)}
        assert began == ({"handler_fails", "no_progress"} if fails else {"no_progress"})
        may_end.set()
        await worker.stop_and_wait()

    run_in_virtual_time(scenario())


def test_both_findings_about_a_record_that_fails_count_the_same_failures() -> None:
    """Before bisection has found the record, the handler fails on larger parts of the batch."""

    async def scenario() -> None:
        world = WorkerWorld()
        world.put(*range(100))
        worker = world.start(RecordingHandler("57"), initial_position="trim_horizon")
        await world.until(
            lambda: any(event.finding.code == "no_progress" for event in worker.events_of(FindingBegan)),
            within_s=900,
        )
        texts = {each.code: each.text for each in worker.events_of(FindingsReviewed)[-1].findings}
        counts = [re.findall("([0-9]+) times", texts[code]) for code in ("handler_fails", "no_progress")]
        assert counts[0] == counts[1] != []
        assert "the first of them does not get done" in texts["no_progress"]
        await worker.stop_and_wait()

    run_in_virtual_time(scenario())
