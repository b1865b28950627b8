"""`leasehold pipeline`: runs a Spark pipeline from Kinesis to a store, description in a TOML file."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING

import click

from leasehold.cli.extras import needs_extra
from leasehold.cli.output import print_line
from leasehold.cli.pipeline_display import Display, LiveTable, PlainLines
from leasehold.errors import LeaseholdError

if TYPE_CHECKING:
    from leasehold.spark.pipeline.pipeline_file import Pipeline


@click.command()
@click.argument("file", type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.option(
    "--log",
    type=click.Path(dir_okay=False, path_type=Path),
    help="Write Spark's log to this file. [default: stderr; at a terminal a file whose name is printed]",
)
@click.option(
    "--record-classes/--no-record-classes",
    default=None,
    help="Spend some seconds at the end of the first run so that later runs start faster. "
    "[default: at a terminal, or if the pipeline ends by itself]",
)
def pipeline(*, file: Path, log: Path | None, record_classes: bool | None) -> None:
    """Run a Spark pipeline from a TOML file.

    The pipeline runs until SIGTERM or SIGINT, or until it has read everything if its trigger says so. Then it stops the
    query, waits until its leases are free, and exits with 0. A second signal ends it at once.
    """
    with needs_extra("spark,java"):
        import leasehold.spark.archive_sink  # noqa: PLC0415
        import leasehold.spark.source  # noqa: F401, PLC0415 - extras
    from leasehold.spark.pipeline.pipeline_file import read_pipeline  # noqa: PLC0415 - the extra is checked above

    description = read_pipeline(file)
    at_terminal = sys.stdout.isatty()
    if log is None and at_terminal:
        log = _log_file(description.name)
        print_line(f"Spark's log: {log}")
    if record_classes is None:
        record_classes = at_terminal or description.trigger.is_bounded
    display = LiveTable(description.name) if at_terminal else PlainLines()
    with _redirect_stderr(log) if log else nullcontext(), display:
        try:
            _run(description, display, record_classes=record_classes)
        except LeaseholdError as error:
            raise type(error)(f"{error} (Spark's log: {log})" if log else str(error)) from error


def _run(description: Pipeline, display: Display, *, record_classes: bool) -> None:
    from leasehold.spark.pipeline.run_pipeline import spark_settings, start_query, watch_query  # noqa: PLC0415 - extras
    from leasehold.spark.pipeline.session import spark_session  # noqa: PLC0415

    stop = _StopRequest()
    display.show_message("starting Spark")
    settings = spark_settings(description)
    with spark_session(
        description.name, settings, checkpoint=description.checkpoint, record_classes=record_classes
    ) as spark:
        stop.install_handlers()  # again, because Spark installed its own
        if stop.was_requested:
            return  # not earlier: a JVM that is abandoned while it starts never ends
        display.show_message(f"Spark {spark.version} runs on {spark.sparkContext.master}; starting the query")
        query = start_query(spark, description)
        watch_query(query, display.show_batch, lambda: stop.was_requested)
        display.show_message("the query has stopped and its leases are free")


class _StopRequest:
    """Handles SIGTERM and SIGINT: the first one asks the query to stop, the second one ends the process."""

    def __init__(self) -> None:
        self.was_requested = False
        self.install_handlers()

    def install_handlers(self) -> None:
        """Install the signal handlers."""
        for each in (signal.SIGTERM, signal.SIGINT):
            signal.signal(each, self._on_signal)

    def _on_signal(self, number: int, _frame: object) -> None:
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
def _redirect_stderr(file: Path) -> Iterator[None]:
    """Append the standard error of this process and of Spark's processes to a file."""
    original = os.dup(2)
    with file.open("ab") as log:
        os.dup2(log.fileno(), 2)
    try:
        yield
    finally:
        sys.stderr.flush()
        os.dup2(original, 2)
        os.close(original)
