"""docs/cli.md says what the commands say of themselves."""

from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from leasehold.cli.command import leasehold

PAGE = (Path(__file__).parents[2] / "docs" / "cli.md").read_text(encoding="utf-8")
COMMANDS = [(), *((name,) for name in leasehold.commands)]


@pytest.mark.parametrize("names", COMMANDS, ids=lambda names: " ".join(("leasehold", *names)))
def test_the_help_of_every_command_is_in_the_documentation(names: tuple[str, ...]) -> None:
    """Word for word: a new option or command is documented with it."""
    result = CliRunner(env={"COLUMNS": "80"}).invoke(leasehold, [*names, "--help"], prog_name="leasehold")
    assert result.exit_code == 0
    command = " ".join(("leasehold", *names, "--help"))
    assert f"$ {command}\n{result.output}```" in PAGE, f"docs/cli.md needs the output of `{command}`"


def test_every_command_has_a_section() -> None:
    """The table of contents is complete."""
    assert all(f"\n## {name}\n" in PAGE for name in leasehold.commands)


def test_every_option_has_a_help_text() -> None:
    """No option is left to guessing."""
    missing = [
        f"{name} {option.name}"
        for name, command in leasehold.commands.items()
        for option in command.params
        if isinstance(option, click.Option) and not option.help
    ]
    assert missing == []
