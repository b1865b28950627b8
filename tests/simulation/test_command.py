"""`leasehold simulate`: its output and its exit code."""

from click.testing import CliRunner

from leasehold.cli.command import leasehold

QUICK = ["--workers", "2", "--shards", "2", "--minutes", "0.1", "--faults", "none"]


def test_one_seed_shows_its_trace() -> None:
    """The output has a line per event, then the result."""
    result = CliRunner().invoke(leasehold, ["simulate", "--seed", "5", *QUICK])
    assert result.exit_code == 0, result.output
    lines = result.output.splitlines()
    assert "begins" in lines[0]
    assert lines[-1].startswith("passed: ")


def test_many_seeds_show_totals() -> None:
    """Only the totals are shown if every seed passes."""
    result = CliRunner().invoke(leasehold, ["simulate", "--seeds", "2", "--jobs", "1", *QUICK])
    assert result.exit_code == 0, result.output
    assert "2 seeds, 0 failed" in result.output


def test_an_unknown_fault_is_refused_with_a_list_of_the_known_ones() -> None:
    """The command prints one sentence and no traceback."""
    result = CliRunner().invoke(leasehold, ["simulate", "--faults", "locusts"])
    assert result.exit_code == 2
    assert "expected drawn, none, all" in result.output


def test_unequal_loads_need_a_leader() -> None:
    """The command names the options that are missing, instead of a run without loads."""
    result = CliRunner().invoke(leasehold, ["simulate", "--load"])
    assert result.exit_code == 2
    assert "--mode leader" in result.output
