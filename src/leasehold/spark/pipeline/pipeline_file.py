"""Reads and checks the TOML file of a pipeline.

An unknown name is an error that suggests the closest known name. Only Spark's own settings and the options of its
writers are passed on unchecked.
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import date, datetime, timedelta
from enum import Enum
from pathlib import Path
from typing import Any, Final

from leasehold.config import values
from leasehold.config.did_you_mean import did_you_mean, nearest
from leasehold.errors import ConfigError
from leasehold.spark.archive_sink import archive_settings
from leasehold.spark.decoding.decode_settings import NAMES as DECODE_NAMES
from leasehold.spark.decoding.decode_settings import Decode, parse_decode
from leasehold.spark.options import OPTIONS, source_options
from leasehold.spark.pipeline.session import DEFAULT_MASTER, MASTER, is_local

TABLES: Final = ("source", "transform", "sink", "trigger", "spark")
TOP: Final = ("name", "checkpoint")


class SinkKind(Enum):
    """The kind of a sink."""

    ARCHIVE = "archive"
    PARQUET = "parquet"
    DELTA = "delta"
    ICEBERG = "iceberg"
    CONSOLE = "console"


@dataclass(frozen=True, slots=True, kw_only=True)
class Sink:
    """The sink of a pipeline. An archive uses only `options`, with the option names of the archive sink."""

    kind: SinkKind
    path: str | None = None
    table: str | None = None
    partition_by: tuple[str, ...] = ()
    options: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        wanted = {
            SinkKind.PARQUET: (self.path is not None and self.table is None, "path"),
            SinkKind.DELTA: ((self.path is None) != (self.table is None), "either path or table"),
            SinkKind.ICEBERG: (self.table is not None and self.path is None, "table"),
            SinkKind.CONSOLE: (self.path is None and self.table is None, "neither path nor table"),
        }
        if self.kind is SinkKind.ARCHIVE:
            archive_settings(self.options)
            return
        is_valid, needs = wanted[self.kind]
        if not is_valid:
            raise ConfigError(f"[sink] kind = {self.kind.value!r} needs {needs}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Trigger:
    """When Spark starts a batch. Every batch writes its own objects, so a pause keeps them large."""

    processing_time: timedelta | None = timedelta(seconds=10)  # None: end after all available records
    once: bool = False  # read all available records in a single batch

    @property
    def is_bounded(self) -> bool:
        """True if the pipeline ends by itself."""
        return self.processing_time is None


@dataclass(frozen=True, slots=True, kw_only=True)
class Pipeline:
    """A Spark query from Kinesis to a sink."""

    name: str
    checkpoint: str
    source: Mapping[str, str]
    decode: Decode | None = None
    sql: str | None = None
    sink: Sink
    trigger: Trigger = field(default_factory=Trigger)
    spark: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        known = source_options(self.source)
        known.require_application()
        master = self.spark.get(MASTER, DEFAULT_MASTER)
        if known.connection.lease_file is not None and not is_local(master):
            raise ConfigError(
                f"leases = {self.source_option('leases')!r} with master = {master!r}: a file serves one machine; "
                "keep the leases of a cluster in DynamoDB"
            )

    def source_option(self, name: str) -> str | None:
        """The value of a source option, under any of its names."""
        spellings = {alias.lower() for alias in (name, *OPTIONS[name].aliases)}
        return next((text for key, text in self.source.items() if key.lower() in spellings), None)


def read_pipeline(file: Path) -> Pipeline:
    """Read a pipeline from a file. Checks everything that can be checked without Spark."""
    try:
        content = tomllib.loads(file.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(f"pipeline file {file}: {error.strerror}") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"pipeline file {file} is not TOML: {error}") from error
    try:
        return parse_pipeline(content, name=file.stem)
    except ConfigError as error:
        raise ConfigError(f"pipeline file {file}: {error}") from error


def parse_pipeline(content: Mapping[str, Any], *, name: str) -> Pipeline:
    """Parse the content of a pipeline file. `name` is the default name."""
    _check_names("", content, (*TOP, *TABLES))
    tables = {each: _table(content, each) for each in TABLES}
    for needed in ("source", "sink"):
        if not tables[needed]:
            raise ConfigError(f"table [{needed}] is missing")
    transform = tables["transform"]
    _check_names("[transform] ", transform, (*DECODE_NAMES, "sql"))
    sink = _sink(tables["sink"])
    return Pipeline(
        name=_text("name", content.get("name", name)),
        checkpoint=_text("checkpoint", content.get("checkpoint")),
        source=_source(tables["source"], sink),
        decode=_decode(transform),
        sql=_text("[transform] sql", transform["sql"]) if "sql" in transform else None,
        sink=sink,
        trigger=_trigger(tables["trigger"]),
        spark=_spark_settings(tables["spark"]),
    )


def _source(table: Mapping[str, Any], sink: Sink) -> Mapping[str, str]:
    if isinstance(starts := table.get("streams"), dict):  # as in the settings of a worker
        table = {**table, "streams": [f"{name}={at}" for name, at in starts.items()]}
    given = _options("[source]", _flatten(table))
    # The archive stores all columns, and needs `slice` to check that no row of a range is missing.
    if sink.kind is SinkKind.ARCHIVE and "columns" not in {key.lower() for key in given}:
        given["columns"] = "archive"
    return given


def _decode(table: Mapping[str, Any]) -> Decode | None:
    try:
        return parse_decode(table)
    except ConfigError as error:
        raise ConfigError(f"[transform] {error}") from error


def _sink(table: Mapping[str, Any]) -> Sink:
    if "kind" not in table:
        for name in table:
            if nearest(name, ["kind"]):
                raise ConfigError(f"[sink] {name} is not a setting: did you mean kind?")
        raise ConfigError(f"[sink] kind is missing: expected {_or(each.value for each in SinkKind)}")
    kind = _parse("[sink] kind", values.choice(SinkKind), table["kind"])
    rest = {key: value for key, value in table.items() if key != "kind"}
    if kind is SinkKind.ARCHIVE:
        return Sink(kind=kind, options=_options("[sink]", rest))
    _check_names("[sink] ", rest, ("path", "table", "partition_by", "options"))
    columns = rest.get("partition_by", [])
    return Sink(
        kind=kind,
        path=_text("[sink] path", rest["path"]) if "path" in rest else None,
        table=_text("[sink] table", rest["table"]) if "table" in rest else None,
        partition_by=tuple(columns if isinstance(columns, list) else [_text("[sink] partition_by", columns)]),
        options=_options("[sink.options]", _flatten(_table(rest, "options"))),
    )


def _trigger(table: Mapping[str, Any]) -> Trigger:
    _check_names("[trigger] ", table, ("processing_time", "available_now", "once"))
    if len(table) > 1:
        raise ConfigError(f"[trigger] has {_and(table)}: expected only one of them")
    if "processing_time" in table:
        return Trigger(
            processing_time=_parse("[trigger] processing_time", values.duration, table["processing_time"])
        )
    for name, given in table.items():
        if given is not True:
            raise ConfigError(f"[trigger] {name}={given!r}: expected true, or leave it out")
        return Trigger(processing_time=None, once=name == "once")
    return Trigger()


def _spark_settings(table: Mapping[str, Any]) -> dict[str, str]:
    """Parse settings of Spark, with or without the prefix `spark.`."""
    given = _options("[spark]", _flatten(table))
    return {name if name.startswith("spark.") else f"spark.{name}": value for name, value in given.items()}


def _flatten(table: Mapping[str, Any]) -> dict[str, Any]:
    """Join nested tables to dotted names: TOML reads an unquoted key with dots as nested tables.

    >>> _flatten({"sql": {"shuffle": {"partitions": 4}}, "master": "local[2]"})
    {'sql.shuffle.partitions': 4, 'master': 'local[2]'}
    """
    flat: dict[str, Any] = {}
    for key, value in table.items():
        if isinstance(value, dict):
            flat |= {f"{key}.{rest}": inner for rest, inner in _flatten(value).items()}
        else:
            flat[key] = value
    return flat


def _options(where: str, table: Mapping[str, Any]) -> dict[str, str]:
    """Convert values to text, as Spark's options require."""
    return {key: _as_text(f"{where} {key}", value) for key, value in table.items()}


def _as_text(where: str, value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, str | int | float):
        return str(value)
    if isinstance(value, datetime | date):
        return value.isoformat()
    if isinstance(value, list) and all(isinstance(each, str) for each in value):
        return ",".join(value)
    raise ConfigError(
        f"{where}={value!r}: expected text, a number, true or false, a time, or a list of texts"
    )


def _table(content: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    table = content.get(name, {})
    if not isinstance(table, dict):
        raise ConfigError(f"{name} must be a table, [{name}]")
    return table


def _text(name: str, value: object) -> str:
    if not isinstance(value, str) or not value.strip():
        raise ConfigError(f"{name} is missing" if value is None else f"{name}={value!r}: expected text")
    return value


def _parse(name: str, parse: Any, value: object) -> Any:
    try:
        return parse(value)
    except ConfigError as error:
        raise ConfigError(f"{name}={value!r}: {error}") from error


def _check_names(where: str, given: Mapping[str, Any], known: tuple[str, ...]) -> None:
    for name in given:
        if name not in known:
            hint = did_you_mean(name, known, otherwise=f"expected {_or(known)}")
            raise ConfigError(f"{where}{name} is not a setting: {hint}")


def _or(names: Any) -> str:
    return " or ".join(map(str, names))


def _and(names: Any) -> str:
    return " and ".join(map(str, names))
