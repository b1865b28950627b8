"""Lines of progress for commands that take long."""

import time

import click
from click.testing import CliRunner

from leasehold.cli.output import progress_lines

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
