"""`leasehold completion`: prints the script that lets a shell complete commands and options."""

from __future__ import annotations

from typing import Final

import click
from click.shell_completion import get_completion_class

_START_UP_FILES: Final = {
    "bash": "~/.bashrc",
    "zsh": "~/.zshrc",
    "fish": "~/.config/fish/completions/leasehold.fish",
}


@click.command()
@click.argument("shell", type=click.Choice(list(_START_UP_FILES)))
@click.pass_context
def completion(context: click.Context, shell: str) -> None:
    """Print the completion script of a shell.

    Add it to the start-up file, for example: leasehold completion bash >> ~/.bashrc
    """
    kind = get_completion_class(shell)
    assert kind is not None, "click knows these three shells"
    root = context.find_root().command
    click.echo(kind(root, {}, "leasehold", "_LEASEHOLD_COMPLETE").source())
