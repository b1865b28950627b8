"""Settings that say how to reach AWS and where the leases are stored."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from enum import Enum
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


class KinesisProtocol(Enum):
    """In which encoding records are requested from Kinesis."""

    AUTO = "auto"  # CBOR with the native decoder, and JSON where a server does not understand CBOR
    JSON = "json"
    CBOR = "cbor"  # never JSON; needs the native decoder


@dataclass(frozen=True, slots=True, kw_only=True)
class ConnectionSettings:
    """How to reach AWS, and where the leases are. For a value of None the AWS SDK's own chain decides.

    It has more than 12 attributes because each setting of a connection is one.
    """

    leases: str = DYNAMODB
    """Where the leases are: `dynamodb`, or `sqlite:///leases.sqlite`, for the processes of one machine, on a local
    disk. Four slashes begin an absolute path. A file has the leases of one application; a member of another one
    is refused. `sqlite:leases.sqlite` is accepted as well, here, in Spark and in all commands. A new file is
    readable by its owner only. A process notices if the file is deleted or replaced: it uses the new file, and
    without a file it reports an error and serves nothing.

    """
    lease_table: str | None = None
    """The name of the lease table.

    Default: the application
    KCL: tableName
    """
    coordinator_table: str | None = None
    """The coordinator table of a [KCL 3.0 to 3.4](docs/java.md#joining), if that gives it another name.

    Default: application`-CoordinatorState`
    KCL: coordinatorStateTableConfig
    """
    worker_metrics_table: str | None = None
    """The table of worker reports of a [KCL 3.0 to 3.4](docs/java.md#joining), if that gives it another name.

    Default: application`-WorkerMetricStats`
    KCL: workerMetricsTableConfig
    """
    table_read_capacity: int | None = None
    """The provisioned read capacity of a lease table that this member creates; set it with `table_write_capacity`.
    An existing table is not changed.

    Default: on demand
    KCL: initialLeaseTableReadCapacity
    """
    table_write_capacity: int | None = None
    """Its provisioned write capacity; both or neither.

    Default: on demand
    KCL: initialLeaseTableWriteCapacity
    """
    table_deletion_protection: bool = False
    """Whether a lease table that this member creates is protected against deletion.

    KCL: leaseTableDeletionProtectionEnabled
    """
    table_point_in_time_recovery: bool = False
    """Whether point-in-time recovery is switched on at every start, as in the KCL, also for an existing table.

    KCL: leaseTablePitrEnabled
    """
    table_tags: tuple[tuple[str, str], ...] = ()
    """The tags of a lease table that this member creates: a mapping, or `team=billing,stage=prod`.

    KCL: tags
    """
    scan_segments: int = 1
    """Parts of the lease table that a scan reads in parallel; useful from some thousand leases on, at most 1,000.

    KCL: leaseTableScanTotalSegments
    """
    region: str | None = None
    """The AWS region.

    Default: as in any AWS tool
    """
    profile: str | None = None
    """The profile of the AWS credentials.

    Default: as in any AWS tool
    """
    role_arn: str | None = None
    """A role to assume, with the available credentials."""
    role_external_id: str | None = None
    """The external id that the role's owner requires, for a role in another account."""
    role_session_name: str | None = None
    """The name of the role's session in the logs of that account.

    Default: leasehold
    """
    kinesis_endpoint: str | None = None
    """The address of another Kinesis server. Without one, each service is reached where boto3 would reach it:
    `AWS_USE_FIPS_ENDPOINT`, `AWS_USE_DUALSTACK_ENDPOINT`, `AWS_ACCOUNT_ID`, `AWS_ENDPOINT_URL_*`, and the same in
    a profile, apply to all calls, also to S3.

    Default: AWS
    """
    dynamodb_endpoint: str | None = None
    """The address of another DynamoDB server.

    Default: AWS
    """
    cloudwatch_endpoint: str | None = None
    """The address of another CloudWatch server.

    Default: AWS
    """
    s3_endpoint: str | None = None
    """The address of another S3 server, for dead letters and for the archive.

    Default: AWS
    """
    archive: str | None = None
    """The URL of the [stream's archive](docs/archive.md#history-then-the-stream): records that the stream no longer
    holds are read from it. For one stream, read by polling.

    """
    archive_prefix: str = ""
    """The prefix of the archive below its URL."""
    kinesis_timeout: timedelta = timedelta(seconds=30)
    """How long a request to Kinesis waits for its response.

    KCL: kinesisRequestTimeout
    """
    dynamodb_timeout: timedelta = DYNAMODB_TIMEOUT
    """How long a request to DynamoDB waits for its response. A heartbeat that waits longer is as bad as a lost one,
    so the KCL's 60 s would cost leases; a value longer than `failover_after` is refused.

    KCL: dynamoDbRequestTimeout
    """
    kinesis_protocol: KinesisProtocol = KinesisProtocol.AUTO
    """In which encoding GetRecords is requested. `auto` is CBOR with the
    [native decoder](docs/worker.md#the-native-decoder), and JSON without it or where a server refuses CBOR. `cbor`
    never returns to JSON, and needs the native decoder. A stream that is named by its ARN, and calls through a proxy,
    use JSON whatever this says.
    """

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
