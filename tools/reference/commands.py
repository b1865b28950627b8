"""The `--help` of every command, for docs/cli.md."""

import re
from typing import Final

import click
from click.testing import CliRunner

from leasehold.cli.command import leasehold

_HELP_BLOCK: Final = re.compile(
    r"(?<=```console\n)\$ leasehold(?P<names>[a-z -]*?) --help\n.*?(?=```)", re.DOTALL
)


def updated(page: str) -> str:
    """The page with every help block replaced by what the command prints."""
    return _HELP_BLOCK.sub(lambda block: _help_block(block["names"].split()), page)


def _help_block(names: list[str]) -> str:
    command: click.Command | None = leasehold
    for name in names:
        assert isinstance(command, click.Group), f"leasehold {' '.join(names)} is not a command"
        command = command.get_command(click.Context(command), name)
    assert command is not None, f"leasehold {' '.join(names)} is not a command"
    result = CliRunner(env={"COLUMNS": "80"}).invoke(leasehold, [*names, "--help"], prog_name="leasehold")
    return f"$ {' '.join(('leasehold', *names, '--help'))}\n{result.output}"
