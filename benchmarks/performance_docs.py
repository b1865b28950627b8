"""Writes tables and plots of a run into docs/performance.md, between the marks `<!-- bench:KEY -->` and `<!-- end -->`.

    python -m benchmarks --write-docs
    python -m benchmarks.performance_docs [FILE]     from the JSON of an earlier run

A table without a result in the run stays as it is. The table of ratios is made from documented_ratios.json; a test
compares the two.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from benchmarks import sizing
from benchmarks.harness import Result, documented_ratios, number_text, read_json
from benchmarks.plots import bar_chart

PAGE = Path(__file__).parent.parent / "docs" / "performance.md"
PLOTS = PAGE.parent / "plots"
_BLOCK = re.compile(r"<!-- bench:(?P<key>[^>]+) -->\n(?P<body>.*?)<!-- end -->", re.DOTALL)


def write_docs(started: Mapping[str, str], results: Sequence[Result]) -> None:
    """Replace the tables of these results, and the table of ratios. Plots are written beside the page."""
    PLOTS.mkdir(exist_ok=True)
    bodies = {"ratios": ratio_table(), "sizing": sizing.table()}
    for result in results:
        if (group := group_of(result.key)) == result.key:
            (PLOTS / f"{group}.svg").write_text(bar_chart(result))
            bodies[group] = result_table(result, started)
    grouped = [each for each in results if group_of(each.key) != each.key]
    for group in {group_of(each.key) for each in grouped}:
        bodies[group] = group_table([each for each in grouped if group_of(each.key) == group], started)
    PAGE.write_text(with_bodies(PAGE.read_text(), bodies))


def group_of(key: str) -> str:
    """Results with a colon in their key share one table.

    >>> group_of("deaggregation: plain records"), group_of("worker-100")
    ('deaggregation', 'worker-100')
    """
    return key.partition(":")[0]


def with_bodies(page: str, bodies: Mapping[str, str]) -> str:
    r"""Replace the blocks of a page.

    >>> with_bodies("<!-- bench:a -->\\nold\\n<!-- end -->", {"a": "new\\n"})
    '<!-- bench:a -->\\nnew\\n<!-- end -->'
    """

    def body(match: re.Match[str]) -> str:
        return f"<!-- bench:{match['key']} -->\n{bodies.get(match['key'].strip(), match['body'])}<!-- end -->"

    return _BLOCK.sub(body, page)


def result_table(result: Result, started: Mapping[str, str]) -> str:
    """The table of one comparison, with its plot, its command and what limits it."""
    rows = [f"| {name} | {median} | {spread} | {ratio} |" for name, median, spread, ratio in result.rows()]
    return "\n".join(
        [
            f"![{result.question}](plots/{result.key}.svg)",
            "",
            f"| {result.unit} | median | lowest to highest | ratio |",
            "|---|---|---|---|",
            *rows,
            "",
            _source_line(result, started),
            "",
        ]
    )


def group_table(results: Sequence[Result], started: Mapping[str, str]) -> str:
    """One table for several comparisons. Each cell says how many times as fast as the first contestant it is."""
    names = list(dict.fromkeys(name for each in results for name in each.values))
    rows = [
        f"| {each.key.partition(': ')[2]} | {' | '.join(_cell(each, names[0], name) for name in names)} |"
        for each in results
    ]
    return "\n".join(
        [
            f"| {results[0].unit} | {' | '.join(names)} |",
            "|---" * (len(names) + 1) + "|",
            *rows,
            "",
            _source_line(results[0], started),
            "",
        ]
    )


def _cell(result: Result, first: str, name: str) -> str:
    if name not in result.values:
        return "-"
    text = number_text(result.median(name))
    if name == first or first not in result.values:
        return text
    return f"{text} ({result.median(first) / result.median(name):.1f} x)"


def _source_line(result: Result, started: Mapping[str, str]) -> str:
    cores = os.cpu_count() or 1
    is_busy = float(started["load"]) > cores
    busy = f" **The machine was busy (load {started['load']}): compare the ratios.**" if is_busy else ""
    where = ", ".join(f"{name} {text}" for name, text in started.items())
    return f"`{result.command}`; limited by {result.limit}. {where}.{busy}"


def ratio_table() -> str:
    """The documented ratios."""
    rows = [
        f"| {each.comparison} | {each.of} | {each.to} | {'at most' if each.lower_is_better else 'at least'} "
        f"{each.ratio:g} |"
        for each in documented_ratios()
    ]
    return "\n".join(["| comparison | of | to | ratio |", "|---|---|---|---|", *rows, ""])


if __name__ == "__main__":
    write_docs(*read_json(Path(sys.argv[1] if len(sys.argv) > 1 else "build/bench.json")))
