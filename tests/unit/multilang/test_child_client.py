"""Children as real processes: they are spoken with, logged, and ended within a limited time, whatever they do."""

import asyncio
import logging
import sys
import time
from collections.abc import Awaitable, Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest

from leasehold.core.multilang.line_splitter import Line, LineSplitter
from leasehold.core.multilang.messages import (
    Action,
    ActionName,
    CheckpointRequest,
    Initialize,
    LeaseLost,
    ProcessRecords,
)
from leasehold.core.position import TRIM_HORIZON
from leasehold.core.record import UserRecord
from leasehold.errors import ProcessorEndedError
from leasehold.multilang.child_client import ChildClient, ChildSettings
from leasehold.multilang.child_output import LINES_MAX, PERIOD_S, ChildOutput
from leasehold.multilang.child_process import EndLimits, read_lines
from leasehold.multilang.conversation import ConversationSettings
from leasehold.simulation.virtual_time import run_in_virtual_time
from tests.integration.multilang.daemon_world import is_running

PROGRAMS = Path(__file__).parent / "child_programs.py"
INITIALIZE = Initialize("shardId-000000000000", TRIM_HORIZON)
SECRET = "secret-4711"
RECORDS = ProcessRecords([UserRecord(SECRET.encode(), SECRET, "100", 1)], 0)
# A child that exits by itself has much time. `IMPATIENT` is for one that does not.
LIMITS = EndLimits(exit_s=30, terminate_s=0.3, output_s=0.3)
IMPATIENT = EndLimits(exit_s=0.3, terminate_s=0.3, output_s=0.3)
# It holds also for the first action, in which a child starts.
SHORT_S = 5
LIMIT_S = 60


class Scene:
    """A client and what was asked of it."""

    def __init__(self, program: str, **options: Any) -> None:
        command = (sys.executable, "-S", str(PROGRAMS), program)
        settings = {"command": command, "limits": LIMITS, **options}
        self.checkpoints: list[tuple[CheckpointRequest, ActionName]] = []
        self.ends: list[asyncio.Task[None]] = []
        self.client = ChildClient(ChildSettings(**settings), "shard", self._execute, self._end)

    async def perform(self, *actions: Action) -> None:
        """Start the child and let it perform actions."""
        await self.client.start()
        for action in actions:
            await self.client.perform(action)

    async def end(self) -> None:
        """End the child in order."""
        self.client.end()
        await asyncio.wait_for(asyncio.gather(*self.ends), LIMIT_S)

    async def lose(self) -> None:
        """The lease is lost, or the child has failed."""
        self.client.lose()
        await asyncio.wait_for(asyncio.gather(*self.ends), LIMIT_S)

    async def _execute(self, request: CheckpointRequest, during: ActionName) -> str | None:
        self.checkpoints.append((request, during))
        return None

    def _end(self, end: Coroutine[Any, Any, None]) -> None:
        self.ends.append(asyncio.get_running_loop().create_task(end))


def run(scenario: Callable[[], Awaitable[None]]) -> None:
    async def bounded() -> None:
        await asyncio.wait_for(scenario(), LIMIT_S)

    asyncio.run(bounded())


@pytest.fixture(autouse=True)
def log(caplog: pytest.LogCaptureFixture) -> pytest.LogCaptureFixture:
    """Capture all that is logged."""
    caplog.set_level(logging.DEBUG, "leasehold.multilang")
    return caplog


def test_a_good_child(log: pytest.LogCaptureFixture) -> None:
    """It performs actions, requests checkpoints, and exits at the end of its input."""

    async def scenario() -> None:
        scene = Scene("good")
        await scene.perform(INITIALIZE, RECORDS, LeaseLost())
        assert scene.checkpoints == [(CheckpointRequest(), ActionName.PROCESS_RECORDS)]
        await scene.end()

    run(scenario)
    assert "ended code=0" in log.text


def test_a_child_that_prints_much_is_logged_a_little(log: pytest.LogCaptureFixture) -> None:
    """Neither long lines, nor missing line ends, nor many lines disturb the dialogue."""

    async def scenario() -> None:
        scene = Scene("noisy")
        await scene.perform(INITIALIZE, RECORDS, RECORDS)
        await scene.end()

    run(scenario)
    lines = log.messages
    assert any("stdout: junk before" in line for line in lines)
    assert any("lines were left out, because it prints too much" in line for line in lines)
    assert len(lines) < 10 * LINES_MAX
    assert max(map(len, lines)) < 2_000


def test_a_child_that_writes_back_records_does_not_write_them_into_the_log(
    log: pytest.LogCaptureFixture,
) -> None:
    """Such a line is only mentioned, also if it is too long for a message."""
    many = ProcessRecords([*RECORDS.records, UserRecord(b"x" * 100_000, SECRET, "101", 1)], 0)

    async def scenario() -> None:
        scene = Scene("echo")
        await scene.perform(INITIALIZE, RECORDS, many)
        await scene.end()

    run(scenario)
    assert log.text.count("a line of the daemon was written back") == 2
    assert SECRET not in log.text
    assert "c2VjcmV0" not in log.text


def test_a_child_that_ends_is_reported(log: pytest.LogCaptureFixture) -> None:
    """With its exit code."""

    async def scenario() -> None:
        scene = Scene("dies")
        with pytest.raises(ProcessorEndedError, match="ended during processRecords"):
            await scene.perform(INITIALIZE, RECORDS)
        await scene.lose()

    run(scenario)
    assert "ended code=7" in log.text


def test_a_child_that_hangs_is_killed_after_the_time_out(log: pytest.LogCaptureFixture) -> None:
    """Even if it ignores SIGTERM."""

    async def scenario() -> None:
        scene = Scene("hangs", conversation=ConversationSettings(timeout_s=SHORT_S))
        with pytest.raises(ProcessorEndedError, match=f"has not answered processRecords for {SHORT_S} s"):
            await scene.perform(INITIALIZE, RECORDS)
        await scene.lose()

    run(scenario)
    assert "ended code=-9" in log.text


@pytest.mark.parametrize("program", ["stays", "parent"])
def test_an_end_takes_a_limited_time(program: str, log: pytest.LogCaptureFixture) -> None:
    """A child that does not exit is killed; a grandchild that holds the output open is not waited for."""

    async def scenario() -> None:
        scene = Scene(program, limits=IMPATIENT if program == "stays" else LIMITS)
        await scene.perform(INITIALIZE)
        await asyncio.wait_for(scene.end(), 40)

    run(scenario)
    assert f"ended code={-9 if program == 'stays' else 0}" in log.text


def test_a_child_that_closes_its_input_has_failed() -> None:
    """It would never answer."""

    async def scenario() -> None:
        scene = Scene("deaf")
        large = ProcessRecords([UserRecord(b"x" * 3_000_000, "k", "100", 1)], 0)
        with pytest.raises(ProcessorEndedError, match="has closed its input"):
            await scene.perform(INITIALIZE, large, large)
        await scene.lose()

    run(scenario)


def test_a_child_finishes_its_batch_when_the_lease_is_lost(log: pytest.LogCaptureFixture) -> None:
    """Then it is told, and ends."""

    async def scenario() -> None:
        scene = Scene("slow")
        await scene.perform(INITIALIZE)
        serving = asyncio.ensure_future(scene.client.perform(RECORDS))
        await asyncio.sleep(0.1)
        serving.cancel()
        await scene.lose()
        assert [during for _, during in scene.checkpoints] == [ActionName.PROCESS_RECORDS]

    run(scenario)
    assert "stderr: checkpoint None" in log.text
    assert "ended code=0" in log.text


def test_a_program_that_does_not_exist() -> None:
    """It may disappear after the start of the daemon."""

    async def scenario() -> None:
        scene = Scene("good", command=("/no/such/program",))
        with pytest.raises(ProcessorEndedError, match="/no/such/program cannot be started: No such file"):
            await scene.client.start()
        scene.client.lose()
        assert not scene.ends

    run(scenario)


def test_a_child_that_answers_without_end_does_not_fill_the_log(log: pytest.LogCaptureFixture) -> None:
    """The first status counts."""

    async def scenario() -> None:
        scene = Scene("answers_often")
        await scene.perform(INITIALIZE)
        await scene.end()

    run(scenario)
    assert "ignored a status without an action" in log.text
    assert len(log.messages) < LINES_MAX


@pytest.mark.parametrize("program", ["never_reads_replies", "answers_before_it_reads"])
def test_the_time_out_holds_for_a_child_that_writes_and_does_not_read(program: str) -> None:
    """Every wait for a child is limited: also until it has read an action or a reply."""

    async def scenario() -> None:
        scene = Scene(program, conversation=ConversationSettings(timeout_s=SHORT_S))
        large = ProcessRecords([UserRecord(b"x" * 3_000_000, "k", "100", 1)], 0)
        with pytest.raises(ProcessorEndedError, match=f"has not answered processRecords for {SHORT_S} s"):
            await scene.perform(INITIALIZE, RECORDS if program == "never_reads_replies" else large)
        await scene.lose()

    run(scenario)


@pytest.mark.parametrize(
    ("program", "problem"),
    [
        ("dies_and_leaves_a_helper", "ended during processRecords"),
        ("hangs_with_a_helper", "has not answered"),
    ],
)
def test_what_a_failed_child_has_started_neither_hides_its_end_nor_outlives_it(
    program: str, problem: str, log: pytest.LogCaptureFixture
) -> None:
    """Pools of processes and shell scripts hold the output of a child open."""

    async def scenario() -> None:
        timeout_s = 30 if program.startswith("dies") else SHORT_S
        scene = Scene(program, conversation=ConversationSettings(timeout_s=timeout_s))
        with pytest.raises(ProcessorEndedError, match=problem):
            await scene.perform(INITIALIZE, RECORDS)
        await scene.lose()

    run(scenario)
    helper = int(log.text.rpartition("stderr: helper ")[2].split()[0])
    deadline_s = time.monotonic() + 30
    while is_running(helper):
        assert time.monotonic() < deadline_s
        time.sleep(0.02)


def test_many_short_lines_do_not_occupy_the_daemon() -> None:
    """The reader pauses after some lines, as it does after many bytes."""

    async def scenario() -> None:
        lines, output = [], asyncio.StreamReader()
        output.feed_data(b"x\n" * 10_000)
        output.feed_eof()

        async def keep(line: Line) -> None:
            lines.append(line)

        loop = asyncio.get_running_loop()
        began_s = loop.time()
        await read_lines(output, LineSplitter(100), keep, flush_s=None)
        assert len(lines) == 10_000
        assert loop.time() - began_s >= 0.4

    run_in_virtual_time(scenario())


def test_lines_are_allowed_again_after_a_while(log: pytest.LogCaptureFixture) -> None:
    """Lines that were left out are counted."""
    now_s = [0.0]
    output = ChildOutput("child", lambda: now_s[0])
    for number in range(LINES_MAX + 5):
        output.log("stderr", f"line {number}")
    assert len(log.messages) == LINES_MAX
    now_s[0] = PERIOD_S
    output.log("stderr", "forged\nline \x1b[31m")
    assert log.messages[-2:] == [
        "child: 5 lines were left out, because it prints too much",
        "child stderr: forged\\nline \\x1b[31m",
    ]
