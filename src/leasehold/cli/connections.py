"""The options that say how a command reaches AWS and the lease table. All commands share them.

A command takes what its options leave out from where a worker takes it: LEASEHOLD_* variables, and the file that
LEASEHOLD_CONFIG names.
"""

from __future__ import annotations

import os
import socket
import time
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, fields
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeVar
from urllib.parse import urlsplit

import click

from leasehold.cli.option_values import refuse_values
from leasehold.config.connection import SQLITE, ConnectionSettings
from leasehold.errors import ConfigError
from leasehold.fleet.table.lease_table import LeaseTable

if TYPE_CHECKING:
    from leasehold.adapters.aws.kinesis_stream import KinesisStream

Command = TypeVar("Command", bound=Callable[..., Any])

_LOOPBACK: Final = frozenset({"127.0.0.1", "localhost", "::1"})
LOCAL_SERVER_WAIT_S: Final = 10.0
_LOCAL_SERVER_PAUSE_S: Final = 0.1
_ENDPOINTS: Final = {
    "kinesis_endpoint_url": "kinesis_endpoint",
    "dynamodb_endpoint_url": "dynamodb_endpoint",
    "s3_endpoint_url": "s3_endpoint",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Connection:
    """How a command reaches AWS and the leases. For a setting of None the AWS SDK reads its own configuration."""

    settings: ConnectionSettings
    application: str | None = None
    stream: str | None = None  # of the environment
    has_lease_option: bool = False  # an option, not only the environment, says where the leases are

    @property
    def has_leases(self) -> bool:
        """True if the options or the environment name a lease table."""
        return bool(self.application or self.settings.lease_table or self.settings.lease_file)

    @property
    def leases_text(self) -> str:
        """The application, the table or the file of the leases, for a sentence."""
        application = f"application {self.application}" if self.application else "the leases"
        place = (
            f"file {self.settings.lease_file}"
            if self.settings.lease_file
            else f"table {self.settings.lease_table}"
            if self.settings.lease_table and self.settings.lease_table != self.application
            else ""
        )
        return " in ".join(each for each in (application, place) if each)

    def kinesis(self, *, threads: int) -> Any:
        """Return a boto3 client of Kinesis."""
        from leasehold.adapters.aws.clients import kinesis_client  # noqa: PLC0415 - boto3 is slow
        from leasehold.wiring import aws_access  # noqa: PLC0415

        access = aws_access(self.settings, self.settings.kinesis_endpoint)
        return kinesis_client(
            access, threads=threads, response_s=self.settings.kinesis_timeout.total_seconds()
        )

    def stream_opener(self, *, threads: int) -> Callable[[str], KinesisStream]:
        """Open streams as the settings say, with one client, which is created for the first of them."""
        from leasehold.adapters.aws.kinesis_stream import KinesisStream  # noqa: PLC0415 - boto3 is slow

        clients: list[Any] = []

        def open_stream(name: str) -> KinesisStream:
            if not clients:
                clients.append(self.kinesis(threads=threads))
            return KinesisStream(clients[0], name, threads=threads, protocol=self.settings.kinesis_protocol)

        return open_stream

    @asynccontextmanager
    async def lease_table(self) -> AsyncIterator[LeaseTable]:
        """Open the lease table, which must exist, and close it at the end of the block."""
        from leasehold.wiring import open_lease_table  # noqa: PLC0415 - boto3 is slow

        if self.settings.lease_file is not None:
            _require_file(self.settings.lease_file)
        table = open_lease_table(self.settings, self.application or self.settings.lease_table or "")
        try:
            yield table
        finally:
            await table.close()


def _require_file(file: str) -> None:
    """Refuse a missing file: SQLite would create it."""
    if not Path(file).is_file():
        raise ConfigError(
            f"leases: there is no file {file}: check the path, or start a worker, which creates it"
        )


def resolve_connection(options: Mapping[str, Any], surroundings: Mapping[str, Any]) -> Connection:
    """Combine the options of a command with the settings of its surroundings. An option takes precedence."""
    known = {each.name for each in fields(ConnectionSettings)}
    chosen = {name: value for name, value in surroundings.items() if name in known}
    chosen |= {name: options[name] for name in ("region", "profile", "leases") if options.get(name)}
    if options.get("table"):
        chosen["lease_table"] = options["table"]
    if options.get("sqlite"):
        chosen["leases"] = f"{SQLITE}{options['sqlite']}"
    for option, setting in _ENDPOINTS.items():
        if url := options.get(option) or options.get("endpoint_url"):
            chosen[setting] = url
    settings = ConnectionSettings(**chosen)
    _check_endpoints(settings, options)
    return Connection(
        settings=settings,
        application=options.get("application") or surroundings.get("application"),
        stream=surroundings.get("stream"),
        has_lease_option=any(options.get(name) for name in ("application", "table", "sqlite", "leases")),
    )


def _check_endpoints(settings: ConnectionSettings, options: Mapping[str, Any]) -> None:
    """Check the endpoints. Those of options are wrong usage; others come from the surroundings."""
    for option, setting in _ENDPOINTS.items():
        url, plain_http = getattr(settings, setting), options["plain_http"]
        name = next((each for each in (option, "endpoint_url") if options.get(each)), None)
        if name is None:
            check_endpoint(url, plain_http=plain_http)
        else:
            with refuse_values(of_settings=True):
                check_endpoint(url, plain_http=plain_http, name=name)


def _check_leases(_context: click.Context, _option: click.Parameter, url: str | None) -> str | None:
    if url:
        with refuse_values(of_settings=True):
            ConnectionSettings(leases=url)
    return url


def connection_options(command: Command) -> Command:
    """Add the options to a command that needs leases, and pass their values as `connection`."""

    @wraps(command)
    def with_leases(*, connection: Connection, **given: Any) -> Any:
        if not connection.has_leases:
            raise click.UsageError(
                "Say where the leases are: --application, --table or --leases, or LEASEHOLD_APPLICATION."
            )
        return command(connection=connection, **given)

    decorated: Any = with_leases
    result: Command = optional_connection_options(decorated)
    return result


def optional_connection_options(command: Command) -> Command:
    """Add the options to a command for which leases are optional, and pass their values as `connection`."""
    lease_options = [
        click.option(
            "--application", metavar="NAME", help="Name of the application, and of its lease table."
        ),
        click.option(
            "--table", metavar="NAME", help="Lease table, if its name is not that of the application."
        ),
        click.option(
            "--leases",
            metavar="URL",
            callback=_check_leases,
            help="Where the leases are: dynamodb, or sqlite:///FILE.  [default: dynamodb]",
        ),
        click.option(
            "--sqlite",
            type=click.Path(exists=True, dir_okay=False, path_type=Path),
            help="The same as --leases sqlite:///FILE.",
        ),
    ]
    aws = aws_options("kinesis", "dynamodb")
    return _with_options(command, [*lease_options, *aws])


def aws_options(*services: str) -> list[Callable[[Any], Any]]:
    """The options that say how a command reaches these services of AWS."""
    names = {"kinesis": "Kinesis", "dynamodb": "DynamoDB"}
    return [
        click.option("--region", help="AWS region."),
        click.option("--profile", help="Profile of the AWS configuration."),
        click.option("--endpoint-url", metavar="URL", help="Endpoint for all services."),
        *(
            click.option(f"--{each}-endpoint-url", metavar="URL", help=f"Endpoint for {names[each]}.")
            for each in services
        ),
        click.option("--plain-http", is_flag=True, help="Allow endpoints without TLS on other machines."),
    ]


def kinesis_connection_options(command: Command) -> Command:
    """Add the options to a command that uses only Kinesis, and pass their values as `connection`."""
    return _with_options(command, aws_options("kinesis"))


def dynamodb_connection_options(command: Command) -> Command:
    """Add the options to a command that uses only DynamoDB, and pass their values as `connection`."""
    return _with_options(command, aws_options("dynamodb"))


def s3_connection_options(command: Command) -> Command:
    """Add the options to a command that uses only S3, and pass their values as `connection`."""
    return _with_options(command, aws_options())


def _with_options(command: Command, options: list[Callable[[Any], Any]]) -> Command:
    names = (
        *("application", "table", "leases", "sqlite", "region", "profile", "endpoint_url", "plain_http"),
        *_ENDPOINTS,
    )

    @wraps(command)
    def with_connection(**given: Any) -> Any:
        from leasehold.worker.options import read_surroundings  # noqa: PLC0415 - not needed for --help

        own = {name: given.pop(name) for name in names if name in given}
        return command(connection=resolve_connection(own, read_surroundings(os.environ)), **given)

    decorated: Any = with_connection
    for option in reversed(options):
        decorated = option(decorated)
    result: Command = decorated
    return result


def wait_for_local_server(url: str | None) -> None:
    """Wait some seconds until a server on this machine accepts connections, because it may have just been started.

    If there is none, the caller's own request fails, with the sentence for it.
    """
    parts = urlsplit(url or "")
    if parts.hostname not in _LOOPBACK:
        return
    address = (parts.hostname, parts.port or {"https": 443}.get(parts.scheme, 80))
    until = time.monotonic() + LOCAL_SERVER_WAIT_S
    has_said = False
    while True:
        try:
            socket.create_connection(address, timeout=LOCAL_SERVER_WAIT_S).close()
        except OSError:
            if time.monotonic() >= until:
                return
        else:
            return
        if not has_said:
            click.echo(f"waiting up to {LOCAL_SERVER_WAIT_S:g} s for a server at {url}", err=True)
            has_said = True
        time.sleep(_LOCAL_SERVER_PAUSE_S)


def check_endpoint(url: str | None, *, plain_http: bool, name: str = "endpoint") -> None:
    """Refuse an unencrypted endpoint on another machine: a signed request contains the session token."""
    if url is None:
        return
    parts = urlsplit(url)
    if parts.scheme not in {"http", "https"} or not parts.hostname:
        raise ConfigError(f"{name} {url!r}: expected http://host:port or https://host")
    if parts.scheme == "http" and parts.hostname not in _LOOPBACK and not plain_http:
        raise ConfigError(
            f"{name} {url}: requests contain credentials, and http sends them unencrypted to another machine: "
            "use https, or add --plain-http to allow it"
        )
