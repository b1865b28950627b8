"""What an archive can be told."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from leasehold.core.exactly_once.object_keys import validate_prefix
from leasehold.errors import ConfigError

# By format: the compressions that it knows, and the extension that goes with each.
FORMATS: Final[Mapping[str, Mapping[str, str]]] = {
    "parquet": {"zstd": "parquet", "snappy": "parquet", "gzip": "parquet", "none": "parquet"},
    "jsonl": {"zstd": "jsonl.zst", "gzip": "jsonl.gz", "none": "jsonl"},
}


@dataclass(frozen=True, slots=True, kw_only=True)
class ArchiveSettings:
    """Where an archive is, and what its objects look like. What is None is left to the AWS SDK's own chain."""

    url: str  # s3://bucket/prefix, gs://..., az://..., or a folder
    prefix: str = ""  # below the URL; one for each stream
    format: str = "parquet"  # or jsonl
    compression: str = "zstd"
    region: str | None = None
    profile: str | None = None
    role_arn: str | None = None
    role_external_id: str | None = None
    s3_endpoint: str | None = None  # a store that speaks S3 and is not AWS
    max_concurrent_puts: int = 8  # objects that are made and sent at one time

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
        """What the names of objects end with."""
        return FORMATS[self.format][self.compression]


def _or(names: Mapping[str, object]) -> str:
    return " or ".join(map(repr, names))
