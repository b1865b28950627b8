"""The options that say how a command reaches AWS and the lease table. All commands share them."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import wraps
from pathlib import Path
from typing import Any, Final, TypeVar
from urllib.parse import urlsplit

import click

from leasehold.errors import ConfigError
from leasehold.fleet.table.lease_table import LeaseTable
from leasehold.ports import RowStore

Command = TypeVar("Command", bound=Callable[..., Any])

_LOOPBACK: Final = frozenset({"127.0.0.1", "localhost", "::1"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Connection:
    """The values of the options. For None the AWS SDK reads the environment and its configuration."""

    application: str | None
    table: str | None
    sqlite: Path | None
    region: str | None
    profile: str | None
    endpoint_url: str | None
    kinesis_endpoint_url: str | None
    dynamodb_endpoint_url: str | None
    plain_http: bool

    def __post_init__(self) -> None:
        for url in (self.endpoint_url, self.kinesis_endpoint_url, self.dynamodb_endpoint_url):
            check_endpoint(url, plain_http=self.plain_http)

    @property
    def has_leases(self) -> bool:
        """True if the options name a lease table."""
        return bool(self.application or self.table or self.sqlite)

    def kinesis(self, *, threads: int) -> Any:
        """Return a boto3 client of Kinesis."""
        from leasehold.adapters.aws.clients import AwsAccess, kinesis_client  # noqa: PLC0415 - boto3 is slow

        url = self.kinesis_endpoint_url or self.endpoint_url
        return kinesis_client(
            AwsAccess(region=self.region, profile=self.profile, endpoint_url=url), threads=threads
        )

    def rows(self) -> RowStore:
        """Return the row store of the leases. It must exist."""
        if self.sqlite is not None:
            from leasehold.adapters.sqlite_rows import SqliteRows  # noqa: PLC0415 - only one of the two stores is needed

            return SqliteRows(self.sqlite)
        from leasehold.adapters.aws.clients import AwsAccess, dynamodb_client  # noqa: PLC0415 - boto3 is slow
        from leasehold.adapters.aws.dynamodb_rows import DynamoDbRows  # noqa: PLC0415

        url = self.dynamodb_endpoint_url or self.endpoint_url
        client = dynamodb_client(AwsAccess(region=self.region, profile=self.profile, endpoint_url=url))
        return DynamoDbRows(client, self.table or self.application or "")

    @asynccontextmanager
    async def lease_table(self) -> AsyncIterator[LeaseTable]:
        """Open the lease table, and close it at the end of the block."""
        table = LeaseTable(self.rows())
        try:
            yield table
        finally:
            await table.close()


def connection_options(command: Command) -> Command:
    """Add the options to a command that needs leases, and pass their values as `connection`."""

    @wraps(command)
    def with_leases(*, connection: Connection, **given: Any) -> Any:
        if not connection.has_leases:
            raise click.UsageError("Say where the leases are: --application, --table or --sqlite.")
        return command(connection=connection, **given)

    decorated: Any = with_leases
    result: Command = optional_connection_options(decorated)
    return result


def optional_connection_options(command: Command) -> Command:
    """Add the options to a command for which leases are optional, and pass their values as `connection`."""
    return _add_options(command, _OPTIONS)


def kinesis_connection_options(command: Command) -> Command:
    """Add the options to a command that uses only Kinesis, and pass their values as `connection`."""
    return _add_options(command, {name: _OPTIONS[name] for name in _KINESIS_OPTIONS})


def _add_options(command: Command, options: Mapping[str, Callable[[Any], Any]]) -> Command:
    @wraps(command)
    def with_connection(**given: Any) -> Any:
        values: dict[str, Any] = dict.fromkeys(_OPTIONS)
        values |= {name: given.pop(name) for name in options}
        return command(connection=Connection(**values), **given)

    decorated: Any = with_connection
    for option in reversed([*options.values()]):
        decorated = option(decorated)
    result: Command = decorated
    return result


# By the field of `Connection`, in the order of the help text.
_OPTIONS: Final[dict[str, Callable[[Any], Any]]] = {
    "application": click.option(
        "--application", metavar="NAME", help="Name of the application, and of its lease table."
    ),
    "table": click.option(
        "--table", metavar="NAME", help="Lease table, if its name is not that of the application."
    ),
    "sqlite": click.option(
        "--sqlite",
        type=click.Path(exists=True, dir_okay=False, path_type=Path),
        help="Read the leases from this SQLite file instead of DynamoDB.",
    ),
    "region": click.option("--region", help="AWS region."),
    "profile": click.option("--profile", help="Profile of the AWS configuration."),
    "endpoint_url": click.option("--endpoint-url", metavar="URL", help="Endpoint for all services."),
    "kinesis_endpoint_url": click.option(
        "--kinesis-endpoint-url", metavar="URL", help="Endpoint for Kinesis."
    ),
    "dynamodb_endpoint_url": click.option(
        "--dynamodb-endpoint-url", metavar="URL", help="Endpoint for DynamoDB."
    ),
    "plain_http": click.option(
        "--plain-http", is_flag=True, help="Allow endpoints without TLS on other machines."
    ),
}
_KINESIS_OPTIONS: Final = ("region", "profile", "kinesis_endpoint_url", "plain_http")


def check_endpoint(url: str | None, *, plain_http: bool) -> None:
    """Refuse an unencrypted endpoint on another machine: a signed request contains the session token."""
    if url is None:
        return
    parts = urlsplit(url)
    if parts.scheme not in {"http", "https"} or not parts.hostname:
        raise ConfigError(f"endpoint {url!r}: expected http://host:port or https://host")
    if parts.scheme == "http" and parts.hostname not in _LOOPBACK and not plain_http:
        raise ConfigError(
            f"endpoint {url}: requests contain credentials, and http sends them unencrypted to another machine: "
            "use https, or add --plain-http to allow it"
        )
