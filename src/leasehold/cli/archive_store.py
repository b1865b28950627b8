"""The options and the store of the commands of `leasehold archive`."""

from __future__ import annotations

from typing import Any

import click

from leasehold.cli.connections import Connection
from leasehold.cli.option_values import refuse_values
from leasehold.core.exactly_once.object_keys import validate_prefix
from leasehold.ports import ObjectStore


def _check_url(_context: click.Context, _argument: click.Parameter, url: str) -> str:
    from leasehold.adapters.obstore_objects import check_store_url  # noqa: PLC0415 - boto3 is slow

    with refuse_values():
        check_store_url(url, "URL")
    return url


def _check_prefix(_context: click.Context, _option: click.Parameter, prefix: str) -> str:
    with refuse_values(of_settings=True):
        return validate_prefix(prefix)


def location_options(command: Any) -> Any:
    """Add the options that say where an archive is."""
    for decorate in (
        click.argument("url", callback=_check_url),
        click.option(
            "--prefix",
            default="",
            metavar="PREFIX",
            callback=_check_prefix,
            help="Prefix of the archive below the URL.",
        ),
        click.option("--s3-endpoint-url", metavar="URL", help="Endpoint for S3."),
    ):
        command = decorate(command)
    return command


def archive_options(command: Any) -> Any:
    """Add the options of a command that reports about an archive."""
    return click.option("--json", "as_json", is_flag=True, help="Print JSON.")(location_options(command))


def no_archive(url: str, prefix: str) -> str:
    """The sentence for a place without an archive."""
    below = f" below prefix {prefix!r}" if prefix else ""
    return f"{url} has no object of an archive{below}: check the URL and --prefix"


def open_store(url: str, connection: Connection) -> ObjectStore:
    """Open the store of an archive. A folder must exist."""
    from leasehold.adapters.obstore_objects import open_object_store  # noqa: PLC0415 - boto3 is slow
    from leasehold.wiring import aws_access  # noqa: PLC0415

    access = aws_access(connection.settings, connection.settings.s3_endpoint)
    return open_object_store(url, access, setting="URL", extra="archive", make_folder=False)
