"""The folder in which processes of one user find each other: nobody else may write there."""

import tempfile
from pathlib import Path

import pytest

from leasehold.errors import ConfigError
from leasehold.spark.query.driver_lock import runtime_folder


@pytest.fixture(autouse=True)
def _temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))


def test_it_is_made_for_this_user_alone() -> None:
    """And found again."""
    assert runtime_folder().stat().st_mode & 0o777 == 0o700
    assert runtime_folder().is_dir()


def test_a_link_is_refused() -> None:
    """It may lead to where others write."""
    folder = runtime_folder()
    folder.rmdir()
    folder.symlink_to(folder.parent)
    with pytest.raises(ConfigError, match="TMPDIR"):
        runtime_folder()


def test_a_folder_that_others_may_write_to_is_refused() -> None:
    """What stands in it decides whether a batch is done."""
    runtime_folder().chmod(0o770)
    with pytest.raises(ConfigError, match="TMPDIR"):
        runtime_folder()
