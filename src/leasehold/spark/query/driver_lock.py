"""One member of an application in one Spark driver, and no second.

A self-join starts two readers with the same options: as two members of one fleet each would get half of the shards, and
the join half of its rows. The readers of one driver have one parent process, so a lock that carries its id finds them
out. It goes with the process that holds it, however that ends.
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

# A reader that was told to stop still gives its leases back, while the next run of the query starts.
PATIENCE_S = 20.0


class DriverLock:
    """The right to be this driver's member of an application."""

    def __init__(self, application: str, place: str) -> None:
        self._application = application
        self._path = runtime_folder() / f"{_name(application, place)}.lock"
        self._file: IO[bytes] | None = None

    def acquire(self, patience_s: float = PATIENCE_S) -> None:
        """Wait for the right, if a reader is just about to stop; a ConfigError if it does not."""
        file = self._path.open("ab")
        until = time.monotonic() + patience_s
        while True:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                if time.monotonic() > until:
                    file.close()
                    raise ConfigError(self._refusal()) from None
                time.sleep(0.1)
            else:
                self._file = file
                return

    def release(self) -> None:
        """Let another reader of the driver be the member."""
        if self._file is not None:
            self._file.close()
            self._file = None

    def _refusal(self) -> str:
        return (
            f"another reader of this Spark application is already the member of application {self._application!r}: "
            "members share the shards, so each of the two would see a part of the records. In a self-join, load the "
            "stream twice with two application names; for two queries that both want everything, use two names as well"
        )


def runtime_folder() -> Path:
    """Where processes of one user on one machine find each other's files; nobody else may write there."""
    folder = Path(tempfile.gettempdir()) / f"leasehold-{os.getuid()}"
    with suppress(FileExistsError):
        folder.mkdir(mode=0o700)
    found = folder.lstat()
    is_private = stat.S_ISDIR(found.st_mode) and found.st_uid == os.getuid() and not found.st_mode & 0o022
    if not is_private:
        raise ConfigError(
            f"{folder} is no folder that only this user may write to: remove it, or set TMPDIR to a folder of your own"
        )
    return folder


def _name(application: str, place: str) -> str:
    return hashlib.sha256(f"{os.getppid()}\0{application}\0{place}".encode()).hexdigest()[:32]
