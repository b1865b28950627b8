"""Lines of progress for commands that take long."""

import time

import click
from click.testing import CliRunner

from leasehold.cli.output import progress_lines
from leasehold.cli.steering import ProgressLines
from leasehold.core.model import LeaseKey, WorkerId
from leasehold.steering.lease_capture import Waiting

DEADLINE_S = 60


def test_progress_is_printed_to_stderr_while_a_block_waits() -> None:
    """Each line shows the present state. The standard output stays free for the result."""
    described: list[int] = []

    def describe() -> str:
        described.append(len(described))
        return f"{len(described)} done"

    @click.command()
    def work() -> None:
        with progress_lines(describe, every_s=0.01):
            deadline_s = time.monotonic() + DEADLINE_S
            while len(described) < 3 and time.monotonic() < deadline_s:
                time.sleep(0.01)
        click.echo("result")

    done = CliRunner().invoke(work)
    assert done.stdout == "result\n"
    assert done.stderr.splitlines()[:2] == ["1 done", "2 done"]


def test_a_command_that_waits_for_an_owner_does_not_repeat_a_line() -> None:
    """The request is a moment younger than the first line, so after ten seconds the same line would come again."""
    lines = ProgressLines()

    @click.command()
    def wait() -> None:
        lines([Waiting(LeaseKey("shardId-000000000000"), WorkerId("anna"), 9_500)])

    assert CliRunner().invoke(wait).stderr == "waiting for anna to hand over 1 shard, asked 9.5 s ago\n"
