"""Writes the current `--help` of every command into docs/cli.md. Run it after a change to a command: `make docs`."""

import re
from pathlib import Path

import click
from click.testing import CliRunner

from leasehold.cli.command import leasehold

PAGE = Path(__file__).parents[1] / "docs" / "cli.md"
HELP_BLOCK = re.compile(r"(?<=```console\n)\$ leasehold(?P<names>[a-z -]*?) --help\n.*?(?=```)", re.DOTALL)


def update(page: str) -> str:
    """The page with every help block replaced by what the command prints."""
    return HELP_BLOCK.sub(lambda block: _help_block(block["names"].split()), page)


def _help_block(names: list[str]) -> str:
    command: click.Command = leasehold
    for name in names:
        assert isinstance(command, click.Group), f"leasehold {' '.join(names)} is not a command"
        command = command.commands[name]
    result = CliRunner(env={"COLUMNS": "80"}).invoke(leasehold, [*names, "--help"], prog_name="leasehold")
    return f"$ {' '.join(('leasehold', *names, '--help'))}\n{result.output}"


if __name__ == "__main__":
    PAGE.write_text(update(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
