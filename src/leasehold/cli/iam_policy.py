"""`leasehold iam-policy`: prints the permissions that a member, a viewer or the creator of the tables needs."""

from __future__ import annotations

import os
from typing import Any

import click

from leasehold.cli.option_values import refuse_values
from leasehold.cli.output import print_json
from leasehold.config.iam_policy import IamRole, PolicyScope
from leasehold.config.iam_policy import iam_policy as create_policy


@click.command("iam-policy")
@click.argument("role", type=click.Choice([role.value for role in IamRole]))
@click.option(
    "--application", metavar="NAME", help="Name of the application.  [default: LEASEHOLD_APPLICATION]"
)
@click.option(
    "--stream",
    "streams",
    metavar="NAME",
    multiple=True,
    help="A stream, or its ARN. Repeatable.  [default: LEASEHOLD_STREAM]",
)
@click.option("--region", default="*", show_default=True, help="AWS region.")
@click.option("--account", default="*", show_default=True, help="AWS account.")
@click.option("--partition", default="aws", show_default=True, help="aws, aws-cn or aws-us-gov.")
@click.option("--fan-out", is_flag=True, help="Also allow enhanced fan-out.")
@click.option("--discover", is_flag=True, help="Also allow to find streams by prefix or tag.")
@click.option("--cloudwatch", is_flag=True, help="Also allow CloudWatch metrics.")
@click.option("--archive", metavar="URL", help="Also allow an archive: s3://bucket/prefix.")
def iam_policy(*, role: str, application: str | None, streams: tuple[str, ...], **scope: Any) -> None:
    """Print the IAM policy of least privilege for one role.

    worker and spark run members of a fleet, in tables that exist. bootstrap creates the tables (and the consumers of
    enhanced fan-out); a first member that creates them needs both policies. viewer reads leases and lags, for the
    commands leases, lag and explain.
    """
    if not application or not streams:
        application, streams = _complete(application, streams)
    with refuse_values(of_settings=True):
        policy = create_policy(IamRole(role), PolicyScope(application=application, streams=streams, **scope))
    print_json(policy)


def _complete(application: str | None, streams: tuple[str, ...]) -> tuple[str, tuple[str, ...]]:
    """Take what the options leave out from where a worker takes it."""
    from leasehold.worker.options import read_surroundings  # noqa: PLC0415 - not needed for --help

    surroundings = read_surroundings(os.environ)
    application = application or str(surroundings.get("application") or "")
    if not application:
        raise click.UsageError("Name the application: --application NAME, or LEASEHOLD_APPLICATION.")
    if not streams and (stream := surroundings.get("stream")):
        streams = (str(stream),)
    if not streams:
        raise click.UsageError("Name the stream: --stream NAME, or LEASEHOLD_STREAM.")
    return application, streams
