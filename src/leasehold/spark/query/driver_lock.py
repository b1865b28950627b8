"""Ensures that a Spark driver has at most one member of each application.

A self-join starts two readers with the same options. As two members of one fleet each would get half of the shards, and
the join half of its rows. The readers of one driver have the same parent process, so a file lock with its process id
detects the second one. The operating system releases the lock when the process ends.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import stat
import tempfile
import time
from contextlib import suppress
from pathlib import Path
from typing import IO

from leasehold.errors import ConfigError

# The reader of the last run may still release its leases while the next run of the query starts.
PATIENCE_S = 20.0


class DriverLock:
    """A lock that one reader of this driver holds for each application."""

    def __init__(self, application: str, connection: str) -> None:
        self._application = application
        self._path = runtime_folder() / f"{_lock_name(application, connection)}.lock"
        self._file: IO[bytes] | None = None

    def acquire(self, patience_s: float = PATIENCE_S) -> None:
        """Wait for the lock. Raises ConfigError if another reader still holds it after `patience_s`."""
        file = self._path.open("ab")
        until = time.monotonic() + patience_s
        while True:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                if time.monotonic() > until:
                    file.close()
                    raise ConfigError(self._conflict()) from None
                time.sleep(0.1)
            else:
                self._file = file
                return

    def release(self) -> None:
        """Release the lock. Further calls do nothing."""
        if self._file is not None:
            self._file.close()
            self._file = None

    def _conflict(self) -> str:
        return (
            f"another reader of this Spark driver already is a member of application {self._application!r}: members "
            "share the shards, so each of the two would read only a part of the records. For a self-join, or for two "
            "queries that each need all records, load the stream with two application names"
        )


def runtime_folder() -> Path:
    """Return the folder for files that processes of this user share. Raises ConfigError if others may write to it."""
    folder = Path(tempfile.gettempdir()) / f"leasehold-{os.getuid()}"
    with suppress(FileExistsError):
        folder.mkdir(mode=0o700)
    found = folder.lstat()
    is_private = stat.S_ISDIR(found.st_mode) and found.st_uid == os.getuid() and not found.st_mode & 0o022
    if not is_private:
        raise ConfigError(
            f"{folder} is not a folder that only this user may write to: remove it, or set TMPDIR to your own folder"
        )
    return folder


def _lock_name(application: str, connection: str) -> str:
    return hashlib.sha256(f"{os.getppid()}\0{application}\0{connection}".encode()).hexdigest()[:32]
