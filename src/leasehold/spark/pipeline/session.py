"""Starts a Spark session quickly and with sensible settings. Settings of the user take precedence.

Our own settings apply only with a local master; a cluster has an administrator. `start_up` documents their effect on
the start. Their effect on a running query, as the median time of a small batch on two cores with eight partitions: 447
ms as installed, 207 ms with Unix sockets and plain checkpoint files.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator, Mapping, MutableMapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from subprocess import Popen, TimeoutExpired
from typing import Any, Final

from leasehold.errors import ConfigError, JvmEndedError, QueryFailedError
from leasehold.spark.pipeline.java import find_java
from leasehold.spark.pipeline.processes import children, kill_with_descendants
from leasehold.spark.pipeline.start_up import (
    FAST_START_JVM_OPTIONS,
    ClassArchive,
    cache_folder,
    class_archive,
    spark_home_without_zip,
)

# Spark retries a failed task, as on a cluster. With plain local[*] it does not.
DEFAULT_MASTER: Final = "local[*,4]"
MASTER: Final = "spark.master"
JVM_OPTIONS: Final = "spark.driver.extraJavaOptions"

_JVM_END_SECONDS: Final = 120
_JVM_GONE_SECONDS: Final = 2
_LOCAL: Final = {
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",  # it overwrites other output
    "spark.python.unix.domain.socket.enabled": "true",
}
# The default manager starts programs to set permissions. A local file system only needs a rename.
_LOCAL_CHECKPOINT: Final = {
    "spark.sql.streaming.checkpointFileManagerClass": (
        "org.apache.spark.sql.execution.streaming.checkpointing.FileSystemBasedCheckpointFileManager"
    )
}


def session_settings(
    given: Mapping[str, str], *, checkpoint: str, cores: int, jvm_options: Sequence[str]
) -> Mapping[str, str]:
    """All settings of a session: ours if the master is local, overridden by those given.

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
    """True if Spark runs in the process tree of this program.

    >>> is_local("local[2]"), is_local("local-cluster[2,1,1024]"), is_local("spark://host:7077")
    (True, False, False)
    """
    return master == "local" or master.startswith("local[")


def is_local_folder(path: str) -> bool:
    """True if a path in Spark's notation is on this machine.

    >>> is_local_folder("checkpoint"), is_local_folder("file:///c"), is_local_folder("s3a://bucket/c")
    (True, True, False)
    """
    return path.startswith("file:") or "://" not in path


@contextmanager
def spark_session(
    name: str,
    settings: Mapping[str, str],
    *,
    checkpoint: str = "",
    record_classes: bool = False,
    on_recording: Callable[[], None] | None = None,
) -> Iterator[Any]:
    """Start a Spark session in this process, and end its JVM when the block is left.

    With `record_classes`, the JVM may once take some ten seconds longer to end, so that later ones start faster; then
    `on_recording` is called before. Raises QueryFailedError if the JVM does not start, or ended within the block.
    """
    _require_pyspark()
    from py4j.protocol import Py4JError  # type: ignore[import-untyped] # noqa: PLC0415 - comes with pyspark
    from pyspark.errors.exceptions.captured import CapturedException  # noqa: PLC0415 - an extra

    jvm_options, archive = _prepare_environment(os.environ, settings, record_classes=record_classes)
    chosen = session_settings(
        settings, checkpoint=checkpoint, cores=os.cpu_count() or 1, jvm_options=jvm_options
    )
    session = _start(name, chosen)
    is_complete = False
    try:
        yield session
        is_complete = True
    except (Py4JError, OSError) as error:
        code = _exit_code_of_jvm(_JVM_GONE_SECONDS)
        if code is None:
            raise
        raise JvmEndedError(code) from error
    except CapturedException as error:
        error.add_note(str(error))  # the JVM has its text, and ends before a traceback can show it
        raise
    finally:
        try:
            if _exit_code_of_jvm(0) is None:
                session.stop()
            else:
                _forget_session()
        finally:
            # Also if the stop fails: an exception that interrupts a call to the JVM leaves its response unread, and
            # each later call receives the response of another one.
            _end_jvm(archive, on_recording if is_complete else None, is_complete=is_complete)


def _start(name: str, settings: Mapping[str, str]) -> Any:
    """Start the JVM and the session. If that fails or is interrupted, no process is left."""
    from py4j.protocol import Py4JError  # noqa: PLC0415 - comes with pyspark
    from pyspark.errors import PySparkException  # noqa: PLC0415 - an extra
    from pyspark.sql import SparkSession  # noqa: PLC0415 - slow

    before = {each.pid for each in children(os.getpid())}
    builder: Any = SparkSession.builder
    for key, value in settings.items():
        builder = builder.config(key, value)
    try:
        _launch_jvm(settings)
        return builder.appName(name).getOrCreate()
    except BaseException as error:
        reason = start_failure(str(error)) if isinstance(error, PySparkException | Py4JError) else None
        # pyspark returns the process of the JVM only when it has started, so it is found by its parent.
        for child in children(os.getpid()):
            if child.pid not in before:
                kill_with_descendants(child.pid)
                _forget_jvm()
        if reason is not None:
            raise QueryFailedError(
                f"Spark does not start: {reason.rstrip('.')}. Check the settings of Spark; its log has the details"
            ) from error
        raise


def start_failure(message: str) -> str:
    r"""Extract the reason from the message of an error at the start of Spark.

    >>> start_failure("An error occurred while calling None.x.\n: java.lang.NumberFormatException: 4x\n\tat y")
    'java.lang.NumberFormatException: 4x'
    >>> start_failure("[JAVA_GATEWAY_EXITED] Java gateway process exited.\nmore")
    '[JAVA_GATEWAY_EXITED] Java gateway process exited.'
    """
    lines = message.strip().splitlines() or [""]
    return next((line.removeprefix(": ") for line in lines if line.startswith(": ")), lines[0])


def _launch_jvm(settings: Mapping[str, str]) -> None:
    """Start the JVM in a process group of its own, unless there is one already.

    Ctrl-C at a terminal, and `timeout`, send their signal to the whole group of this program. The JVM must live on
    until this program has stopped the query.
    """
    from pyspark import SparkConf, SparkContext  # noqa: PLC0415 - an extra
    from pyspark.java_gateway import launch_gateway  # noqa: PLC0415

    if SparkContext._gateway is None:  # noqa: SLF001 - there is no other way to it
        conf = SparkConf()
        for key, value in settings.items():
            conf.set(key, value)
        launch: Any = launch_gateway  # it has no types
        gateway = launch(conf, popen_kwargs={"process_group": 0})
        SparkContext._gateway, SparkContext._jvm = gateway, gateway.jvm  # noqa: SLF001


def _require_pyspark() -> None:
    try:
        import pyspark  # noqa: F401, PLC0415 - an extra
    except ModuleNotFoundError as error:
        raise ConfigError("pyspark is not installed: pip install 'leasehold[spark,java]'") from error


def _prepare_environment(
    environment: MutableMapping[str, str], settings: Mapping[str, str], *, record_classes: bool
) -> tuple[Sequence[str], ClassArchive | None]:
    """Set the environment variables for Java and Python. Returns JVM options and the class archive, if the master is
    local.
    """
    import pyspark  # noqa: PLC0415 - an extra, and slow

    cache = cache_folder(environment)
    java = find_java(environment, cache)
    environment["JAVA_HOME"] = str(java.home)
    spark_home = Path(pyspark.__file__).parent
    if not is_local(settings.get(MASTER, DEFAULT_MASTER)):
        environment.setdefault("PYSPARK_PYTHON", sys.executable)
        return (), None
    spark_home_copy = _unless_unwritable(
        spark_home_without_zip, environment, spark_home, pyspark.__version__, cache
    )
    # By default Spark runs plain python3, which is not the one of the virtual environment.
    environment.setdefault("PYSPARK_PYTHON", sys.executable)
    environment.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    if spark_home_copy is not None:
        environment["SPARK_HOME"] = str(spark_home_copy)
        spark_home = spark_home_copy
    archive = _unless_unwritable(
        class_archive, java, spark_home, pyspark.__version__, cache, record=record_classes
    )
    return (*FAST_START_JVM_OPTIONS, *(archive.jvm_options if archive else ())), archive


def _unless_unwritable(make: Any, *arguments: Any, **options: Any) -> Any:
    """Return None if the cache folder is not writable: a faster start is not worth a failure."""
    try:
        return make(*arguments, **options)
    except OSError:
        return None


def _end_jvm(
    archive: ClassArchive | None, on_recording: Callable[[], None] | None, *, is_complete: bool
) -> None:
    """End the JVM and wait for it. It ends when its standard input is closed.

    A session that failed is not recorded: its JVM has loaded only some of the classes.
    """
    from pyspark import SparkContext  # noqa: PLC0415 - imported by now

    gateway, process = SparkContext._gateway, jvm_process()  # noqa: SLF001 - there is no other way to it
    if gateway is None or process is None:
        return  # another program started it
    is_recording = archive is not None and archive.is_recording
    if is_recording and not is_complete:
        process.kill()
    elif is_recording and on_recording is not None:
        on_recording()
    assert process.stdin is not None
    with suppress(BrokenPipeError):
        process.stdin.close()
    try:
        code = process.wait(_JVM_END_SECONDS)
    except TimeoutExpired:
        process.kill()
        code = process.wait()
    with suppress(Exception):  # py4j may fail in several ways on a closed connection
        gateway.close()
    _forget_jvm()
    if archive is not None:
        (archive.adopt if code == 0 else archive.drop)()


def _forget_jvm() -> None:
    """Let a later session start with a new JVM."""
    from pyspark import SparkContext  # noqa: PLC0415 - imported by now

    SparkContext._gateway = SparkContext._jvm = None  # noqa: SLF001 - there is no other way to it
    _forget_session()


def _forget_session() -> None:
    """Remove a session whose JVM is dead, which cannot be stopped. Otherwise pyspark would use it again."""
    from pyspark import SparkContext  # noqa: PLC0415 - imported by now
    from pyspark.sql import SparkSession  # noqa: PLC0415

    SparkContext._active_spark_context = None  # noqa: SLF001 - there is no other way to it
    SparkSession._instantiatedSession = SparkSession._activeSession = None  # noqa: SLF001


def _exit_code_of_jvm(patience_s: float) -> int | None:
    """The exit code of the JVM. None if it runs, or if another program started it.

    Its connections may break a moment before it ends, so this waits for `patience_s`.
    """
    process = jvm_process()
    if process is None:
        return None
    try:
        return process.wait(patience_s)
    except TimeoutExpired:
        return None


def jvm_process() -> Popen[bytes] | None:
    """The process of Spark's JVM, if a session in this process started it."""
    from pyspark import SparkContext  # noqa: PLC0415 - an extra

    gateway: Any = SparkContext._gateway  # noqa: SLF001 - there is no other way to it
    process: Popen[bytes] | None = getattr(gateway, "proc", None)
    return process
