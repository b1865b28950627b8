"""The settings of an archive."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from leasehold.core.exactly_once.object_keys import Layout, validate_prefix, validate_segment
from leasehold.errors import ConfigError

# For each format: its compressions, and the file extension of each.
FORMATS: Final[Mapping[str, Mapping[str, str]]] = {
    "parquet": {"zstd": "parquet", "snappy": "parquet", "gzip": "parquet", "none": "parquet"},
    "jsonl": {"zstd": "jsonl.zst", "gzip": "jsonl.gz", "none": "jsonl"},
    "avro": {"zstd": "avro", "deflate": "avro", "none": "avro"},
    "raw": {"zstd": "raw.zst", "gzip": "raw.gz", "none": "raw"},
    "raw-lines": {"zstd": "txt.zst", "gzip": "txt.gz", "none": "txt"},
}
LINES: Final = "raw-lines"
# Their objects have payloads only.
RAW_FORMATS: Final = frozenset({"raw", LINES})

_COLUMN_CHARACTERS_MAX: Final = 64
_LAYOUTS: Final[Mapping[str, Layout]] = {each.value: each for each in Layout}


@dataclass(frozen=True, slots=True, kw_only=True)
class ArchiveSettings:
    """The location of an archive and the format of its objects. The AWS SDK determines AWS settings that are None.

    It has more than 12 attributes, because each is a setting of its own to users.
    """

    url: str  # s3://bucket/prefix, gs://..., az://..., or a folder
    prefix: str = ""  # below the URL; each stream needs its own
    layout: str = "minute"  # the folders: minute, hour, day, hive-hour or hive-day
    partition_column: str | None = None  # one archive for each value of it, below <prefix>/<column>=<value>
    error_column: str | None = None  # rows in which it has a value go to `error_prefix`
    error_prefix: str = ""  # below the URL
    format: str = "parquet"  # jsonl, avro, raw or raw-lines
    compression: str = "zstd"
    region: str | None = None
    profile: str | None = None
    role_arn: str | None = None
    role_external_id: str | None = None
    s3_endpoint: str | None = None  # of a store with the S3 API that is not AWS
    max_concurrent_puts: int = 8  # objects that are encoded and sent concurrently

    def __post_init__(self) -> None:
        if not self.url:
            raise ConfigError(
                "url is missing: name a store such as 's3://bucket/prefix', or a folder such as './archive'"
            )
        validate_prefix(self.prefix)
        validate_prefix(self.error_prefix)
        if self.partition_column is not None:
            validate_segment(self.partition_column, "partition_column")
            if len(self.partition_column) > _COLUMN_CHARACTERS_MAX:
                raise ConfigError(
                    f"partition_column={self.partition_column!r}: expected at most {_COLUMN_CHARACTERS_MAX} "
                    "characters, because it becomes part of a name together with its values; rename the column"
                )
        has_errors = self.error_column is not None or self.format == LINES
        if (self.error_column is not None and not self.error_prefix) or (
            self.error_prefix and not has_errors
        ):
            raise ConfigError(
                "error_column and error_prefix belong together: set both, or neither; only with "
                f"format={LINES!r} error_prefix may be set alone"
            )
        self._require_separate_errors()
        if self.layout not in _LAYOUTS:
            raise ConfigError(f"layout={self.layout!r}: expected {_or(_LAYOUTS)}")
        if self.format not in FORMATS:
            raise ConfigError(f"format={self.format!r}: expected {_or(FORMATS)}")
        if self.compression not in FORMATS[self.format]:
            raise ConfigError(
                f"compression={self.compression!r} with format={self.format!r}: expected {_or(FORMATS[self.format])}"
            )
        if self.max_concurrent_puts < 1:
            raise ConfigError(f"max_concurrent_puts={self.max_concurrent_puts}: expected at least 1")

    def _require_separate_errors(self) -> None:
        """Refuse an archive of errors in the place of another one: the records of one would count as the other's."""
        if not self.error_prefix:
            return
        errors, prefix = f"{self.error_prefix}/", f"{self.prefix}/" if self.prefix else ""
        if self.partition_column is not None and errors.startswith(f"{prefix}{self.partition_column}="):
            raise ConfigError(
                f"error_prefix={self.error_prefix!r} may be the prefix of a value of {self.partition_column!r}: choose "
                f"one that does not begin with {prefix + self.partition_column + '='!r}"
            )
        if prefix and (errors.startswith(prefix) or prefix.startswith(errors)):
            raise ConfigError(
                f"error_prefix={self.error_prefix!r} and prefix={self.prefix!r} are the same, or one lies within the "
                "other: choose another error_prefix"
            )

    @property
    def folders(self) -> Layout:
        """The layout as a value."""
        return Layout(self.layout)

    @property
    def is_raw(self) -> bool:
        """True if the objects have payloads only."""
        return self.format in RAW_FORMATS

    @property
    def extension(self) -> str:
        """The file extension of the objects."""
        return FORMATS[self.format][self.compression]


def _or(names: Mapping[str, object]) -> str:
    return " or ".join(map(repr, names))
