"""The command group `leasehold` with all its commands.

The module of a command is imported when the command is used. A worker then does not spend time and memory on the
libraries of other commands.
"""

from __future__ import annotations

import signal
from collections.abc import Mapping
from importlib import import_module
from importlib.metadata import version
from typing import Final

import click

from leasehold.adapters.native_decoder import native_version
from leasehold.cli.extras import needs_extra
from leasehold.cli.output import escape_unprintable, report_errors

# The module below `leasehold.cli` that defines each command, under the name of the command.
_MODULES: Final[Mapping[str, str]] = {
    "archive": "archive",
    "cleanup": "cleanup",
    "completion": "completion",
    "consumers": "consumers",
    "dashboard": "dashboard",
    "demo": "demo",
    "explain": "explain",
    "iam-policy": "iam_policy",
    "import-properties": "multilang",
    "lag": "lag",
    "leases": "leases",
    "local": "local",
    "multilang": "multilang",
    "pipeline": "pipeline",
    "put": "put",
    "release": "release",
    "replay": "replay",
    "reset": "reset",
    "run": "run",
    "simulate": "simulate",
}


class _Group(click.Group):
    """A group whose commands report a `LeaseholdError`, or a file that cannot be used, in one sentence.

    Ctrl-C ends them without a traceback.
    """

    def list_commands(self, ctx: click.Context) -> list[str]:
        return sorted({*super().list_commands(ctx), *_MODULES})

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in _MODULES:
            return super().get_command(ctx, cmd_name)
        with needs_extra("cli"):
            module = import_module(f"leasehold.cli.{_MODULES[cmd_name]}")
        found = getattr(module, cmd_name.replace("-", "_"))
        assert isinstance(found, click.Command), f"{cmd_name} is a command of {module.__name__}"
        return found

    def invoke(self, ctx: click.Context) -> object:
        try:
            with report_errors():
                return super().invoke(ctx)
        except OSError as error:
            if error.filename is None:  # not about a file that the user can name or move
                raise
            place = escape_unprintable(str(error.filename))
            raise click.ClickException(
                f"{place}: {error.strerror}: check that the folder exists, that it has space, and that this user may "
                "write to it, or choose another one"
            ) from error
        except KeyboardInterrupt:
            raise SystemExit(128 + signal.SIGINT) from None


def _print_version(context: click.Context, _parameter: click.Parameter, is_requested: bool) -> None:
    if not is_requested or context.resilient_parsing:
        return
    native = native_version()
    click.echo(f"leasehold {version('leasehold')}" + (f", with leasehold-native {native}" if native else ""))
    context.exit()


@click.group(cls=_Group)
@click.option(
    "--version",
    is_flag=True,
    is_eager=True,
    expose_value=False,
    callback=_print_version,
    help="Show the version and exit.",
)
def leasehold() -> None:
    """Consume Amazon Kinesis from Python, as one fleet with the Java KCL."""
