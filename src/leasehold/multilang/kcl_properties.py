"""Translates the properties of a KCL MultiLang daemon to settings: each key has a setting, or a reason why it has none.

Three things are better than in Java. A number that cannot be parsed is an error, not 0; `false` is applied; and an
unknown key causes a warning that suggests the nearest known one.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, Final

from leasehold.config import values
from leasehold.config.did_you_mean import nearest
from leasehold.config.java_properties import Property
from leasehold.core.observing.metrics import DIMENSION_NAMES
from leasehold.errors import ConfigError
from leasehold.multilang import property_keys as keys
from leasehold.multilang.credentials_provider import parse_credentials_provider

# One action carries what one read returns, as in the KCL.
_BATCH: Final[Mapping[str, object]] = {"max_records": 10_000, "max_bytes": 10 * 1024 * 1024, "max_wait": "0s"}
_FAILOVER_DEFAULT_MS: Final = 10_000
_REFRESH_DEFAULT_MS: Final = 1_800
_IDLE_POLL_MIN_MS: Final = 200
_CREDENTIALS: Final = "AwsCredentialsProvider"
_QUOTED: Final = re.compile(r"""(?<![^ =])(?:"[^"]*"|'[^']*')(?![^ ])""")
_WORD: Final = re.compile(f"(?:{_QUOTED.pattern}|[^ ])+")
_MODES: Final = {
    "CLIENT_VERSION_CONFIG_3X": "auto",
    "CLIENT_VERSION_CONFIG_COMPATIBLE_WITH_2X": "auto",
    "CLIENT_VERSION_CONFIG_COMPATIBLE_WITH_2X_PHASE1": "peer",
}


@dataclass(frozen=True, slots=True)
class Note:
    """What a user should know about a key. A warning says that something differs from what the file asks for."""

    key: str
    text: str
    is_warning: bool = True

    def __str__(self) -> str:
        return f"{self.key}: {self.text}"


@dataclass(slots=True, kw_only=True)
class KclProperties:
    """What a properties file means here."""

    settings: dict[str, object] = field(default_factory=dict)  # of a consumer, by their names
    command: tuple[str, ...] = ()
    timeout_s: float | None = None
    with_empty_batches: bool = False
    notes: list[Note] = field(default_factory=list)


def consumer_options(properties: KclProperties) -> dict[str, Any]:
    """Return the options of the consumer: those of the file, and batches as the KCL makes them."""
    options = dict(_BATCH) | properties.settings
    if "records_per_call" in options:
        options["max_records"] = options["records_per_call"]
    return options


def translate_properties(properties: Iterable[Property]) -> KclProperties:
    """Translate the properties of a file. Raises ConfigError for a value that cannot be applied."""
    result = KclProperties()
    given = _known_properties(properties, result.notes)
    for key, value in given.items():
        if key in keys.REFUSED:
            raise ConfigError(f"{key}={value!r}: {keys.REFUSED[key]}")
        if key in keys.WITHOUT_SETTING:
            reason, is_warning = keys.WITHOUT_SETTING[key]
            result.notes.append(Note(key, reason, is_warning))
        elif key in keys.SETTINGS:
            _apply_setting(key, value, result)
    for translate in _TRANSLATIONS:
        translate(given, result)
    return result


def _known_properties(properties: Iterable[Property], notes: list[Note]) -> dict[str, str]:
    """Return the values by the right spelling of their keys. Notes those that Java would ignore."""
    given: dict[str, str] = {}
    by_lower_case = {key.lower(): key for key in keys.KNOWN}
    properties = list(properties)
    exact = {each.key for each in properties}
    for each in properties:
        key, value = each.key, each.value.rstrip(" \t\f")
        known = key if key in keys.KNOWN else by_lower_case.get(key.lower())
        if known is None:
            if key.startswith(keys.CLIENT_PREFIXES):
                raise ConfigError(f"{key}: of a client, only region and endpointOverride have a setting here")
            match = nearest(key, keys.KNOWN, cutoff=0.8)
            hint = "it is ignored, as in Java" if match is None else f"it is ignored; did you mean {match}?"
            notes.append(Note(ascii(key)[1:-1], f"this is not a property of the KCL: {hint}"))
            continue
        if not value.replace("\t", " ").isprintable():
            raise ConfigError(f"{key}={value!r}: it contains a character that cannot be printed; remove it")
        if known != key and known in exact:
            notes.append(Note(key, f"it is ignored, because {known} is given as well; Java ignores it, too"))
            continue
        if known != key and not key.lower().startswith(_CREDENTIALS.lower()):
            notes.append(Note(key, f"read as {known}; Java ignores a key in another case"))
        if known in given:
            notes.append(Note(key, f"given more than once; line {each.line} counts"))
        given[known] = value
    return given


def _apply_setting(key: str, value: str, result: KclProperties) -> None:
    setting, kind = keys.SETTINGS[key]
    parsed = _parse(key, value, kind)
    if parsed == 0 and kind in {keys.MILLIS, keys.COUNT}:
        result.notes.append(Note(key, "0 means the default, as in Java"))
        return
    if parsed == "":
        result.notes.append(Note(key, "it is empty, and means the default"))
        return
    result.settings[setting] = duration_text(int(str(parsed))) if kind == keys.MILLIS else parsed


def _parse(key: str, value: str, kind: str) -> object:
    parsers: Mapping[str, Callable[[object], object]] = {
        keys.TEXT: values.text,
        keys.MILLIS: _non_negative,
        keys.COUNT: _non_negative,
        keys.REAL: values.real_number,
        keys.FLAG: _flag,
        keys.NO_FLAG: lambda text: not _flag(text),
    }
    try:
        return parsers[kind](value.strip())
    except ConfigError as error:
        raise ConfigError(f"{key}={value!r}: {error}") from None


def _non_negative(text: object) -> int:
    number = values.whole_number(text)
    if number < 0:
        raise ConfigError("expected 0 or more")
    return number


def _flag(text: object) -> bool:
    return values.boolean({"y": "yes", "n": "no"}.get(str(text).lower(), text))


def duration_text(milliseconds: int) -> str:
    """Return a duration as settings write it.

    >>> duration_text(10_000), duration_text(1_500), duration_text(60_000)
    ('10s', '1500ms', '60s')
    """
    return f"{milliseconds // 1000}s" if milliseconds % 1000 == 0 else f"{milliseconds}ms"


# -- keys that need more than a name -------------------------------------------------------------------------------


def _translate_identity(given: Mapping[str, str], result: KclProperties) -> None:
    if not given.get("applicationName"):
        raise ConfigError("applicationName is missing: it names the lease table and the application")
    stream = given.get("streamArn") or given.get("streamName")
    if not stream:
        raise ConfigError("streamName or streamArn is missing")
    if given.get("streamArn") and given.get("streamName"):
        result.notes.append(Note("streamArn", "it takes precedence over streamName", is_warning=False))
    result.settings |= {"application": given["applicationName"], "stream": stream}


def _translate_command(given: Mapping[str, str], result: KclProperties) -> None:
    text = given.get("executableName", "").strip()
    if not text:
        raise ConfigError(
            "executableName is missing: it is the program that processes the records of a shard"
        )
    result.command = tuple(_split_command(text))


def _split_command(text: str) -> list[str]:
    """Split at spaces, as Java does. Quotes only count around spaces: Java passes on all others.

    >>> _split_command("'/opt/my app/run' --name=it's --names='all'")
    ['/opt/my app/run', "--name=it's", "--names='all'"]
    """

    def unquote(quoted: re.Match[str]) -> str:
        return quoted[0][1:-1] if " " in quoted[0] else quoted[0]

    return [_QUOTED.sub(unquote, word) for word in _WORD.findall(text)]


def _translate_process(given: Mapping[str, str], result: KclProperties) -> None:
    if "timeoutInSeconds" in given:
        timeout_s = _parse("timeoutInSeconds", given["timeoutInSeconds"], keys.COUNT)
        if timeout_s == 0:
            raise ConfigError("timeoutInSeconds=0: Java would halt at once; remove the key for no time-out")
        result.timeout_s = float(str(timeout_s))
    if "shutdownGraceMillis" in given:
        grace_ms = int(str(_parse("shutdownGraceMillis", given["shutdownGraceMillis"], keys.MILLIS)))
        result.settings["grace"] = duration_text(max(1, grace_ms))
    if "callProcessRecordsEvenForEmptyRecordList" in given:
        key = "callProcessRecordsEvenForEmptyRecordList"
        result.with_empty_batches = bool(_parse(key, given[key], keys.FLAG))


def _translate_position(given: Mapping[str, str], result: KclProperties) -> None:
    name = given.get("initialPositionInStream", "LATEST").strip().upper() or "LATEST"
    if name not in {"LATEST", "TRIM_HORIZON"}:
        raise ConfigError(
            f"initialPositionInStream={name!r}: expected LATEST or TRIM_HORIZON; for a time set "
            "initialPositionInStreamExtended to its second since 1970"
        )
    result.settings["initial_position"] = name.lower()
    if "initialPositionInStreamExtended" in given:
        key = "initialPositionInStreamExtended"
        second = int(str(_parse(key, given[key], keys.COUNT)))
        try:
            time = datetime.fromtimestamp(second, UTC)
        except (OverflowError, ValueError, OSError):
            raise ConfigError(f"{key}={second}: expected a second since 1970, not a millisecond") from None
        result.settings["initial_position"] = time.isoformat().replace("+00:00", "Z")
        if "initialPositionInStream" in given:
            result.notes.append(Note(key, "it takes precedence over initialPositionInStream"))


def _translate_retrieval(given: Mapping[str, str], result: KclProperties) -> None:
    mode = given.get("retrievalMode", "DEFAULT").strip().upper() or "DEFAULT"
    if mode not in {"DEFAULT", "FANOUT", "POLLING"}:
        raise ConfigError(f"retrievalMode={mode!r}: expected DEFAULT, FANOUT or POLLING")
    has_polling_key = any(given.get(key, "0").strip() not in {"", "0"} for key in keys.POLLING_KEYS)
    is_polling = mode == "POLLING" or (mode == "DEFAULT" and has_polling_key)
    result.settings["retrieval"] = "polling" if is_polling else "fan_out"
    if mode == "DEFAULT":
        reason = "a key of polling is set" if is_polling else "the KCL's default, which AWS charges for"
        chosen = "POLLING" if is_polling else "FANOUT"
        result.notes.append(Note("retrievalMode", f"{chosen}: {reason}", is_warning=False))
    for setting in ("consumer_name", "consumer_arn"):
        if is_polling and result.settings.pop(setting, None) is not None:
            result.notes.append(Note(setting, "a consumer has no effect with polling"))
    records = result.settings.get("records_per_call")
    if isinstance(records, int) and records > 10_000:
        raise ConfigError(f"maxRecords={records}: Kinesis returns at most 10,000")
    idle = result.settings.get("idle_poll_every")
    if idle is not None and values.duration(idle).total_seconds() * 1000 < _IDLE_POLL_MIN_MS:
        result.settings["idle_poll_every"] = duration_text(_IDLE_POLL_MIN_MS)
        result.notes.append(Note("idleTimeBetweenReadsInMillis", "raised to 200 ms, as in Java"))


def _translate_fleet(given: Mapping[str, str], result: KclProperties) -> None:
    failover_ms = _FAILOVER_DEFAULT_MS
    if "failover_after" in result.settings:
        failover_ms = int(values.duration(result.settings["failover_after"]).total_seconds() * 1000)
    if failover_ms < 2 * _REFRESH_DEFAULT_MS:
        result.settings["refresh_every"] = duration_text(max(1, failover_ms // 4))
    if "varianceBalancingFrequency" in given:
        runs = int(str(_parse("varianceBalancingFrequency", given["varianceBalancingFrequency"], keys.COUNT)))
        interval = given.get("leaseAssignmentIntervalMillis", "0")
        interval_ms = int(str(_parse("leaseAssignmentIntervalMillis", interval, keys.MILLIS)))
        if runs:
            result.settings["balance_every"] = duration_text(runs * (interval_ms or 2 * failover_ms))
    version = given.get("clientVersionConfig", "").strip().upper()
    if version:
        if version not in _MODES:
            raise ConfigError(f"clientVersionConfig={version!r}: expected one of {', '.join(_MODES)}")
        result.settings["mode"] = _MODES[version]
        if version == "CLIENT_VERSION_CONFIG_COMPATIBLE_WITH_2X":
            result.notes.append(
                Note(
                    "clientVersionConfig",
                    "the mode of the fleet is found in its tables: start a Java member first",
                )
            )


def _translate_clients(given: Mapping[str, str], result: KclProperties) -> None:
    regions = {key: given[key] for key in keys.REGIONS if given.get(key)}
    if len(set(regions.values())) > 1:
        raise ConfigError(
            f"{', '.join(f'{key}={value}' for key, value in regions.items())}: there is one region for all services; "
            "for another one of DynamoDB or CloudWatch, set AWS_ENDPOINT_URL_DYNAMODB or AWS_ENDPOINT_URL_CLOUDWATCH"
        )
    if regions:
        result.settings["region"] = next(iter(regions.values()))
    provider = given.get(_CREDENTIALS, "")
    for suffix in ("DynamoDB", "CloudWatch"):
        other = given.get(f"{_CREDENTIALS}{suffix}", provider)
        if other != provider:
            raise ConfigError(
                f"{_CREDENTIALS}{suffix}: there is one set of credentials for all services; give its user or role all "
                "permissions (leasehold iam-policy prints them)"
            )
    if provider:
        credentials = parse_credentials_provider(provider)
        result.settings |= credentials.settings
        result.notes += [Note(_CREDENTIALS, problem) for problem in credentials.problems]


def _translate_metrics(given: Mapping[str, str], result: KclProperties) -> None:
    level = given.get("metricsLevel", "DETAILED").strip().lower() or "detailed"
    if level not in {"none", "summary", "detailed"}:
        raise ConfigError(f"metricsLevel={level!r}: expected NONE, SUMMARY or DETAILED")
    result.settings["cloudwatch_metrics"] = level
    named = {name.strip() for name in given.get("metricsEnabledDimensions", "ALL").split(",")}
    if "ALL" not in named:
        # The KCL always keeps the operation.
        kept = [name for name in DIMENSION_NAMES if name in named or name == "Operation"]
        result.settings["metrics_dimensions"] = ",".join(kept)


_TRANSLATIONS: Final = (
    _translate_identity,
    _translate_command,
    _translate_process,
    _translate_position,
    _translate_retrieval,
    _translate_fleet,
    _translate_clients,
    _translate_metrics,
)
