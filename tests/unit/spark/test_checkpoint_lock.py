"""One checkpoint location has one running pipeline."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from leasehold.errors import ConfigError
from leasehold.spark.pipeline.checkpoint_lock import NAME, CheckpointLock, lock_file

HOLDER = """
import sys, time
from leasehold.spark.pipeline.checkpoint_lock import CheckpointLock
lock = CheckpointLock(sys.argv[1])
lock.acquire()
print("acquired", flush=True)
time.sleep(600)
"""


def test_a_second_run_is_refused_with_the_holder_of_the_lock(tmp_path: Path) -> None:
    """The folder need not exist before. After the release another run may start."""
    checkpoint = str(tmp_path / "new" / "checkpoint")
    first, second = CheckpointLock(checkpoint), CheckpointLock(f"file:{checkpoint}")
    first.acquire()
    with pytest.raises(ConfigError, match=rf"another run .* process {os.getpid()} on .*, since 20.* UTC"):
        second.acquire()
    first.release()
    second.acquire()
    second.release()


def test_the_lock_of_a_killed_run_is_free(tmp_path: Path) -> None:
    """Its file stays, but the operating system releases the lock."""
    with subprocess.Popen(
        [sys.executable, "-c", HOLDER, str(tmp_path)], stdout=subprocess.PIPE, text=True
    ) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "acquired\n"
        with pytest.raises(ConfigError, match=f"process {holder.pid} "):
            CheckpointLock(str(tmp_path)).acquire()
        holder.kill()
    assert (tmp_path / NAME).exists()
    lock = CheckpointLock(str(tmp_path))
    lock.acquire()
    lock.release()


def test_a_location_in_an_object_store_has_its_lock_on_this_machine() -> None:
    """It refuses a second run on the same machine only."""
    assert lock_file("s3a://bucket/a").parent == lock_file("s3a://bucket/b").parent
    assert lock_file("s3a://bucket/a") != lock_file("s3a://bucket/b")
    assert lock_file("file:///c%20d").parent == Path("/c d")
    assert lock_file("folder") == Path("folder") / NAME


def test_a_folder_that_cannot_be_created_is_reported(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(ConfigError, match="check that this user may write"):
        CheckpointLock(str(tmp_path / "file" / "checkpoint")).acquire()


@pytest.mark.parametrize("kind", ["link", "pipe"])
def test_a_lock_that_is_not_a_file_is_refused(tmp_path: Path, kind: str) -> None:
    """In a shared folder, a link would let another user overwrite any file of the user who runs the pipeline."""
    precious = tmp_path / "precious"
    precious.write_text("important")
    if kind == "link":
        (tmp_path / NAME).symlink_to(precious)
    else:
        os.mkfifo(tmp_path / NAME)
    with pytest.raises(ConfigError, match=f"checkpoint {tmp_path}: "):
        CheckpointLock(str(tmp_path)).acquire()
    assert precious.read_text() == "important"
