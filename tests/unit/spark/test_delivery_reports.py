"""The archive sink notices delivered ranges of which no row reaches it."""

from pathlib import Path

import pytest

from leasehold.archive import ArchiveSettings
from leasehold.archive.archive import WriteReport
from leasehold.core.model import ShardId
from leasehold.errors import BrokenRangeError
from leasehold.spark.archive_sink import ArchiveCommit, ArchiveStreamWriter
from leasehold.spark.delivery_reports import DeliveryReports, RangeName, TaskName, open_delivery_reports
from leasehold.spark.range_assembly import assemble_ranges, range_name
from tests.unit.archive.archive_world import A, records, table

ONE, TWO, THREE = (RangeName("", ShardId(f"shardId-{number:012}"), 1, 5, "49") for number in range(3))


def task(attempt: int, *, stage: int = 0, partition: int = 0, batch: int = 7, run: str = "run") -> TaskName:
    return TaskName(run, batch, stage, partition, attempt)


def commit(*messages: ArchiveCommit | None) -> None:
    ArchiveStreamWriter(ArchiveSettings(url="out")).commit(list(messages), 7)


def message(delivered: set[RangeName], received: set[RangeName]) -> ArchiveCommit:
    return ArchiveCommit(WriteReport(), frozenset(delivered), frozenset(received))


def test_a_write_task_reads_the_report_of_its_own_attempt(tmp_path: Path) -> None:
    """Without a shuffle, source and sink run in the same attempt. Other attempts and tasks may have delivered more."""
    reports = DeliveryReports(tmp_path)
    reports.write(task(3), [ONE, TWO])
    reports.write(task(5), [ONE])
    reports.write(task(4, partition=1), [THREE])
    assert reports.read(task(5)) == {ONE}
    assert reports.read(task(3)) == {ONE, TWO}


def test_a_report_without_ranges_is_a_report(tmp_path: Path) -> None:
    """The source delivered nothing in this task, so what other tasks delivered does not matter."""
    reports = DeliveryReports(tmp_path)
    reports.write(task(3), [])
    reports.write(task(4, partition=1), [THREE])
    assert reports.read(task(3)) == set()


def test_a_task_that_reads_several_partitions_reports_all_of_them(tmp_path: Path) -> None:
    """As after coalesce."""
    reports = DeliveryReports(tmp_path)
    reports.write(task(3), [ONE])
    reports.write(task(3), [TWO])
    assert reports.read(task(3)) == {ONE, TWO}


def test_after_a_shuffle_the_last_attempt_of_each_task_counts(tmp_path: Path) -> None:
    """The attempt before may have delivered a range that has had another owner since then."""
    reports = DeliveryReports(tmp_path)
    reports.write(task(9), [ONE, TWO])
    reports.write(task(10), [ONE])
    reports.write(task(4, partition=1), [THREE])
    assert reports.read(task(20, stage=1)) == {ONE, THREE}


def test_reports_of_other_batches_and_runs_are_not_read(tmp_path: Path) -> None:
    """A run that repeats a batch reports its ranges again. Reports of earlier batches are deleted."""
    reports = DeliveryReports(tmp_path)
    reports.write(task(3, run="earlier"), [ONE])
    reports.write(task(3, batch=6), [ONE])
    reports.write(task(3, batch=7), [TWO])
    assert reports.read(task(9, stage=1)) == {TWO}
    assert reports.read(task(3, batch=6)) == set()
    assert [each.name for each in (tmp_path / "run").iterdir()] == ["7"]


def test_a_report_that_cannot_be_written_or_read_is_no_error(tmp_path: Path) -> None:
    """Then ranges are not checked."""
    (tmp_path / "file").touch()
    reports = DeliveryReports(tmp_path / "file")
    reports.write(task(3), [ONE])
    assert reports.read(task(3)) == set()


def test_the_folder_is_one_of_the_executor(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Outside of Spark there is none."""
    monkeypatch.setenv("SPARK_LOCAL_DIRS", f"{tmp_path},/other")
    reports = open_delivery_reports()
    assert reports is not None
    reports.write(task(3), [ONE])
    assert list(tmp_path.rglob("0.0.3"))
    monkeypatch.delenv("SPARK_LOCAL_DIRS")
    assert open_delivery_reports() is None


def test_a_batch_without_a_delivered_range_is_refused() -> None:
    """A range, all ranges of a task, and all ranges of a batch."""
    for messages in (
        [message({ONE, TWO}, {ONE})],
        [message({ONE}, {ONE}), message({TWO}, set())],
        [message({TWO}, set()), None],
    ):
        with pytest.raises(
            BrokenRangeError, match=r"1 with 5 rows did not reach the sink.*shardId-000000000001.*filter"
        ):
            commit(*messages)


def test_ranges_that_reach_the_sink_in_other_tasks_or_twice_are_not_missing() -> None:
    """As after a shuffle or a union. Ranges without a report cannot be checked."""
    commit()
    commit(message(set(), set()))
    commit(message({ONE}, {TWO}), message({ONE, TWO}, {ONE}))
    commit(message(set(), {ONE}))


def test_source_and_sink_give_a_range_the_same_name() -> None:
    """The name is built from records there, and from rows here."""
    given = records(range(5))
    (found,) = map(range_name, assemble_ranges(table(given).to_batches()))
    assert found == RangeName("", A, 1, 5, str(given[0].position))
