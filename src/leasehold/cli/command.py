"""The command group `leasehold` with all its commands."""

from __future__ import annotations

import signal

import click

from leasehold.cli.archive import archive
from leasehold.cli.cleanup import cleanup
from leasehold.cli.completion import completion
from leasehold.cli.consumers import consumers
from leasehold.cli.demo import demo
from leasehold.cli.explain import explain
from leasehold.cli.iam_policy import iam_policy
from leasehold.cli.lag import lag
from leasehold.cli.leases import leases
from leasehold.cli.local import local
from leasehold.cli.multilang import import_properties, multilang
from leasehold.cli.output import escape_unprintable
from leasehold.cli.pipeline import pipeline
from leasehold.cli.put import put
from leasehold.cli.release import release
from leasehold.cli.replay import replay
from leasehold.cli.reset import reset
from leasehold.cli.run import run
from leasehold.cli.simulate import simulate
from leasehold.errors import LeaseholdError


class _Group(click.Group):
    """A group whose commands report a `LeaseholdError`, or a file that cannot be used, in one sentence.

    Ctrl-C ends them without a traceback.
    """

    def invoke(self, ctx: click.Context) -> object:
        try:
            return super().invoke(ctx)
        except LeaseholdError as error:
            # The text may quote a name, a row or the response of a server.
            raise click.ClickException("\n".join(map(escape_unprintable, str(error).split("\n")))) from error
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


@click.group(cls=_Group)
@click.version_option(package_name="leasehold", message="leasehold %(version)s")
def leasehold() -> None:
    """Consume Amazon Kinesis from Python, as one fleet with the Java KCL."""


leasehold.add_command(archive)
leasehold.add_command(cleanup)
leasehold.add_command(completion)
leasehold.add_command(consumers)
leasehold.add_command(demo)
leasehold.add_command(explain)
leasehold.add_command(iam_policy)
leasehold.add_command(import_properties)
leasehold.add_command(lag)
leasehold.add_command(leases)
leasehold.add_command(local)
leasehold.add_command(multilang)
leasehold.add_command(pipeline)
leasehold.add_command(put)
leasehold.add_command(release)
leasehold.add_command(replay)
leasehold.add_command(reset)
leasehold.add_command(run)
leasehold.add_command(simulate)
