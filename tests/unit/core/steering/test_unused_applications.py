"""Applications among the tables of an account, and whether somebody uses them."""

from collections.abc import Sequence

import pytest

from leasehold.core.leases.lease_row import lease_to_row
from leasehold.core.leases.row_writes import Row, number, text
from leasehold.core.model import Lease, LeaseKey, ShardId
from leasehold.core.position import TRIM_HORIZON
from leasehold.core.steering.unused_applications import (
    OWNER_INDEX,
    ApplicationTables,
    TableShape,
    Usage,
    application_to_json,
    find_applications,
    judge_application,
)

BILLING = ApplicationTables("billing")
NOW_S, DAY_S = 1_790_000_000, 86_400
LEASE = lease_to_row(Lease(key=LeaseKey("s-0"), shard_id=ShardId("s-0"), checkpoint=TRIM_HORIZON))


def shape(name: str, key: str = "leaseKey", *indexes: str) -> TableShape:
    return TableShape(name, ((key, "S", "HASH"),), frozenset(indexes))


def report(updated_s: int) -> Row:
    return {"leaseKey": text("w-1"), "entityType": text("WORKER_METRIC_STATS"), "lut": number(updated_s)}


def usage_of(rows: Sequence[Row], later: Sequence[Row] | None = None) -> Usage:
    after = {"billing": rows if later is None else later}
    return judge_application(BILLING, {"billing": rows}, after, wall_s=NOW_S, idle_s=7 * DAY_S).usage


def test_applications_are_found_by_keys_and_names() -> None:
    """A table with another key, a range key or an index of its own belongs to another program."""
    found = find_applications(
        [
            shape("billing", "leaseKey", OWNER_INDEX),
            shape("billing-CoordinatorState", "key"),
            shape("billing-WorkerMetricStats", "wid"),
            shape("orders", "id"),
            shape("lookalike", "leaseKey", "by-customer"),
            TableShape("ranged", (("leaseKey", "S", "HASH"), ("at", "N", "RANGE"))),
            TableShape("numbers", (("leaseKey", "N", "HASH"),)),
            shape("plain"),
            shape("plain-CoordinatorState", "id"),
        ]
    )
    assert found == [
        ApplicationTables("billing", ("billing-CoordinatorState", "billing-WorkerMetricStats")),
        ApplicationTables("plain"),
    ]
    assert found[0].names[-1] == "billing"


@pytest.mark.parametrize(
    ("rows", "later", "usage"),
    [
        ([LEASE], None, Usage.UNKNOWN),
        ([], None, Usage.UNKNOWN),
        ([LEASE], [{**LEASE, "leaseCounter": number(1)}], Usage.IN_USE),
        ([LEASE, report(NOW_S - DAY_S)], None, Usage.RECENT),
        ([LEASE, report(NOW_S - 8 * DAY_S)], None, Usage.UNUSED),
        ([LEASE, report(NOW_S - 8 * DAY_S)], [report(NOW_S - 8 * DAY_S), LEASE], Usage.UNUSED),
        ([LEASE, {"leaseKey": text("note"), "text": text("keep")}], None, Usage.FOREIGN),
        ([LEASE, {"leaseKey": text("x"), "entityType": text("ORDER")}], None, Usage.FOREIGN),
        ([LEASE, {**LEASE, "leaseKey": text("s-1"), "leaseCounter": text("7")}], None, Usage.FOREIGN),
    ],
)
def test_usage(rows: Sequence[Row], later: Sequence[Row] | None, usage: Usage) -> None:
    """Only a table whose rows are all known and stay the same is unused."""
    assert usage_of(rows, later) is usage


def test_the_two_more_tables_of_the_kcl_count_as_well() -> None:
    """A report there shows use, and a row of another program prevents the deletion of all."""
    tables = ApplicationTables("billing", ("billing-WorkerMetricStats",))
    rows: dict[str, Sequence[Row]] = {
        "billing": [LEASE],
        "billing-WorkerMetricStats": [{"wid": text("w-1"), "lut": number(NOW_S - 5)}],
    }
    judged = judge_application(tables, rows, rows, wall_s=NOW_S, idle_s=DAY_S)
    assert (judged.usage, judged.reported_s) == (Usage.RECENT, NOW_S - 5)
    assert application_to_json(judged)["may_be_deleted"] is False
    assert application_to_json(judged)["last_report"] == "2026-09-21T14:13:15Z"
    rows["billing-WorkerMetricStats"] = [{"wid": text("customer")}]
    assert judge_application(tables, rows, rows, wall_s=NOW_S, idle_s=DAY_S).usage is Usage.FOREIGN
