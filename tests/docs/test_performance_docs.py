"""docs/performance.md states the ratios that `make bench` checks."""

import re

from benchmarks.harness import DocumentedRatio, Result, check_ratios, documented_ratios
from benchmarks.performance_docs import PAGE, PLOTS, ratio_table, with_bodies


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


def test_a_ratio_is_missed_by_more_than_a_third() -> None:
    """In the direction that is worse."""
    lower, higher = DocumentedRatio("c", "a", "b", 0.3), DocumentedRatio("c", "a", "b", 3.0, False)
    assert [lower.is_missed(each) for each in (0.1, 0.39, 0.41)] == [False, False, True]
    assert [higher.is_missed(each) for each in (9.0, 2.1, 1.9)] == [False, False, True]


def test_a_run_is_compared_with_what_it_measured() -> None:
    """Ratios of other comparisons are not mentioned."""
    first = documented_ratios()[0]
    values = {first.of: [first.ratio * 2], first.to: [1.0]}
    lines, all_hold = check_ratios(
        {first.comparison: Result(first.comparison, "How much?", "s", "make bench", "nothing", values)}
    )
    assert len(lines) == 1
    assert lines[0].startswith("MISSED")
    assert not all_hold
