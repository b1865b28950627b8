"""The documented ratios, compared with the last runs."""

from pathlib import Path

import pytest

from benchmarks.__main__ import print_ratios, read_last_runs
from benchmarks.harness import Result, documented_ratios, write_json


def test_every_documented_ratio_is_printed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """From the last runs without and with Java: one line for each, also for those that neither has measured."""
    first = documented_ratios()[0]
    for name, ratio in (("bench.json", 10 * first.ratio), ("java.json", first.ratio)):
        result = Result(first.comparison, "?", "s", "make bench", "")
        result.add(first.of, ratio)
        result.add(first.to, 1)
        write_json(tmp_path / name, {}, [result])
    files = [tmp_path / name for name in ("bench.json", "java.json", "missing.json")]
    with pytest.raises(SystemExit, match="0"):
        print_ratios(read_last_runs(*files), with_unmeasured=True)
    lines = capsys.readouterr().out.splitlines()[2:]
    assert len(lines) == len(documented_ratios())
    assert lines[0].startswith("  holds")
    assert all(line.endswith("was not measured") for line in lines[1:])
    with pytest.raises(SystemExit, match="1"):
        print_ratios(read_last_runs(files[0]))
