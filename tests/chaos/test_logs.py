"""Lost leases and bugs are found in the logs."""

from pathlib import Path

from tests.chaos.accounting import Disruption
from tests.chaos.logs import find_logged_bugs, find_lost_leases


def test_lost_leases_are_found_with_their_shards(tmp_path: Path) -> None:
    """The name of the log is the worker. Other lines are ignored."""
    (tmp_path / "worker-1.log").write_text(
        'operation failed operation=refresh error=x\nlease lost shard=s-3 owner=- reason="not in time"\n'
    )
    (tmp_path / "worker-2.log").write_text("")
    assert find_lost_leases(tmp_path) == [Disruption("worker-1", "its owner was cut off", shard="s-3")]


def test_bugs_are_found_in_all_logs(tmp_path: Path) -> None:
    """Each bug is returned once, with its count."""
    for name in ("archivers", "spark"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "some.log").write_text("lease taken shard=s-1\na bug: shard=s-1 NameError at\n")
    assert find_logged_bugs(tmp_path) == ["a bug was logged 2 times: shard=s-1 NameError at"]
