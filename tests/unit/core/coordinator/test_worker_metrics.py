"""A worker's report: the KCL's row in both layouts, honest figures, and nothing believed that cannot be right."""

import pytest

from leasehold.core.coordinator.worker_metrics import (
    LoadSamples,
    WorkerReport,
    cpu_report,
    create_report,
    delete_report,
    report_from_row,
    reports_from_rows,
    update_report,
)
from leasehold.core.leases.row_writes import Attribute, Row, may_apply, next_row
from leasehold.core.model import WorkerId
from leasehold.errors import MalformedRowError

WORKER = WorkerId("worker-py-1")
ROW: Row = {
    "leaseKey": {"S": "worker-py-1"},
    "entityType": {"S": "WORKER_METRIC_STATS"},
    "lut": {"N": "1790000030"},
    "sts": {"M": {"C": {"L": [{"N": "12.5"}, {"N": "14.083333"}]}}},
    "opr": {"M": {"C": {"L": [{"N": "100"}]}}},
    "sup": {"N": "1"},
    "slu": {"N": "1790000030"},
}


def test_the_row_is_the_kcls() -> None:
    """What we write is what Java writes, to the attribute; and it reads back."""
    report = cpu_report(WORKER, LoadSamples((), (12.5, 14.0833333)), 1_790_000_030)
    assert next_row(create_report(report, "leaseKey"), None) == ROW
    assert report_from_row(ROW, "leaseKey").samples == {"C": (12.5, 14.083333)}
    legacy = next_row(create_report(report, "wid"), None)
    assert legacy is not None
    assert legacy["wid"] == {"S": WORKER}
    assert report_from_row(legacy, "wid").worker == WORKER


def test_a_row_of_kcl_3_0_is_read() -> None:
    """Neither kind nor support code is needed in the table of its own."""
    row: Row = {"wid": {"S": "w"}, "lut": {"N": "5"}, "sts": {"M": {}}, "opr": {"M": {}}}
    assert report_from_row(row, "wid") == WorkerReport(worker=WorkerId("w"), updated_s=5)


def test_a_report_never_overwrites_a_lease() -> None:
    """A worker named like a shard finds its update and its first report refused."""
    lease: Row = {"leaseKey": {"S": WORKER}, "entityType": {"S": "LEASE"}}
    report = cpu_report(WORKER, None, 7)
    assert not may_apply(update_report(report, "leaseKey"), lease)
    assert not may_apply(create_report(report, "leaseKey"), lease)


def test_a_report_is_taken_back_only_if_it_is_the_last() -> None:
    """A leader that cleans up does not delete what was renewed meanwhile."""
    report = report_from_row(ROW, "leaseKey")
    assert may_apply(delete_report(report), ROW)
    assert not may_apply(delete_report(report), {**ROW, "lut": {"N": "1790000060"}})


def test_without_a_figure_the_row_has_neither_figures_nor_ranges() -> None:
    """A range without figures would attract every lease of a Java leader."""
    for samples in (None, LoadSamples()):
        row = next_row(create_report(cpu_report(WORKER, samples, 7), "leaseKey"), None)
        assert row is not None
        assert row["sts"] == row["opr"] == {"M": {}}
        assert report_from_row(row, "leaseKey").has_no_metrics


def test_a_report_is_the_mean_of_what_was_measured() -> None:
    """Failed and impossible measurements are missing; if all are, the report says so; ten are kept."""
    samples = LoadSamples()
    for sample in (10.0, None, 30.0, float("nan"), -3.0, 101.0):
        samples = samples.with_sample(sample)
    samples = samples.with_average()
    assert samples == LoadSamples((), (20.0,))
    samples = samples.with_average()
    assert samples.reported == (20.0, -1.0)
    assert cpu_report(WORKER, samples, 7).is_failing
    for _ in range(12):
        samples = samples.with_sample(50.0).with_average()
    assert samples.reported == (50.0,) * 10


def test_the_busiest_resource_counts_and_its_range() -> None:
    """Utilisation is that of the scarcest resource, smoothed; above the range is above any of them."""
    report = WorkerReport(
        worker=WORKER,
        updated_s=0,
        samples={"C": (20.0, -1.0, 60.0, 80.0), "NI": (30.0,)},
        ranges={"C": (90,), "NI": (25,)},
    )
    assert report.utilisation() == 60.0
    assert report.room() == -5.0


@pytest.mark.parametrize(
    "wrong",
    [
        {"lut": {"N": "1790000030123"}},
        {"lut": {"N": "1.5"}},
        {"lut": {"S": "5"}},
        {"sts": {"M": {"C": {"L": [{"N": "NaN"}]}}}},
        {"sts": {"M": {"C": {"L": [{"N": "101"}]}}}},
        {"sts": {"M": {"C": {"L": []}}}},
        {"sts": {"M": {"C": {"N": "5"}}}},
        {"sts": {"L": []}},
        {"sts": {"M": {}}},
        {"opr": {"M": {"C": {"L": [{"N": "0"}]}}}},
        {"opr": {"M": {"C": {"L": [{"N": "99.5"}]}}}},
        {"opr": {"M": {"NI": {"L": [{"N": "100"}]}}}},
        {"sup": {"N": "x"}},
        {"leaseKey": {"S": "worker\x1b[2J"}},
    ],
    ids=str,
)
def test_a_row_that_cannot_be_right_is_refused(wrong: dict[str, Attribute]) -> None:
    """It hides no other row, and its worker gets no leases."""
    other = {**ROW, "leaseKey": {"S": "other"}}
    with pytest.raises(MalformedRowError):
        report_from_row({**ROW, **wrong}, "leaseKey")
    listing = reports_from_rows([{**ROW, **wrong}, other], "leaseKey")
    assert [report.worker for report in listing.reports] == ["other"]
    assert len(listing.rejected) == 1


def test_a_worker_that_is_there_twice_counts_once() -> None:
    """In the middle of a migration it may be in both tables; the newer row is the one that counts."""
    older = report_from_row({**ROW, "lut": {"N": "5"}}, "leaseKey")
    newer = report_from_row(ROW, "leaseKey")
    assert reports_from_rows([ROW, {**ROW, "lut": {"N": "5"}}], "leaseKey").reports == (newer,)
    assert older != newer
