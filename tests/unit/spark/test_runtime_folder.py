"""The folder for files that processes of one user share. No other user may write to it."""

import tempfile
from pathlib import Path

import pytest

from leasehold.errors import ConfigError
from leasehold.spark.query.driver_lock import runtime_folder


@pytest.fixture(autouse=True)
def _temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))


def test_only_this_user_may_write_to_it() -> None:
    """A second call returns the same folder."""
    assert runtime_folder().stat().st_mode & 0o777 == 0o700
    assert runtime_folder().is_dir()


def test_a_symbolic_link_is_refused() -> None:
    """It may point to a folder that others can write to."""
    folder = runtime_folder()
    folder.rmdir()
    folder.symlink_to(folder.parent)
    with pytest.raises(ConfigError, match="TMPDIR"):
        runtime_folder()


def test_a_folder_that_others_may_write_to_is_refused() -> None:
    """Its files decide whether a batch counts as committed."""
    runtime_folder().chmod(0o770)
    with pytest.raises(ConfigError, match="TMPDIR"):
        runtime_folder()
