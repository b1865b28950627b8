"""docs/performance.md states the ratios that `make bench` checks."""

import re
from pathlib import Path

import pytest

from benchmarks import performance_docs
from benchmarks.harness import Result
from benchmarks.performance_docs import PAGE, PLOTS, ratio_table, with_bodies, write_docs
from benchmarks.ratios import check_ratios, documented_ratios


def test_the_page_has_the_documented_ratios() -> None:
    """The table is the one that `make bench ARGS=--write-docs` would write."""
    page = PAGE.read_text()
    assert with_bodies(page, {"ratios": ratio_table()}) == page


def test_every_ratio_has_its_table() -> None:
    """A reader finds the comparison behind each ratio."""
    keys = re.findall(r"<!-- bench:([^ ]+) -->", PAGE.read_text())
    assert {each.comparison.partition(":")[0] for each in documented_ratios()} <= set(keys)


def test_every_plot_of_the_page_exists() -> None:
    """And no plot is left over."""
    named = set(re.findall(r"\(plots/([^)]+)\)", PAGE.read_text()))
    assert named == {each.name for each in PLOTS.glob("*.svg")}


def test_a_run_is_compared_with_what_it_measured() -> None:
    """Ratios of other comparisons are not mentioned."""
    first = next(
        each for each in documented_ratios() if each.documented is not None and each.peer is not None
    )
    assert first.documented is not None
    assert first.peer is not None
    values = {first.contestant: [first.documented * 2], first.peer: [1.0]}
    lines, all_hold = check_ratios(
        {first.comparison: Result(first.comparison, "How much?", "s", "make bench", "nothing", values)}
    )
    assert len(lines) == 1
    assert "MISSED" in lines[0]
    assert not all_hold


def test_a_table_with_the_java_kcl_is_not_replaced_by_one_without_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each run writes only its own tables; the order of `make bench` and `make bench-java` does not matter."""
    page = tmp_path / "performance.md"
    page.write_text(
        "".join(f"<!-- bench:{key} -->\nold {key}\n<!-- end -->\n" for key in ("a", "b", "ratios"))
    )
    monkeypatch.setattr(performance_docs, "PAGE", page)
    monkeypatch.setattr(performance_docs, "PLOTS", tmp_path / "plots")
    with_java = Result("a", "?", "s", "make bench-java ARGS=worker", "x", {"Java": [1.0]}, {"load": "0.1"})
    without = Result("a", "?", "s", "make bench ARGS=worker", "x", {"boto3": [1.0]}, {"load": "0.1"})
    assert write_docs([with_java]) == []
    assert write_docs([without]) == ["the table a stays, because it has the Java KCL and this run has not"]
    text = page.read_text()
    assert "| Java | 1.00 |" in text
    assert "| boto3 |" not in text
    assert "old b" in text
