"""The documented ratios and the targets, compared with the last runs."""

import importlib
import json
from pathlib import Path

import pytest

from benchmarks import ratios
from benchmarks.__main__ import BENCHMARKS, finish, print_ratios, read_last_runs
from benchmarks.harness import Result, read_results, write_results
from benchmarks.ratios import Ratio, document_ratios, documented_ratios

LOAD = {"load": "0.1"}
TARGETS = [
    {"name": "first", "comparison": "a", "contestant": "ours", "peer": "theirs", "target": 0.5},
    {"name": "second", "comparison": "b", "contestant": "ours", "target": 2.0, "unit": "s"},
    {"name": "third", "comparison": "c", "contestant": "ours", "peer": "theirs", "at_least": True},
]


@pytest.fixture
def documented(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A file of ratios: the first and the second are documented."""
    file = tmp_path / "ratios.json"
    file.write_text(json.dumps({"targets": TARGETS, "documented": {"first": 0.6, "second": 1.5}}))
    monkeypatch.setattr(ratios, "DOCUMENTED", file)
    return file


def result(key: str, value: float, load: str = "0.1") -> Result:
    """A result whose ratio is the value."""
    return Result(key, "?", "s", "make bench", "", {"ours": [value], "theirs": [1.0]}, {"load": load})


def test_every_ratio_is_printed_with_its_target(
    documented: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """From the last runs without and with Java: one line for each, also for those that neither has measured."""
    write_results(tmp_path / "bench.json", [result("a", 10.0), result("b", 1.6)])
    write_results(tmp_path / "java.json", [result("a", 0.7)])
    files = [tmp_path / name for name in ("bench.json", "java.json", "missing.json")]
    with pytest.raises(SystemExit, match="0"):
        print_ratios(read_last_runs(*files), with_unmeasured=True)
    assert [line.strip() for line in capsys.readouterr().out.splitlines()[2:]] == [
        "first: documented 0.60, measured 0.70, target at most 0.50: missed",
        "second: documented 1.50 s, measured 1.60 s, target at most 2.00 s: met",
        "third: documented -, measured -, target -: no target",
    ]
    with pytest.raises(SystemExit, match="1"):
        print_ratios(read_last_runs(files[0]))
    assert "MISSED by more than a third" in capsys.readouterr().out


def test_a_run_fails_by_the_documented_ratio_and_not_by_the_target(documented: Path) -> None:
    """More than a third worse than what was documented, in a direction of its own; nothing else fails."""
    assert finish({"a": result("a", 0.79)}, writes_docs=False) == 0
    assert finish({"a": result("a", 0.81)}, writes_docs=False) == 1
    assert finish({"c": result("c", 0.0)}, writes_docs=False) == 0
    higher = Ratio("r", "c", "ours", "theirs", at_least=True, documented=3.0)
    assert [higher.is_missed(each) for each in (9.0, 2.1, 1.9)] == [False, False, True]


def test_seconds_of_a_busy_machine_do_not_fail(documented: Path) -> None:
    """Only ratios of one run can be compared then."""
    assert finish({"b": result("b", 9.0)}, writes_docs=False) == 1
    assert finish({"b": result("b", 9.0, load="99.0")}, writes_docs=False) == 0
    assert finish({"a": result("a", 9.0, load="99.0")}, writes_docs=False) == 1


def test_measured_ratios_are_documented_and_targets_stay(documented: Path) -> None:
    """Those of other comparisons stay as they were."""
    document_ratios([result("a", 0.4567), result("c", 3.0)])
    content = json.loads(documented.read_text())
    assert content["targets"] == TARGETS
    assert content["documented"] == {"first": 0.457, "second": 1.5, "third": 3.0}


def test_a_run_of_one_comparison_keeps_the_results_of_the_others(tmp_path: Path) -> None:
    """They are in one file, each with its own environment."""
    file = tmp_path / "build" / "bench.json"
    write_results(file, [result("a", 1.0), result("b", 2.0)])
    write_results(file, [result("b", 3.0, load="1.5")])
    assert [(each.key, each.values["ours"], each.environment) for each in read_results(file)] == [
        ("a", [1.0], LOAD),
        ("b", [3.0], {"load": "1.5"}),
    ]


def test_every_ratio_is_measured_by_a_benchmark() -> None:
    """`--only` knows its comparison, and no name stands for two ratios."""
    pytest.importorskip("pyspark")
    known = {key for name in BENCHMARKS.values() for key in importlib.import_module(name).COMPARISONS}
    found = documented_ratios()
    assert {each.comparison.partition(":")[0] for each in found} <= known
    assert len({each.name for each in found}) == len(found)
