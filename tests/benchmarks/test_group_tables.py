"""One table for several comparisons, whose contestants may differ."""

from benchmarks.harness import Result
from benchmarks.performance_docs import group_table


def test_a_contestant_that_is_not_in_all_comparisons_has_its_own_column() -> None:
    """Its cell is empty elsewhere, and every ratio is that to the first contestant."""
    both = Result("g: both", "?", "ns", "make bench", "", {"peer": [200.0], "ours": [100.0]})
    more = Result(
        "g: more", "?", "ns", "make bench", "", {"peer": [300.0], "native": [10.0], "ours": [150.0]}
    )
    lines = group_table([both, more]).splitlines()
    assert lines[:4] == [
        "| ns | peer | ours | native |",
        "|---|---|---|---|",
        "| both | 200 | 100 (2.0 x) | - |",
        "| more | 300 | 150 (2.0 x) | 10.0 (30.0 x) |",
    ]
