"""docs/cli.md contains the help text of every command."""

from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from leasehold.cli.command import leasehold

PAGE = (Path(__file__).parents[2] / "docs" / "cli.md").read_text(encoding="utf-8")
COMMANDS = [(), *((name,) for name in leasehold.commands)]


@pytest.mark.parametrize("names", COMMANDS, ids=lambda names: " ".join(("leasehold", *names)))
def test_the_page_contains_the_help_of_every_command(names: tuple[str, ...]) -> None:
    """The text is identical. After a change to a command, run `make docs`."""
    result = CliRunner(env={"COLUMNS": "80"}).invoke(leasehold, [*names, "--help"], prog_name="leasehold")
    assert result.exit_code == 0
    command = " ".join(("leasehold", *names, "--help"))
    assert f"$ {command}\n{result.output}```" in PAGE, (
        f"docs/cli.md needs the output of `{command}`: run `make docs`"
    )


def test_every_command_has_a_section() -> None:
    """Each section has the name of the command."""
    assert all(f"\n## {name}\n" in PAGE for name in leasehold.commands)


def test_every_option_has_a_help_text() -> None:
    """A help text describes each option."""
    missing = [
        f"{name} {option.name}"
        for name, command in leasehold.commands.items()
        for option in command.params
        if isinstance(option, click.Option) and not option.help
    ]
    assert missing == []
