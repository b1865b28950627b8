"""docs/cli.md has a section for every command. `test_reference` compares the help texts."""

from pathlib import Path

import click

from leasehold.cli.command import leasehold

PAGE = (Path(__file__).parents[2] / "docs" / "cli.md").read_text(encoding="utf-8")
CONTEXT = click.Context(leasehold)
NAMES = leasehold.list_commands(CONTEXT)


def test_every_command_has_a_section() -> None:
    """Each section has the name of the command, and a block with its help."""
    assert all(f"\n## {name}\n" in PAGE for name in NAMES)
    assert all(f"$ leasehold {name} --help\n" in PAGE for name in NAMES)


def test_every_option_has_a_help_text() -> None:
    """A help text describes each option."""
    missing = [
        f"{name} {option.name}"
        for name in NAMES
        if (command := leasehold.get_command(CONTEXT, name)) is not None
        for option in command.params
        if isinstance(option, click.Option) and not (option.help or option.hidden)
    ]
    assert missing == []
