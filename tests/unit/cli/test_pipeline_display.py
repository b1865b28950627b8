"""The display of a pipeline's batches."""

import pytest

from leasehold.cli.pipeline_display import SHARDS_SHOWN, Completion, LiveTable, PlainLines
from leasehold.spark.pipeline.progress import BatchProgress

LAGS = {f"shard-{number:02}": number * 1000 for number in range(SHARDS_SHOWN + 3)}


def test_a_batch_without_records_prints_no_line(capsys: pytest.CaptureFixture[str]) -> None:
    """The log of an idle stream stays short."""
    with PlainLines() as lines:
        lines.show_batch(BatchProgress(3, 1_200, 34_567, 840, {"s-0": 1_500, "s-1": None}))
        lines.show_batch(BatchProgress(4, 0, 0, 3, {"s-0": 0}))
    out = capsys.readouterr().out
    assert out.endswith("batch 3: 1,200 records, 34.6 kB in 0.84 s; 2 shards, furthest behind: 1.5 s\n")
    assert out.count("\n") == 1


def test_a_repeated_batch_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    """After a kill, the first batch is one that the run before has planned. Nothing is known about lags then."""
    with PlainLines() as lines:
        lines.show_batch(BatchProgress(4, 12, 340, 840, {}, is_repeated=True))
    out = capsys.readouterr().out
    assert out.endswith(
        "in 0.84 s; repeated, with the same records: it was not finished before the restart\n"
    )


def test_a_bounded_run_shows_how_much_of_the_lag_has_been_read(capsys: pytest.CaptureFixture[str]) -> None:
    with LiveTable("copy", is_bounded=True) as table:
        for batch, behind_ms in enumerate((100_000, 60_000, 25_000)):
            table.show_batch(BatchProgress(batch, 10, 10, 5, {"s-0": behind_ms}))
    assert "75%" in capsys.readouterr().out


def test_the_rest_of_a_bounded_run_is_estimated_by_its_rate() -> None:
    completion = Completion()
    assert (completion.share, completion.left_ms()) == (None, None)
    for behind_ms, now_s in ((None, 0.0), (90_000, 1.0), (100_000, 2.0)):
        completion.add(behind_ms, now_s)
    assert (completion.share, completion.left_ms()) == (0.0, None)
    completion.add(25_000, 5.0)
    assert (completion.share, completion.left_ms()) == (0.75, 1_000)
    completion.add(0, 6.0)
    assert (completion.share, completion.left_ms()) == (1.0, 0)


def test_the_table_shows_totals_and_the_shards_furthest_behind(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """With many shards, the others are only counted."""
    with LiveTable("copy\x1b[31m") as table:
        table.show_batch(BatchProgress(0, 1_000, 2_000, 840, {}))
        table.show_batch(BatchProgress(1, 500, 1_000, 840, LAGS))
    out = capsys.readouterr().out
    assert "copy\\x1b[31m: 1,500 records, 3.0 kB" in out
    assert f"shard-{len(LAGS) - 1:02}" in out
    assert "shard-00" not in out
    assert "and 3 shards that are less behind" in out
