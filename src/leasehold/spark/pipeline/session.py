"""A Spark session that starts soon and has sensible settings; what the user says wins.

Settings for one machine are chosen only where the master is local: a cluster has an administrator. Measured effects
are in `start_up`; those of the settings for a running query, medians of a small batch on two cores with eight
partitions: 447 ms as installed, 207 ms with Unix sockets and the plain checkpoint files.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Mapping, MutableMapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from subprocess import Popen, TimeoutExpired
from typing import Any, Final

from leasehold.errors import ConfigError, QueryFailedError
from leasehold.spark.pipeline.java import find_java
from leasehold.spark.pipeline.start_up import (
    FAST_START_JVM_OPTIONS,
    ClassArchive,
    cache_folder,
    class_archive,
    spark_home_without_zip,
)

# A task that failed is tried again, as on a cluster; plain local[*] never does.
DEFAULT_MASTER: Final = "local[*,4]"
MASTER: Final = "spark.master"
JVM_OPTIONS: Final = "spark.driver.extraJavaOptions"

_JVM_END_SECONDS: Final = 120
_JVM_GONE_SECONDS: Final = 2
_LOCAL: Final = {
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",  # it draws over what others print
    "spark.python.unix.domain.socket.enabled": "true",
}
# The usual manager starts programs to set permissions; a local file system needs only a rename.
_LOCAL_CHECKPOINT: Final = {
    "spark.sql.streaming.checkpointFileManagerClass": (
        "org.apache.spark.sql.execution.streaming.checkpointing.FileSystemBasedCheckpointFileManager"
    )
}


def session_settings(
    given: Mapping[str, str], *, checkpoint: str, cores: int, jvm_options: Sequence[str]
) -> Mapping[str, str]:
    """All settings of a session: ours for one machine, where the master is local, under what is given.

    >>> session_settings({"spark.master": "spark://host:7077"}, checkpoint="s3a://b/c", cores=2, jvm_options=())
    {'spark.master': 'spark://host:7077'}
    """
    master = given.get(MASTER, DEFAULT_MASTER)
    if not is_local(master):
        return {MASTER: master, **given}
    chosen = {MASTER: master, **_LOCAL, "spark.sql.shuffle.partitions": str(cores)}
    if is_local_folder(checkpoint):
        chosen |= _LOCAL_CHECKPOINT
    if jvm_options:
        chosen[JVM_OPTIONS] = " ".join(jvm_options)
    return {**chosen, **given}


def is_local(master: str) -> bool:
    """Whether Spark runs in this one process tree.

    >>> is_local("local[2]"), is_local("local-cluster[2,1,1024]"), is_local("spark://host:7077")
    (True, False, False)
    """
    return master == "local" or master.startswith("local[")


def is_local_folder(place: str) -> bool:
    """Whether a path of Spark's is on this machine.

    >>> is_local_folder("checkpoint"), is_local_folder("file:///c"), is_local_folder("s3a://bucket/c")
    (True, True, False)
    """
    return place.startswith("file:") or "://" not in place


@contextmanager
def spark_session(
    name: str, settings: Mapping[str, str], *, checkpoint: str = "", record_classes: bool = False
) -> Iterator[Any]:
    """A Spark session in this process, and the end of its JVM when the block is left.

    `record_classes`: the JVM may take some ten seconds longer to end, once, so that later ones start sooner.
    QueryFailedError: the JVM has ended within the block.
    """
    _need_pyspark()
    from py4j.protocol import Py4JError  # type: ignore[import-untyped] # noqa: PLC0415 - comes with pyspark
    from pyspark.sql import SparkSession  # noqa: PLC0415 - an extra, and slow

    jvm_options, archive = _prepared(os.environ, settings, record_classes=record_classes)
    builder: Any = SparkSession.builder
    for key, value in session_settings(
        settings, checkpoint=checkpoint, cores=os.cpu_count() or 1, jvm_options=jvm_options
    ).items():
        builder = builder.config(key, value)
    session = builder.appName(name).getOrCreate()
    try:
        yield session
    except (Py4JError, OSError) as error:
        code = _exit_code_of_jvm(_JVM_GONE_SECONDS)
        if code is None:
            raise
        raise QueryFailedError(
            f"Spark's JVM has ended by itself, with exit code {code} (-9: killed, perhaps for want of memory): start "
            "again, the query goes on where it was"
        ) from error
    finally:
        if _exit_code_of_jvm(0) is None:
            session.stop()
        _end_jvm(archive)


def _need_pyspark() -> None:
    try:
        import pyspark  # noqa: F401, PLC0415 - an extra
    except ModuleNotFoundError as error:
        raise ConfigError("pyspark is not installed: pip install 'leasehold[spark,java]'") from error


def _prepared(
    environment: MutableMapping[str, str], settings: Mapping[str, str], *, record_classes: bool
) -> tuple[Sequence[str], ClassArchive | None]:
    """Tell Spark by the environment which Java and Python to use. Returns options for the JVM of one machine."""
    import pyspark  # noqa: PLC0415 - an extra, and slow

    cache = cache_folder(environment)
    java = find_java(environment, cache)
    environment["JAVA_HOME"] = str(java.home)
    spark_home = Path(pyspark.__file__).parent
    if not is_local(settings.get(MASTER, DEFAULT_MASTER)):
        environment.setdefault("PYSPARK_PYTHON", sys.executable)
        return (), None
    lean = _unless_unwritable(spark_home_without_zip, environment, spark_home, pyspark.__version__, cache)
    # Plain python3 would be Spark's choice, which knows nothing of a virtual environment.
    environment.setdefault("PYSPARK_PYTHON", sys.executable)
    environment.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    if lean is not None:
        environment["SPARK_HOME"] = str(lean)
        spark_home = lean
    archive = _unless_unwritable(
        class_archive, java, spark_home, pyspark.__version__, cache, record=record_classes
    )
    return (*FAST_START_JVM_OPTIONS, *(archive.jvm_options if archive else ())), archive


def _unless_unwritable(make: Any, *arguments: Any, **options: Any) -> Any:
    """A faster start is not worth failing for, where the cache folder cannot be written."""
    try:
        return make(*arguments, **options)
    except OSError:
        return None


def _end_jvm(archive: ClassArchive | None) -> None:
    """End the JVM and wait for it. It lives as long as its standard input is open."""
    from pyspark import SparkContext  # noqa: PLC0415 - imported by now

    gateway, process = SparkContext._gateway, jvm_process()  # noqa: SLF001 - there is no other way to it
    if gateway is None or process is None:
        return  # started by someone else
    SparkContext._gateway = SparkContext._jvm = None  # noqa: SLF001 - a later session begins afresh
    assert process.stdin is not None
    process.stdin.close()
    try:
        code = process.wait(_JVM_END_SECONDS)
    except TimeoutExpired:
        process.kill()
        code = process.wait()
    with suppress(Exception):  # whatever py4j finds wrong with a connection whose other side is gone
        gateway.close()
    if archive is not None:
        (archive.adopt if code == 0 else archive.drop)()


def _exit_code_of_jvm(patience_s: float) -> int | None:
    """How the JVM ended; None if it runs, or is none of ours. Its connections may break a moment before it is gone."""
    process = jvm_process()
    if process is None:
        return None
    try:
        return process.wait(patience_s)
    except TimeoutExpired:
        return None


def jvm_process() -> Popen[bytes] | None:
    """The process of Spark's JVM, if a session of this process started one."""
    from pyspark import SparkContext  # noqa: PLC0415 - an extra

    gateway: Any = SparkContext._gateway  # noqa: SLF001 - there is no other way to it
    process: Popen[bytes] | None = getattr(gateway, "proc", None)
    return process
