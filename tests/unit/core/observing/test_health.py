"""Health means progress, not only a running process."""

import json
from dataclasses import replace

import pytest

from leasehold.core.events import (
    BatchHandled,
    Event,
    FindingsReviewed,
    FleetRefreshed,
    HandlerFailed,
    LeaseLost,
    LeasesRenewed,
    LeaseTaken,
    MemberStarted,
    MemberStopped,
    PageRead,
    ReadFailed,
    ReadingStarted,
    RowRecovered,
    RowRejected,
    ShardBlockedOnParents,
)
from leasehold.core.finding import Finding, Severity
from leasehold.core.model import LeaseKey, ShardId, WorkerId
from leasehold.core.observing.health import Health, HealthLimits, health_to_json
from leasehold.core.position import TRIM_HORIZON, Position

LIMITS = HealthLimits(failover_ms=10_000, stuck_after_ms=60_000)
SHARD = ShardId("shard-0")
STARTED = MemberStarted(WorkerId("w"), "billing", "orders")
TAKEN = LeaseTaken(LeaseKey(SHARD), SHARD, None, None, 1, TRIM_HORIZON)
READING = ReadingStarted(SHARD, TRIM_HORIZON)
RENEWED = LeasesRenewed(1, 0, 4)
HANDLED = BatchHandled(SHARD, 5, 500, Position("9"), 3, 0)
MINUTE = 60_000


def page(records: int, behind_ms: int) -> PageRead:
    return PageRead(SHARD, records, 100 * records, behind_ms, 5)


def health_after(*events: tuple[int, Event]) -> Health:
    """The health after these events, each with its time."""
    health = Health(LIMITS, now_ms=0)
    for now_ms, event in events:
        health.observe(event, now_ms)
    return health


def problems(health: Health, now_ms: int) -> list[str]:
    """The problems of the shards, with a recent heartbeat."""
    health.observe(RENEWED, now_ms)
    report: list[str] = health_to_json(health.report(now_ms))["problems"]
    return report


@pytest.fixture
def serving() -> list[tuple[int, Event]]:
    return [(0, STARTED), (0, TAKEN), (0, READING)]


def test_an_idle_shard_at_the_tip_is_healthy(serving: list[tuple[int, Event]]) -> None:
    """It has nothing to do."""
    polls = [(second * 1_000, page(0, 0)) for second in range(300)]
    assert problems(health_after(*serving, *polls), 300_000) == []


def test_a_hanging_handler_is_unhealthy_although_its_shard_is_read(
    serving: list[tuple[int, Event]],
) -> None:
    """The problem has the number of records in flight."""
    polls = [(second * 1_000, page(0, 0)) for second in range(2, 62)]
    health = health_after(*serving, (1_000, page(5, 0)), *polls)
    assert problems(health, 61_000) == []
    assert problems(health, 61_001) == [
        "shard-0 has made no progress for 60 s: up to 5 records are in flight, and the first of them does not get done"
    ]


def test_a_failing_handler_is_named_as_the_reason(serving: list[tuple[int, Event]]) -> None:
    """Only by the type of its error."""
    failures = [
        (second * 1_000, HandlerFailed(SHARD, Position("1"), Position("9"), 5, second, "KeyError"))
        for second in range(1, 4)
    ]
    health = health_after(*serving, (0, page(5, 0)), *failures)
    assert problems(health, 2 * MINUTE) == [
        (
            "shard-0 has made no progress for 120 s: up to 5 records are in flight, and the first of them does not get "
            "done; the handler raises KeyError, 3 times"
        )
    ]


def test_a_shard_that_cannot_be_read_is_unhealthy(serving: list[tuple[int, Event]]) -> None:
    """The problem includes the last error."""
    health = health_after(*serving, (1_000, page(0, 0)), (2_000, ReadFailed(SHARD, "no response", 500)))
    assert problems(health, 2 * MINUTE) == [
        "shard-0 has made no progress for 119 s: no page was read; reading fails: no response, 1 times"
    ]


def test_reading_without_getting_nearer_is_unhealthy(serving: list[tuple[int, Event]]) -> None:
    """Empty pages that do not lead to the tip are not progress."""
    polls = [(second * 1_000, page(0, 5_000 + second)) for second in range(120)]
    assert problems(health_after(*serving, *polls), 2 * MINUTE) == [
        "shard-0 has made no progress for 120 s: pages are read, but the tip does not get nearer"
    ]


def test_a_shard_that_catches_up_is_healthy(serving: list[tuple[int, Event]]) -> None:
    """A restart would not help it."""
    day_ms = 86_400_000
    work: list[tuple[int, Event]] = []
    for minute in range(10):
        done = replace(HANDLED, end=Position(str(minute)))
        work += [(minute * MINUTE, page(5, day_ms)), (minute * MINUTE + 59_000, done)]
    assert problems(health_after(*serving, *work), 10 * MINUTE) == []


def test_a_shard_that_waits_for_its_parents_is_healthy() -> None:
    """A child has nothing to do until its parents have ended."""
    health = health_after((0, STARTED), (0, TAKEN), (0, ShardBlockedOnParents(SHARD, (ShardId("shard-9"),))))
    assert problems(health, 10 * MINUTE) == []


def test_a_shard_without_progress_after_its_parents_ended_is_unhealthy() -> None:
    """Waiting for parents is no excuse after they have ended."""
    waiting = ShardBlockedOnParents(SHARD, (ShardId("shard-9"),))
    health = health_after((0, STARTED), (0, TAKEN), (0, waiting), (1_000, READING), (1_000, page(5, 0)))
    assert len(problems(health, 2 * MINUTE)) == 1


def test_a_lost_shard_is_no_longer_a_problem(serving: list[tuple[int, Event]]) -> None:
    """Once other members may serve it, this member is healthy again."""
    lost = LeaseLost(LeaseKey(SHARD), SHARD, None, "its shard makes no progress here")
    health = health_after(*serving, (0, page(5, 0)), (2 * MINUTE, lost))
    assert problems(health, 2 * MINUTE) == []


def test_leases_that_are_not_renewed_in_time_are_a_problem(serving: list[tuple[int, Event]]) -> None:
    """After the failover time other members may take them."""
    health = health_after(*serving, (5_000, LeasesRenewed(0, 1, 4)))
    assert health.report(10_000).problem is None
    problem = health.report(10_001).problem
    assert problem is not None
    assert "last renewed 10 s ago" in problem


def test_taking_the_first_lease_counts_as_a_heartbeat() -> None:
    """A member that had no lease for an hour is healthy when it takes one."""
    health = health_after((0, STARTED), (60 * MINUTE, TAKEN))
    assert health.report(60 * MINUTE + 9_000).is_healthy


def test_a_member_without_leases_is_healthy_while_the_table_responds() -> None:
    """It has nothing to renew."""
    refreshes = [(second * 1_500, FleetRefreshed(4, 0, 0, 2)) for second in range(100)]
    assert health_after((0, STARTED), *refreshes).report(150_000).is_healthy


def test_a_table_that_never_responds_is_a_problem() -> None:
    """A member that cannot start is unhealthy, and the problem names the table."""
    health = health_after((0, STARTED))
    assert health.report(30_000).is_healthy
    assert (
        health.report(30_001).problem
        == "no request to the lease table has succeeded for 30 s: is it reachable?"
    )


def test_a_stopped_member_is_unhealthy(serving: list[tuple[int, Event]]) -> None:
    """It does no work."""
    health = health_after(*serving, (5, MemberStopped(WorkerId("w"), 1)))
    assert health.report(6).problem == "the member has stopped"


def test_the_json_report_lists_the_problems(serving: list[tuple[int, Event]]) -> None:
    """With the shard of each."""
    report = health_to_json(health_after(*serving, (0, RENEWED), (0, page(5, 40))).report(2_000))
    assert json.loads(json.dumps(report)) == {
        "ok": True,
        "state": "running",
        "problems": [],
        "warnings": [],
        "severity": "ok",
        "findings": [],
        "kinesis_calls": {},
        "shards": {
            "shard-0": {
                "ok": True,
                "lag_ms": 40,
                "idle_ms": 2_000,
                "records_in_flight": 5,
                "waits_for": [],
            }
        },
    }


def test_a_record_that_fails_each_time_is_a_finding_before_the_shard_is_stuck(
    serving: list[tuple[int, Event]],
) -> None:
    """The status stays 200: a restart would not help."""
    failed = HandlerFailed(SHARD, TRIM_HORIZON, Position("7"), 1, 3, "KeyError")
    report = health_to_json(health_after(*serving, (0, RENEWED), (0, page(1, 40)), (1, failed)).report(2_000))
    assert report["ok"]
    (finding,) = report["findings"]
    assert (finding["code"], finding["shard"], finding["severity"]) == ("handler_fails", SHARD, "problem")
    assert finding["text"] == "its handler has failed 3 times on the record at 7: KeyError"
    assert "dead_letters" in finding["remedy"]


def test_a_record_that_fails_once_does_not_hide_one_that_fails_each_time(
    serving: list[tuple[int, Event]],
) -> None:
    """Records of different keys may fail at the same time."""
    often = HandlerFailed(SHARD, TRIM_HORIZON, Position("7"), 1, 40, "KeyError")
    once = HandlerFailed(SHARD, TRIM_HORIZON, Position("9"), 1, 1, "OSError")
    health = health_after(*serving, (0, RENEWED), (0, page(1, 40)), (1, often), (2, once))
    (finding,) = health_to_json(health.report(2_000))["findings"]
    assert finding["text"] == "its handler has failed 40 times on the record at 7: KeyError"


def test_what_a_review_has_found_is_reported(serving: list[tuple[int, Event]]) -> None:
    found = Finding(
        code="falling_behind", severity=Severity.NOTICE, text="it falls behind", shard=LeaseKey(SHARD)
    )
    health = health_after(*serving, (0, RENEWED), (1, FindingsReviewed((found,))))
    report = health_to_json(health.report(2_000))
    assert (report["ok"], report["severity"]) == (True, "notice")
    assert [finding["text"] for finding in report["findings"]] == ["it falls behind"]
    health.observe(FindingsReviewed(()), 3_000)
    assert health_to_json(health.report(3_000))["findings"] == []


def test_a_row_that_cannot_be_read_is_a_warning_while_it_lasts() -> None:
    """A restart does not repair it, so the member is healthy; the warning names the row, the effect and the remedy."""
    rejected = RowRejected(
        "shardId-7", "checkpoint: missing; repair or delete the row", "its shard is not read"
    )
    health = health_after((0, STARTED), (0, rejected), (5, rejected))
    report = health_to_json(health.report(10))
    assert report["ok"]
    (warning,) = report["warnings"]
    assert warning.startswith(
        "row 'shardId-7' of the lease table cannot be read: checkpoint: missing; repair or delete"
    )
    assert warning.endswith("; its shard is not read")
    assert report["severity"] == "problem"
    assert [finding["code"] for finding in report["findings"]] == ["unreadable_row"]
    health.observe(RowRecovered("shardId-7"), 20)
    assert health_to_json(health.report(30))["warnings"] == []


def test_many_rows_that_cannot_be_read_are_counted() -> None:
    """A table of another program does not fill the response."""
    health = health_after((0, STARTED), *((0, RowRejected(f"row-{n}", "bad", "")) for n in range(100)))
    warnings = health_to_json(health.report(10))["warnings"]
    assert len(warnings) == 9
    assert warnings[-1] == "92 more rows of the lease table cannot be read"
