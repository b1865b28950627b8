"""Errors of the commands: one sentence that cannot affect the terminal."""

import click
from click.testing import CliRunner

from leasehold.cli.command import leasehold
from leasehold.errors import ServiceError


def test_control_characters_in_an_error_are_escaped() -> None:
    """An error may quote a name, a row of the table or the response of a server. Its line breaks stay."""

    @click.command()
    def fail() -> None:
        raise ServiceError("first \x1b[2Jline\nsecond line: \u00fc")

    leasehold.add_command(fail, "fail-for-test")
    try:
        done = CliRunner().invoke(leasehold, ["fail-for-test"], color=True)
    finally:
        del leasehold.commands["fail-for-test"]
    assert done.exit_code == 1
    assert done.stderr == "Error: first \\x1b[2Jline\nsecond line: \u00fc\n"
