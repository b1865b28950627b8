"""The settings of an archive."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from leasehold.core.exactly_once.object_keys import validate_prefix
from leasehold.errors import ConfigError

# For each format: its compressions, and the file extension of each.
FORMATS: Final[Mapping[str, Mapping[str, str]]] = {
    "parquet": {"zstd": "parquet", "snappy": "parquet", "gzip": "parquet", "none": "parquet"},
    "jsonl": {"zstd": "jsonl.zst", "gzip": "jsonl.gz", "none": "jsonl"},
}


@dataclass(frozen=True, slots=True, kw_only=True)
class ArchiveSettings:
    """The location of an archive and the format of its objects. The AWS SDK determines AWS settings that are None."""

    url: str  # s3://bucket/prefix, gs://..., az://..., or a folder
    prefix: str = ""  # below the URL; each stream needs its own
    format: str = "parquet"  # or jsonl
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
        if self.format not in FORMATS:
            raise ConfigError(f"format={self.format!r}: expected {_or(FORMATS)}")
        if self.compression not in FORMATS[self.format]:
            raise ConfigError(
                f"compression={self.compression!r} with format={self.format!r}: expected {_or(FORMATS[self.format])}"
            )
        if self.max_concurrent_puts < 1:
            raise ConfigError(f"max_concurrent_puts={self.max_concurrent_puts}: expected at least 1")

    @property
    def extension(self) -> str:
        """The file extension of the objects."""
        return FORMATS[self.format][self.compression]


def _or(names: Mapping[str, object]) -> str:
    return " or ".join(map(repr, names))
