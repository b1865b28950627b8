"""Settings that say how to reach AWS and where the leases are stored."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from typing import Final

from leasehold.errors import ConfigError

DYNAMODB: Final = "dynamodb"
SQLITE: Final = "sqlite:///"
DYNAMODB_TIMEOUT: Final = timedelta(seconds=2)
_SCAN_SEGMENTS_MAX: Final = 1_000  # each is a request at the same time
_TABLE_SETTINGS: Final = (
    "table_read_capacity",
    "table_deletion_protection",
    "table_point_in_time_recovery",
    "table_tags",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class ConnectionSettings:
    """How to reach AWS, and where the leases are. For a value of None the AWS SDK's own chain decides.

    It has more than 12 attributes because each setting of a connection is one.
    """

    leases: str = DYNAMODB  # or sqlite:///file for one machine
    lease_table: str | None = None  # None: named like the application
    coordinator_table: str | None = None  # of KCL 3.0 to 3.4; None: application-CoordinatorState
    worker_metrics_table: str | None = None  # of KCL 3.0 to 3.4; None: application-WorkerMetricStats
    # How a lease table is created; an existing one is not changed, except for point-in-time recovery.
    table_read_capacity: int | None = None  # both None: on demand
    table_write_capacity: int | None = None
    table_deletion_protection: bool = False
    table_point_in_time_recovery: bool = False
    table_tags: tuple[tuple[str, str], ...] = ()
    scan_segments: int = 1  # of the lease table, read in parallel
    region: str | None = None
    profile: str | None = None
    role_arn: str | None = None
    role_external_id: str | None = None  # as the role's owner in another account requires
    role_session_name: str | None = None
    kinesis_endpoint: str | None = None
    dynamodb_endpoint: str | None = None
    cloudwatch_endpoint: str | None = None
    s3_endpoint: str | None = None  # for dead letters
    kinesis_timeout: timedelta = timedelta(seconds=30)  # for the response to a request
    dynamodb_timeout: timedelta = DYNAMODB_TIMEOUT

    def __post_init__(self) -> None:
        if self.leases != DYNAMODB and not self.lease_file:
            raise ConfigError(
                f"leases={self.leases!r}: expected 'dynamodb', or 'sqlite:///leases.sqlite' (one machine; an absolute "
                "path starts with four slashes)"
            )
        self._check_table()
        for name in ("kinesis_timeout", "dynamodb_timeout"):
            if getattr(self, name) <= timedelta(0):
                raise ConfigError(f"{name}={getattr(self, name)}: expected more than 0")

    def _check_table(self) -> None:
        if (self.table_read_capacity is None) != (self.table_write_capacity is None):
            raise ConfigError(
                "table_read_capacity and table_write_capacity: set both for provisioned capacity, or neither for "
                "capacity on demand"
            )
        for name in ("table_read_capacity", "table_write_capacity", "scan_segments"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise ConfigError(f"{name}={value}: expected at least 1")
        if self.scan_segments > _SCAN_SEGMENTS_MAX:
            raise ConfigError(f"scan_segments={self.scan_segments}: expected at most {_SCAN_SEGMENTS_MAX}")
        chosen = [name for name in _TABLE_SETTINGS if getattr(self, name)]
        if chosen and self.leases != DYNAMODB:
            raise ConfigError(
                f"{chosen[0]} with leases={self.leases!r}: only a DynamoDB table has this setting; remove it"
            )

    @property
    def lease_file(self) -> str | None:
        """The path of the SQLite file with the leases. None if they are in DynamoDB."""
        return sqlite_path(self.leases)


def sqlite_path(url: str) -> str | None:
    """Return the path in the URL of a SQLite file. None if it is no such URL.

    >>> sqlite_path("sqlite:///leases.sqlite"), sqlite_path("sqlite:////var/leases.sqlite")
    ('leases.sqlite', '/var/leases.sqlite')
    >>> sqlite_path("sqlite:leases.sqlite"), sqlite_path("sqlite:/var/leases.sqlite"), sqlite_path("sqlite://host/x")
    ('leases.sqlite', '/var/leases.sqlite', None)
    """
    if url.startswith(SQLITE):
        return url.removeprefix(SQLITE) or None
    path = url.removeprefix("sqlite:")
    return None if path in {url, ""} or path.startswith("//") else path
