"""`leasehold pipeline`: Kinesis to a store by Spark, from a file."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING

import click

from leasehold.cli.output import print_line
from leasehold.cli.pipeline_display import Display, LiveTable, PlainLines
from leasehold.errors import ConfigError, LeaseholdError

if TYPE_CHECKING:
    from leasehold.spark.pipeline.pipeline_file import Pipeline


@click.command()
@click.argument("file", type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.option(
    "--log",
    type=click.Path(dir_okay=False, path_type=Path),
    help="Write what Spark logs to this file. Without it: to stderr, or to a file that is named, at a terminal.",
)
@click.option(
    "--record-classes/--no-record-classes",
    default=None,
    help="At the end of the first run take some seconds to prepare for faster starts. "
    "[default: at a terminal, or if the pipeline ends by itself]",
)
def pipeline(*, file: Path, log: Path | None, record_classes: bool | None) -> None:
    """Run a Spark pipeline from a TOML file.

    It runs until SIGTERM or SIGINT, or until all is read if its trigger says so; then it stops its query, waits until
    its leases are free, and exits with 0. A second signal ends it at once.
    """
    _need_libraries()
    from leasehold.spark.pipeline.pipeline_file import read_pipeline  # noqa: PLC0415 - checked for above

    described = read_pipeline(file)
    at_terminal = sys.stdout.isatty()
    if log is None and at_terminal:
        log = _log_file(described.name)
        print_line(f"what Spark logs goes to {log}")
    if record_classes is None:
        record_classes = at_terminal or described.trigger.is_bounded
    display = LiveTable(described.name) if at_terminal else PlainLines()
    with _stderr_in(log) if log else nullcontext(), display:
        try:
            _run(described, display, record_classes=record_classes)
        except LeaseholdError as error:
            raise type(error)(f"{error} (Spark's log: {log})" if log else str(error)) from error


def _need_libraries() -> None:
    try:
        import leasehold.spark.archive_sink  # noqa: PLC0415
        import leasehold.spark.source  # noqa: F401, PLC0415 - extras
    except ModuleNotFoundError as error:
        library = (error.name or "").partition(".")[0]
        raise ConfigError(f"{library} is not installed: pip install 'leasehold[spark,java]'") from error


def _run(described: Pipeline, display: Display, *, record_classes: bool) -> None:
    from leasehold.spark.pipeline.run_pipeline import spark_settings, start_query, watch_query  # noqa: PLC0415 - extras
    from leasehold.spark.pipeline.session import spark_session  # noqa: PLC0415

    stop = _StopRequest()
    display.note("starting Spark")
    settings = spark_settings(described)
    with spark_session(
        described.name, settings, checkpoint=described.checkpoint, record_classes=record_classes
    ) as spark:
        stop.listen()  # again: Spark has a handler of its own
        if stop.was_requested:
            return  # not sooner: a JVM that nobody waits for while it starts never ends
        display.note(f"Spark {spark.version} runs on {spark.sparkContext.master}; starting the query")
        query = start_query(spark, described)
        watch_query(query, display.batch, lambda: stop.was_requested)
        display.note("the query has stopped, and its leases are free")


class _StopRequest:
    """SIGTERM or SIGINT: the first one asks the query to stop, the second one ends the process."""

    def __init__(self) -> None:
        self.was_requested = False
        self.listen()

    def listen(self) -> None:
        """Take the signals."""
        for each in (signal.SIGTERM, signal.SIGINT):
            signal.signal(each, self._take)

    def _take(self, number: int, _frame: object) -> None:
        if self.was_requested:
            from leasehold.spark.pipeline.session import jvm_process  # noqa: PLC0415 - extras

            jvm = jvm_process()
            if jvm is not None:
                jvm.kill()
            os._exit(128 + number)
        self.was_requested = True


def _log_file(name: str) -> Path:
    from leasehold.spark.pipeline.start_up import cache_folder  # noqa: PLC0415 - extras

    folder = cache_folder(os.environ)
    folder.mkdir(parents=True, exist_ok=True)
    return folder / f"{Path(name).name}.log"


@contextmanager
def _stderr_in(file: Path) -> Iterator[None]:
    """Our own standard error, and that of Spark's processes, goes to the end of a file."""
    kept = os.dup(2)
    with file.open("ab") as log:
        os.dup2(log.fileno(), 2)
    try:
        yield
    finally:
        sys.stderr.flush()
        os.dup2(kept, 2)
        os.close(kept)
