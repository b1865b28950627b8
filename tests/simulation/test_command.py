"""`leasehold simulate`: what it prints, and how it ends."""

from click.testing import CliRunner

from leasehold.cli.command import leasehold

QUICK = ["--workers", "2", "--shards", "2", "--minutes", "0.1", "--faults", "none"]


def test_one_seed_shows_its_trace() -> None:
    """A line an event, then the verdict."""
    result = CliRunner().invoke(leasehold, ["simulate", "--seed", "5", *QUICK])
    assert result.exit_code == 0, result.output
    lines = result.output.splitlines()
    assert "begins" in lines[0]
    assert lines[-1].startswith("sound: ")


def test_many_seeds_are_summed_up() -> None:
    """Only the sum is shown when nothing is broken."""
    result = CliRunner().invoke(leasehold, ["simulate", "--seeds", "2", "--jobs", "1", *QUICK])
    assert result.exit_code == 0, result.output
    assert "2 seeds, 0 broken" in result.output


def test_a_fault_that_nobody_knows_is_refused_with_the_known_ones() -> None:
    """One sentence, no traceback."""
    result = CliRunner().invoke(leasehold, ["simulate", "--faults", "locusts"])
    assert result.exit_code == 1
    assert "expected drawn, none, all" in result.output
