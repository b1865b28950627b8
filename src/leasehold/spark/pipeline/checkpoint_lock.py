"""Ensures that one checkpoint location has one running pipeline.

Two runs would take the leases from each other until one of them fails. A lock of the operating system refuses the
second run at once. It ends with its process, also after kill -9, so it is never stale. The lock is on a file in the
checkpoint location. A location that is not a folder of this machine has the lock in a folder of this user instead,
where it refuses only a second run on the same machine; on another machine the log and the leases refuse it
(docs/pipeline.md).
"""

from __future__ import annotations

import errno
import fcntl
import hashlib
import json
import os
import socket
import stat
from datetime import UTC, datetime
from pathlib import Path
from typing import IO, Final
from urllib.parse import unquote, urlsplit

from leasehold.errors import ConfigError
from leasehold.spark.pipeline.session import is_local_folder
from leasehold.spark.query.driver_lock import runtime_folder

NAME: Final = ".leasehold-lock"
_TEXT_MAX: Final = 1_000


class CheckpointLock:
    """The lock of a checkpoint location, from `acquire` to `release` or the end of the process."""

    def __init__(self, checkpoint: str) -> None:
        self._checkpoint = checkpoint
        self._file: IO[str] | None = None

    def acquire(self) -> None:
        """Take the lock. Raises ConfigError with the holder if another process has it."""
        file = _open(self._checkpoint)
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            holder = _describe_holder(file)
            file.close()
            raise ConfigError(
                f"checkpoint {self._checkpoint}: another run of this pipeline uses it: {holder}. Stop that run first. "
                "For a second pipeline, use another checkpoint and another applicationName"
            ) from None
        except OSError:
            pass  # a file system without locks: the log and the leases refuse the second run, only later
        file.seek(0)
        file.truncate()
        json.dump({"host": socket.gethostname(), "pid": os.getpid(), "since": _now()}, file)
        file.flush()
        self._file = file

    def release(self) -> None:
        """Release the lock. Further calls do nothing."""
        if self._file is not None:
            self._file.close()
            self._file = None


def lock_file(checkpoint: str) -> Path:
    """The file of the lock: in the checkpoint location if that is a folder of this machine."""
    if is_local_folder(checkpoint):
        path = unquote(urlsplit(checkpoint).path) if checkpoint.startswith("file:") else checkpoint
        return Path(path) / NAME
    return runtime_folder() / f"checkpoint-{hashlib.sha256(checkpoint.encode()).hexdigest()[:32]}.lock"


def _open(checkpoint: str) -> IO[str]:
    file = lock_file(checkpoint)
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        return _open_regular(file)
    except OSError as error:
        raise ConfigError(
            f"checkpoint {checkpoint}: {error.strerror}: check that this user may write to the folder"
        ) from error


def _open_regular(file: Path) -> IO[str]:
    """Open or create a file. In a folder that others may write to, a link would let them overwrite any file of ours."""
    descriptor = os.open(file, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK, 0o666)
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise OSError(errno.EINVAL, f"{file.name} is not a regular file")
    return os.fdopen(descriptor, "r+", encoding="utf-8")


def _describe_holder(file: IO[str]) -> str:
    """Describe the process that has the lock. It may not have written its name yet."""
    try:
        file.seek(0)
        found = json.loads(file.read(_TEXT_MAX))
        return f"process {int(found['pid'])} on {found['host']}, since {found['since']}"
    except (ValueError, KeyError, TypeError, RecursionError):
        return "a process that has just started"


def _now() -> str:
    return datetime.now(UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
