"""`leasehold local`: runs a Kinesis server on this machine."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from rich.console import Console

from leasehold.cli.extras import needs_extra
from leasehold.cli.option_values import refuse_values
from leasehold.errors import ConfigError
from leasehold.garbage_collection import tune_garbage_collection

if TYPE_CHECKING:
    from leasehold.local.server import ServerOptions


@click.command()
@click.option("--host", default="127.0.0.1", show_default=True, help="Loopback address to listen on.")
@click.option(
    "--port",
    type=click.IntRange(0, 65_535),
    default=4567,
    show_default=True,
    help="Port to listen on; 0 means any free port.",
)
@click.option(
    "--state", type=click.Path(dir_okay=False, path_type=Path), help="Save the streams in this file."
)
@click.option(
    "--stream",
    "streams",
    multiple=True,
    metavar="NAME:SHARDS",
    help="Create a stream if it does not exist. Repeatable.",
)
@click.option(
    "--enforce-limits",
    is_flag=True,
    help="Throttle as AWS does: 5 reads and 2 MB a second for each shard, ...",
)
@click.option(
    "--end-with-last-records",
    is_flag=True,
    help="End a shard in the response with its last records, not in an empty one after it.",
)
@click.option(
    "--status-delay-ms",
    default=0,
    show_default=True,
    help="Milliseconds for which a stream stays CREATING or UPDATING.",
)
@click.option(
    "--stored-bytes-max",
    default=2**31,
    show_default=True,
    help="Memory for the records of all streams; above it, puts are refused.",
)
@click.option("--account", default="000000000000", show_default=True, help="Account in ARNs.")
@click.option("--region", default="us-east-1", show_default=True, help="Region in ARNs.")
@click.option("--json", "as_json", is_flag=True, help="Print one line of JSON instead of instructions.")
def local(*, as_json: bool, **given: Any) -> None:
    """Run a Kinesis server on this machine, for development and tests. SIGINT and SIGTERM stop it."""
    options = _parse_options(given)
    from leasehold.local.server import LocalServer  # noqa: PLC0415 - _parse_options has checked it

    server = LocalServer(options)
    if as_json:
        click.echo(json.dumps({"endpoint_url": server.endpoint_url}))
    else:
        _print_instructions(server.endpoint_url, options, sorted(server.state.service.streams))
    # Each record of a page in CBOR has objects that the collector looks at. With its usual pace, it goes through all
    # stored records several times a page, which takes most of the server's time.
    tune_garbage_collection()
    server.run()


def _parse_options(given: dict[str, Any]) -> ServerOptions:
    with needs_extra("local"):
        from leasehold.kinesis_model.account import Account  # noqa: PLC0415
        from leasehold.kinesis_model.settings import ServiceSettings  # noqa: PLC0415
        from leasehold.local.server import ServerOptions  # noqa: PLC0415
    with refuse_values(of_settings=True):
        settings = ServiceSettings(
            enforce_limits=given["enforce_limits"],
            shard_end_with_last_records=given["end_with_last_records"],
            status_delay_ms=given["status_delay_ms"],
            stored_bytes_max=given["stored_bytes_max"],
        )
        return ServerOptions(
            host=given["host"],
            port=given["port"],
            account=Account(given["account"], given["region"]),
            settings=settings,
            state_file=given["state"],
            streams=dict(_parse_stream(text) for text in given["streams"]),
        )


def _parse_stream(text: str) -> tuple[str, int]:
    from leasehold.kinesis_model.account import STREAM_NAME  # noqa: PLC0415 - as in _parse_options

    name, _, shards = text.partition(":")
    if not STREAM_NAME.fullmatch(name) or not shards.isdecimal() or int(shards) < 1:
        raise ConfigError(
            f"--stream {text!r}: expected NAME:SHARDS, for example orders:4; a name has letters, digits, _ . and -"
        )
    return name, int(shards)


def _print_instructions(endpoint_url: str, options: ServerOptions, streams: Sequence[str]) -> None:
    region = options.account.region
    console = Console(highlight=False, soft_wrap=True)
    console.print(f"[bold]Kinesis[/bold] on {endpoint_url}, account {options.account.id}, {region}")
    storage = f"saved in {options.state_file}" if options.state_file else "in memory only"
    console.print(f"Streams are {storage}. Signatures are not verified. Ctrl-C stops the server.\n")
    console.print("To use it, copy these lines into another shell:\n")
    console.print(f"  export AWS_ENDPOINT_URL_KINESIS={endpoint_url}")
    console.print(f"  export AWS_DEFAULT_REGION={region} AWS_ACCESS_KEY_ID=local AWS_SECRET_ACCESS_KEY=local")
    for line in next_steps(streams):
        console.print(f"  {line}", markup=False)


def next_steps(streams: Sequence[str]) -> Sequence[str]:
    """Commands to try: put a record into a stream that exists, or create the first one."""
    if streams:
        return (f"leasehold put {streams[0]} hello", "aws kinesis list-streams")
    return "aws kinesis create-stream --stream-name orders --shard-count 2", "leasehold put orders hello"
