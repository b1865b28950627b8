"""Writes tables and plots of a run into docs/performance.md, between the marks `<!-- bench:KEY -->` and `<!-- end -->`.

    python -m benchmarks --write-docs
    python -m benchmarks.performance_docs [FILE ...]     from the files of earlier runs, with their ratios

A table without a result in the run stays as it is, and one with the Java KCL is not replaced by one without it. The
table of ratios is made from documented_ratios.json; a test compares the two.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from benchmarks import sizing
from benchmarks.harness import Result, number_text, read_results
from benchmarks.plots import bar_chart
from benchmarks.ratios import document_ratios, documented_ratios

PAGE = Path(__file__).parent.parent / "docs" / "performance.md"
PLOTS = PAGE.parent / "plots"
WITH_JAVA = "make bench-java"
_BLOCK = re.compile(r"<!-- bench:(?P<key>[^>]+) -->\n(?P<body>.*?)<!-- end -->", re.DOTALL)


def write_docs(results: Sequence[Result]) -> list[str]:
    """Replace the tables of these results, and the table of ratios. Plots are written beside the page.

    Returns a sentence for each table that stays as it is although there is a new result.
    """
    page, kept = PAGE.read_text(), []
    earlier = {match["key"].strip(): match["body"] for match in _BLOCK.finditer(page)}
    bodies = {"ratios": ratio_table(), "sizing": sizing.table()}
    PLOTS.mkdir(exist_ok=True)
    for group, members in _grouped(results).items():
        if loses_java(earlier.get(group, ""), members[0]):
            kept.append(f"the table {group} stays, because it has the Java KCL and this run has not")
        elif group == members[0].key:
            (PLOTS / f"{group}.svg").write_text(bar_chart(members[0]))
            bodies[group] = result_table(members[0])
        else:
            bodies[group] = group_table(members)
    PAGE.write_text(with_bodies(page, bodies))
    return kept


def loses_java(body: str, result: Result) -> bool:
    """Whether a table has contestants that only run with Java, and a new result has not."""
    return WITH_JAVA in body and WITH_JAVA not in result.command


def _grouped(results: Sequence[Result]) -> dict[str, list[Result]]:
    groups: dict[str, list[Result]] = {}
    for each in results:
        groups.setdefault(group_of(each.key), []).append(each)
    return groups


def group_of(key: str) -> str:
    """Results with a colon in their key share one table.

    >>> group_of("deaggregation: plain records"), group_of("worker-100")
    ('deaggregation', 'worker-100')
    """
    return key.partition(":")[0]


def with_bodies(page: str, bodies: Mapping[str, str]) -> str:
    r"""Replace the blocks of a page.

    >>> with_bodies("<!-- bench:a -->\nold\n<!-- end -->", {"a": "new\n"})
    '<!-- bench:a -->\nnew\n<!-- end -->'
    """

    def body(match: re.Match[str]) -> str:
        return f"<!-- bench:{match['key']} -->\n{bodies.get(match['key'].strip(), match['body'])}<!-- end -->"

    return _BLOCK.sub(body, page)


def result_table(result: Result) -> str:
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
            _source_line(result),
            "",
        ]
    )


def group_table(results: Sequence[Result]) -> str:
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
            _source_line(results[0]),
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


def _source_line(result: Result) -> str:
    load = result.environment.get("load", "unknown")
    busy = (
        f" **The machine was busy (load {load}): compare the ratios.**" if result.is_of_a_busy_machine else ""
    )
    where = ", ".join(f"{name} {text}" for name, text in result.environment.items())
    return f"`{result.command}`; limited by {result.limit}. {where}.{busy}"


def ratio_table() -> str:
    """The documented ratios and the targets."""
    rows = [
        f"| {each.name} | {each.text(each.documented)} | {each.target_text} | {each.verdict(each.documented)} |"
        for each in documented_ratios()
    ]
    return "\n".join(["| what | measured | target | |", "|---|---|---|---|", *rows, ""])


def main(files: Sequence[Path]) -> None:
    """Write the results of files into the docs. A later file replaces results of an earlier one."""
    results = {result.key: result for file in files for result in read_results(file)}
    document_ratios(results.values())
    for kept in write_docs(list(results.values())):
        print(kept)


if __name__ == "__main__":
    main([Path(name) for name in sys.argv[1:] or ("build/bench.json", "build/bench-java.json")])
