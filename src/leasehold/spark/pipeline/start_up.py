"""Makes Spark start faster on one machine, with files in a cache folder of the user.

The installations of Spark and Java are not changed. Spark also starts without these files, only later. Time to the end
of the first batch of a Python source and sink, on two cores with pyspark 4.3 and Java 17:

| as installed, without the UI | 26 s |
| fast compiler, serial collector, Unix sockets | 17 s |
| and a home without pyspark.zip | 13 s |
| and an archive of loaded classes | 8 s |

The home: Python workers import pyspark from `$SPARK_HOME/python/lib/pyspark.zip`. Byte code cannot be stored there, so
each of some seven processes compiles it again. In a home without this file they import the installed package.

The archive: when a JVM ends, it can write its loaded classes to a file. The next JVM maps this file into memory.
"""

from __future__ import annotations

import hashlib
import os
import site
import subprocess
import sys
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from tempfile import mkdtemp
from typing import Final

from leasehold.spark.pipeline.java import Java

# A pipeline on one machine works in short bursts, so the second compiler is not worth its cost at the start. The JVM's
# warnings about classes that cannot be archived, or an unsuitable archive, are not useful to a user.
FAST_START_JVM_OPTIONS: Final = ("-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", "-Xlog:cds*=off")
_DUMP_SECONDS: Final = 120
_UNFINISHED: Final = ".part"


def cache_folder(environment: Mapping[str, str]) -> Path:
    """The folder for files that can be created again.

    >>> cache_folder({"XDG_CACHE_HOME": "/caches"})
    PosixPath('/caches/leasehold')
    """
    named = environment.get("XDG_CACHE_HOME")
    return (Path(named) if named else Path(environment.get("HOME") or Path.home(), ".cache")) / "leasehold"


@dataclass(frozen=True, slots=True)
class ClassArchive:
    """The file of loaded classes, and the new file that the current JVM writes when it ends."""

    file: Path
    fresh: Path | None = None  # None: the JVM does not record its classes
    base: Path | None = None  # the archive of the JDK's own classes, if the runtime comes without one

    @property
    def jvm_options(self) -> tuple[str, ...]:
        """The options with which a JVM uses the existing file or records a new one."""
        base = (str(self.base),) if self.base else ()
        if self.file.exists():
            return (f"-XX:SharedArchiveFile={':'.join((*base, str(self.file)))}",)
        if self.fresh is None:
            return ()
        uses = (f"-XX:SharedArchiveFile={self.base}",) if self.base else ()
        return (*uses, f"-XX:ArchiveClassesAtExit={self.fresh}")

    @property
    def is_recording(self) -> bool:
        """True if the current JVM writes a new file when it ends."""
        return self.fresh is not None and not self.file.exists()

    def adopt(self) -> None:
        """Use the new file from now on. Call it after the JVM ended successfully."""
        if self.fresh is not None and self.fresh.exists():
            self.fresh.replace(self.file)

    def drop(self) -> None:
        """Delete the new file. Call it after the JVM was killed."""
        if self.fresh is not None:
            self.fresh.unlink(missing_ok=True)


def class_archive(
    java: Java, spark_home: Path, spark_version: str, cache: Path, *, record: bool
) -> ClassArchive:
    """The archive for this Java and this Spark. With `record`, the JVM writes it if it does not exist."""
    same = hashlib.blake2b(f"{java.home} {java.version} {spark_home}".encode(), digest_size=6).hexdigest()
    file = cache / f"classes-{spark_version}-{same}.jsa"
    if not file.exists() and not record:
        return ClassArchive(file)
    cache.mkdir(parents=True, exist_ok=True)
    drop_recordings(cache, is_abandoned=lambda pid: not _is_running(pid))
    base = None if java.has_class_archive else _base_archive(java, cache)
    if base is None and not java.has_class_archive:
        return ClassArchive(cache / "none")
    return ClassArchive(file, _unfinished(file) if record else None, base)


def _base_archive(java: Java, cache: Path) -> Path | None:
    """The archive of the JDK's own classes. Creating it takes some two seconds. None if this Java cannot do it."""
    file = cache / f"java-{java.version}.jsa"
    if file.exists():
        return file
    fresh = _unfinished(file)
    command = [
        str(java.home / "bin" / "java"),
        *FAST_START_JVM_OPTIONS,
        "-Xshare:dump",
        f"-XX:SharedArchiveFile={fresh}",
    ]
    try:
        done = subprocess.run(command, capture_output=True, timeout=_DUMP_SECONDS, check=False)  # noqa: S603 - ours
        if done.returncode != 0 or not fresh.exists():
            return None
        fresh.replace(file)
    except (OSError, subprocess.TimeoutExpired):
        return None
    finally:
        fresh.unlink(missing_ok=True)  # what an interrupted program has written
    return file


def drop_recordings(cache: Path, is_abandoned: Callable[[int], bool]) -> None:
    """Delete the unfinished files of processes for whose id `is_abandoned` returns True. Each has up to 160 MB."""
    for file in cache.glob(f"*{_UNFINISHED}"):
        pid = Path(file.stem).suffix.removeprefix(".")
        if pid.isdecimal() and is_abandoned(int(pid)):
            file.unlink(missing_ok=True)


def _unfinished(file: Path) -> Path:
    """The name of a file of this process until it is complete."""
    return file.with_suffix(f".{os.getpid()}{_UNFINISHED}")


def _is_running(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        pass  # a process of another user
    return True


def spark_home_without_zip(
    environment: Mapping[str, str], spark_home: Path, spark_version: str, cache: Path
) -> Path | None:
    """Create a Spark home of links, without pyspark.zip. Returns None if Python workers might not find pyspark then."""
    chosen = environment.get("PYSPARK_PYTHON", sys.executable)
    is_installed = str(spark_home.parent) in {*site.getsitepackages(), site.getusersitepackages()}
    if "SPARK_HOME" in environment or chosen != sys.executable or not is_installed:
        return None
    same = hashlib.blake2b(str(spark_home).encode(), digest_size=6).hexdigest()
    home = cache / f"spark-{spark_version}-{same}"
    if not home.exists():
        cache.mkdir(parents=True, exist_ok=True)
        fresh = Path(mkdtemp(prefix=".spark-", dir=cache))
        for entry in spark_home.iterdir():
            if entry.name != "python":
                (fresh / entry.name).symlink_to(entry)
        with suppress(OSError):  # another process created it first
            fresh.rename(home)
    return home
