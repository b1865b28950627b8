"""Runs aggregation/*.json: how one Kinesis record is split.

`given.data` is the record's data in hex. Alternatively `given.message` lists the parts of an aggregate, to which the
runner adds magic and checksum (or `given.checksum`): `{"partition_key": text}` and `{"hash_key": text}` are entries
of the tables, `{"record": {"key": index, "hash_key": index, "data": text}}` is a user record of which any field may
be left out, and `{"hex": bytes}` is anything else; `times` repeats a part. `given.shard` is the hash range of the
shard; `given.settings` are settings other than the default.

`expect.records` lists the user records as [sub-sequence number, partition key, explicit hash key, data];
`expect.count` only counts them; `expect.raw`: the record is delivered raw, with this sub-sequence number;
`expect.fails`: a part of the error message. `expect.resume_after` maps sub-sequence numbers of a checkpoint at this
record to the number of its records that remain.
"""

from typing import Any

import pytest

from leasehold.core.model import HashRange
from leasehold.core.position import Position
from leasehold.core.record import Record, UserRecord
from leasehold.core.records.deaggregation import (
    DeaggregationOutcome,
    DeaggregationResult,
    DeaggregationSettings,
    Incident,
    OutOfRange,
    Unreadable,
    deaggregate,
    deaggregate_all,
    records_after,
)
from leasehold.errors import MalformedAggregateError
from tests.kpl_encoder import add_frame, hash_key, partition_key
from tests.kpl_encoder import user_record as encoded_record
from tests.scenarios.scenario_files import Scenario, only, scenarios

SEQUENCE_NUMBER = "49590338271490256608559692538361571095921575989136588898"
ARRIVAL_MS = 1_700_000_000_123


@scenarios("aggregation")
def test_deaggregation(scenario: Scenario) -> None:
    """A Kinesis record becomes the expected user records, with the expected outcome."""
    given = only(scenario.given, optional=["data", "message", "checksum", "shard", "settings"])
    record = Record(data_of(given), "outer", SEQUENCE_NUMBER, ARRIVAL_MS, "KMS")
    shard = HashRange(*map(int, given["shard"])) if "shard" in given else None
    settings = settings_of(given.get("settings", {}))
    if "fails" in scenario.expect:
        with pytest.raises(MalformedAggregateError, match=scenario.expect["fails"]):
            deaggregate(record, shard, settings)
        return
    result = deaggregate(record, shard, settings)
    check(result, record, scenario.expect)
    assert deaggregate_all([record], shard, settings).records == result.records
    assert deaggregate_all([record], shard, settings).incidents == incidents(result)


def check(result: DeaggregationResult, record: Record, expected: dict[str, Any]) -> None:
    optional = ["dropped", "records", "count", "raw", "resume_after"]
    expect = only(expected, required=["outcome"], optional=optional)
    assert (result.outcome.value, result.dropped) == (expect["outcome"], expect.get("dropped", 0))
    if "raw" in expect:
        assert result.records == (UserRecord(*record, expect["raw"], None, False),)
    elif "count" in expect:
        assert len(result.records) == expect["count"]
    else:
        assert list(result.records) == [user_record(each) for each in expect["records"]]
    for sub, left in expect.get("resume_after", []):
        assert len(records_after(result.records, Position(SEQUENCE_NUMBER, sub))) == left


def user_record(expect: Any) -> UserRecord:
    sub, partition_key, hash_key, data = expect
    explicit = None if hash_key is None else int(hash_key)
    return UserRecord(
        data.encode(), partition_key, SEQUENCE_NUMBER, ARRIVAL_MS, "KMS", sub, explicit, aggregated=True
    )


def incidents(result: DeaggregationResult) -> tuple[Incident, ...]:
    if result.outcome in {DeaggregationOutcome.PLAIN, DeaggregationOutcome.AGGREGATED}:
        return ()
    return (Incident(SEQUENCE_NUMBER, result.outcome, result.dropped),)


def settings_of(given: dict[str, Any]) -> DeaggregationSettings:
    enums: dict[str, Any] = {"out_of_range": OutOfRange, "unreadable": Unreadable}
    only(given, optional=[*enums, "user_records_max", "expanded_bytes_max"])
    return DeaggregationSettings(
        **{name: enums[name](value) if name in enums else value for name, value in given.items()}
    )


def data_of(given: dict[str, Any]) -> bytes:
    if "data" in given:
        return bytes.fromhex(given["data"])
    checksum = bytes.fromhex(given["checksum"]) if "checksum" in given else None
    return add_frame(b"".join(map(part, given["message"])), checksum)


def part(given: Any) -> bytes:
    only(given, optional=["partition_key", "hash_key", "record", "hex", "times"])
    times: int = given.get("times", 1)
    if "partition_key" in given:
        return partition_key(given["partition_key"].encode()) * times
    if "hash_key" in given:
        return hash_key(given["hash_key"].encode()) * times
    if "record" in given:
        return inner(given["record"]) * times
    return bytes.fromhex(given["hex"]) * times


def inner(given: Any) -> bytes:
    only(given, optional=["key", "hash_key", "data", "hex"])
    data = given["data"].encode() if "data" in given else None
    return encoded_record(given.get("key"), given.get("hash_key"), data, bytes.fromhex(given.get("hex", "")))
