"""Reads the settings of a consumer from keywords, the environment and a TOML file.

Every option has one flat name, the same in all three places. Keywords override the environment, and the environment
overrides the file. An unknown name is an error that suggests the nearest known name.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, fields, replace
from datetime import datetime, timedelta
from enum import Enum
from pathlib import Path
from types import NoneType
from typing import Any, Final, TypedDict, TypeVar, get_args, get_type_hints

from leasehold.config import values
from leasehold.config.connection import ConnectionSettings
from leasehold.config.did_you_mean import did_you_mean, nearest
from leasehold.config.settings import FanOutSettings, FleetSettings, ObserveSettings, ReadSettings
from leasehold.core.initial_position import parse_initial_position
from leasehold.core.model import InitialPosition
from leasehold.core.records.deaggregation import DeaggregationSettings
from leasehold.errors import ConfigError
from leasehold.worker.dead_letters import DeadLetterFunction
from leasehold.worker.settings import (
    BatchSettings,
    CheckpointSettings,
    ConsumerIdentity,
    ConsumerSettings,
    ErrorSettings,
    HandlingSettings,
    ManyStreams,
    ProcessSettings,
    RecordSettings,
)
from leasehold.worker.stream_lists import parse_streams

T = TypeVar("T")

_VALUE_SHOWN_MAX: Final = 200  # characters of a wrong value in an error

PREFIX: Final = "LEASEHOLD_"
_NATIVE: Final = "NATIVE"  # LEASEHOLD_NATIVE belongs to the process: see adapters/native_decoder.py
CONFIG: Final = "config"
TABLES: Final = ("leasehold", "consumer")
# Read by `leasehold run` from the same file.
OTHER_TABLES: Final = ("run",)

# Kubernetes sets such variables for every service. A service named leasehold must not keep workers from starting.
_KUBERNETES_VARIABLE: Final = re.compile(
    r"(\w+_)?(SERVICE_HOST=.*|SERVICE_PORT\w*=.*|PORT=\w+://.*|PORT_\d+_(TCP|UDP|SCTP)\w*=.*)"
)

Duration = str | float | timedelta


class HandlingOptions(TypedDict, total=False):
    """Options of a handler, as keywords of the decorator or of the consumer. It has one attribute for each setting."""

    max_records: int
    max_bytes: int
    max_wait: Duration
    retries: int
    retry_initial_wait: Duration
    retry_max_wait: Duration
    bisect: bool
    on_poison: str | None
    dead_letters: str | Path | DeadLetterFunction | None
    checkpoint: str
    checkpoint_every: Duration
    checkpoint_records: int | None
    concurrency: int


class ConsumerOptions(HandlingOptions, total=False):
    """Options of a consumer, besides its stream and its application. It has one attribute for each setting."""

    worker_id: str
    streams_with_prefix: str
    streams_with_tag: str
    discover_streams_every: Duration
    initial_position: str | datetime
    leases: str
    lease_table: str | None
    coordinator_table: str | None
    worker_metrics_table: str | None
    table_read_capacity: int | None
    table_write_capacity: int | None
    table_deletion_protection: bool
    table_point_in_time_recovery: bool
    table_tags: str | Mapping[str, str]
    scan_segments: int
    region: str | None
    profile: str | None
    role_arn: str | None
    role_external_id: str | None
    role_session_name: str | None
    kinesis_endpoint: str | None
    dynamodb_endpoint: str | None
    cloudwatch_endpoint: str | None
    s3_endpoint: str | None
    archive: str | None
    archive_prefix: str
    kinesis_timeout: Duration
    dynamodb_timeout: Duration
    kinesis_protocol: str
    grace: Duration
    max_handlers: int
    measure_load: bool
    mode: str
    failover_after: Duration
    refresh_every: Duration
    max_leases: int | None
    leases_to_acquire: int | None
    leases_to_request: int | None
    handoff: bool
    handoff_timeout: Duration
    stalled_after: Duration
    cooldown_after_failure: Duration
    check_parents_every: Duration
    first_audit_after: Duration
    audit_every: Duration
    audit_confirmations: int
    clean_up: bool
    clean_up_every: Duration
    keep_finished_for: Duration | None
    ignore_unexpected_child_shards: bool
    delete_former_streams_after: Duration | None
    on_recreated_stream: str
    leader_lock_duration: Duration
    balance_by: str
    max_kbps: int | None
    balance_threshold: float
    balance_step: float
    balance_every: Duration
    balance_overshoot: bool
    newest_report_weight: float
    max_utilisation: int
    records_per_call: int
    calls_per_second: float
    bytes_per_second: int
    idle_poll_every: Duration
    buffer_bytes: int
    check_gaps_when_behind: Duration
    retrieval: str
    consumer_name: str | None
    consumer_arn: str | None
    http2: bool
    out_of_range: str
    unreadable: str
    user_records_max: int
    expanded_bytes_max: int
    status_port: int | None
    status_host: str
    stuck_after: Duration
    cloudwatch_metrics: str
    metrics: str
    metrics_level: str
    metrics_namespace: str | None
    metrics_dimensions: str | None


_HANDLING: Final = (BatchSettings, ErrorSettings, CheckpointSettings, RecordSettings)
_GROUPS: Final = (
    ConsumerIdentity,
    ConnectionSettings,
    *_HANDLING,
    ProcessSettings,
    FleetSettings,
    ReadSettings,
    FanOutSettings,
    DeaggregationSettings,
    ObserveSettings,
)


@dataclass(frozen=True, slots=True)
class Option:
    """One setting: its name, its group, and the parser of its value."""

    name: str
    group: type
    parse: Callable[[object], object]


def _parser(hint: Any) -> Callable[[object], object]:
    """Return the parser for values of a type. It depends on the type alone, so a new field needs no change here."""
    if NoneType in get_args(hint):
        parts = [part for part in get_args(hint) if part is not NoneType]
        return values.optional(_parser(parts[0]) if len(parts) == 1 else values.url_or_function)
    if isinstance(hint, type) and issubclass(hint, Enum):
        return values.choice(hint)
    parsers: Mapping[Any, Callable[[object], object]] = {
        bool: values.boolean,
        int: values.whole_number,
        float: values.real_number,
        str: values.text,
        timedelta: values.duration,
        tuple[tuple[str, str], ...]: values.pairs,
        InitialPosition: parse_initial_position,
        ManyStreams: parse_streams,
    }
    return parsers[hint]


def _options_of(group: type) -> dict[str, Option]:
    hints = get_type_hints(group)
    return {each.name: Option(each.name, group, _parser(hints[each.name])) for each in fields(group)}


OPTIONS: Final[Mapping[str, Option]] = {
    name: option for group in _GROUPS for name, option in _options_of(group).items()
}


def consumer_settings(keywords: Mapping[str, object], environment: Mapping[str, str]) -> ConsumerSettings:
    """Return the settings of a consumer. The keyword `config`, or LEASEHOLD_CONFIG, names a TOML file."""
    keywords = dict(keywords)
    given = read_surroundings(environment, keywords.pop(CONFIG, None)) | _read_keywords(keywords)
    return ConsumerSettings(
        identity=_group(ConsumerIdentity, given),
        connection=_group(ConnectionSettings, given),
        handling=HandlingSettings(
            batch=_group(BatchSettings, given),
            errors=_group(ErrorSettings, given),
            checkpoints=_group(CheckpointSettings, given),
            records=_group(RecordSettings, given),
        ),
        process=_group(ProcessSettings, given),
        fleet=_group(FleetSettings, given),
        read=_group(ReadSettings, given),
        fan_out=_group(FanOutSettings, given),
        deaggregation=_group(DeaggregationSettings, given),
        observe=_group(ObserveSettings, given),
    )


def read_surroundings(environment: Mapping[str, str], file: object = None) -> dict[str, object]:
    """Return the settings of the TOML file, by default the one that LEASEHOLD_CONFIG names, and of the environment."""
    file = file or environment.get(PREFIX + CONFIG.upper())
    given = {} if file is None else _read_file(Path(str(file)))
    return given | _read_environment(environment)


def handling_settings(base: HandlingSettings, keywords: Mapping[str, object]) -> HandlingSettings:
    """Return the settings of one handler: the keywords of its decorator override the settings of the consumer."""
    known = {name for name, option in OPTIONS.items() if option.group in _HANDLING}
    for name in keywords:
        if name not in known:
            raise _unknown(name, known, name)
    given = _read_keywords(keywords)
    return HandlingSettings(
        batch=replace(base.batch, **_of_group(BatchSettings, given)),
        errors=replace(base.errors, **_of_group(ErrorSettings, given)),
        checkpoints=replace(base.checkpoints, **_of_group(CheckpointSettings, given)),
        records=replace(base.records, **_of_group(RecordSettings, given)),
    )


def _group(group: Callable[..., T], given: Mapping[str, object]) -> T:
    return group(**_of_group(group, given))


def _of_group(group: object, given: Mapping[str, object]) -> dict[str, Any]:
    return {name: value for name, value in given.items() if OPTIONS[name].group is group}


def _read_keywords(keywords: Mapping[str, object]) -> dict[str, object]:
    return {name: _parse(name, value, name) for name, value in keywords.items()}


def _read_environment(environment: Mapping[str, str]) -> dict[str, object]:
    given: dict[str, object] = {}
    for variable, value in environment.items():
        name = variable.removeprefix(PREFIX)
        if name in {variable, CONFIG.upper(), _NATIVE}:
            continue
        if name.lower() not in OPTIONS and _KUBERNETES_VARIABLE.fullmatch(f"{name}={value}"):
            continue
        given[name.lower()] = _parse(name.lower(), value, variable)
    return given


def _read_file(path: Path) -> dict[str, object]:
    try:
        with path.open("rb") as file:
            content = tomllib.load(file)
    except OSError as error:
        raise ConfigError(f"configuration file {path}: {error.strerror}") from error
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"configuration file {path} is not TOML: {error}") from error
    for name, value in content.items():
        if name not in TABLES + OTHER_TABLES or not isinstance(value, dict):
            raise ConfigError(f"configuration file {path}: {_describe_misplaced(name, value)}")
    tables = {name: table for name, table in content.items() if name in TABLES}
    if not tables:
        raise ConfigError(f"configuration file {path}: expected a table [{TABLES[0]}] or [{TABLES[1]}]")
    given: dict[str, object] = {}
    for table, members in tables.items():
        for name, value in members.items():
            if name in given:
                raise ConfigError(f"configuration file {path}: {name} is in more than one table")
            given[name] = _parse(name, value, f"{path} [{table}] {name}")
    return given


def _describe_misplaced(name: str, value: object) -> str:
    """Describe the problem with a top-level entry of a file that is not a known table."""
    tables = TABLES + OTHER_TABLES
    if name in tables:
        return f"{name} must be a table, [{name}]"
    if isinstance(value, dict):
        hint = did_you_mean(
            f"[{name}]",
            [f"[{table}]" for table in tables],
            otherwise=f"expected [{TABLES[0]}] or [{TABLES[1]}]",
        )
        return f"[{name}] is not a table of settings: {hint}"
    if name in OPTIONS:
        return f"{name} is outside of a table: put it below [{TABLES[0]}]"
    return str(_unknown(name, OPTIONS, name))


def _parse(name: str, value: object, source: str) -> object:
    """Parse and check a value. `source` is the name under which the user gave it."""
    option = OPTIONS.get(name)
    if option is None:
        raise _unknown(source, OPTIONS, name)
    try:
        return option.parse(value)
    except ConfigError as error:
        raise ConfigError(f"{source}={value!r:.{_VALUE_SHOWN_MAX}}: {error}") from None


def _unknown(source: str, known: Iterable[str], name: str) -> ConfigError:
    match = nearest(name, known)
    if match is None:
        hint = "see docs/reference/settings.md for all of them"
    else:
        hint = f"did you mean {PREFIX + match.upper() if source.startswith(PREFIX) else match}?"
    return ConfigError(f"{source} is not a setting: {hint}")
