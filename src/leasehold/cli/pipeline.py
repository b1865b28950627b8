"""`leasehold pipeline`: runs a Spark pipeline from Kinesis to a store, description in a TOML file."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from leasehold.cli.extras import needs_extra
from leasehold.cli.output import escape_unprintable, print_line
from leasehold.cli.pipeline_display import Display, LiveTable, PlainLines, Ticker
from leasehold.cli.stopping import StopRequest
from leasehold.errors import JvmEndedError, LeaseholdError, QueryFailedError

if TYPE_CHECKING:
    from leasehold.spark.pipeline.pipeline_file import Pipeline
    from leasehold.spark.pipeline.progress import BatchProgress


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
    query, waits until its leases are free, and exits with 0. A second signal ends it and all its processes at once,
    with 130 or 143.
    """
    stop = StopRequest()
    try:
        _read_and_run(file, log, stop, record_classes=record_classes)
    except KeyboardInterrupt:
        print_line("stopped before the query has started")


def _read_and_run(file: Path, log: Path | None, stop: StopRequest, *, record_classes: bool | None) -> None:
    with needs_extra("spark,java"), Ticker(print_line) as ticker:
        ticker.wait_for("loading the libraries of Spark")
        import leasehold.spark.archive_sink  # noqa: PLC0415
        import leasehold.spark.source  # noqa: F401, PLC0415 - extras
    from leasehold.spark.pipeline.pipeline_file import read_pipeline  # noqa: PLC0415 - the extra is checked above

    description = read_pipeline(file)
    _check_source(description)
    _show_dashboard_command(description)
    _check_sink(description)
    at_terminal = sys.stdout.isatty()
    if log is None and at_terminal:
        log = _log_file(description.name)
        print_line(f"Spark's log: {log}")
    if record_classes is None:
        record_classes = at_terminal or description.trigger.is_bounded
    is_bounded = description.trigger.is_bounded
    display = LiveTable(description.name, is_bounded=is_bounded) if at_terminal else PlainLines()
    with (
        _redirect_stderr(log) if log else nullcontext(),
        display,
        Ticker(display.show_message) as ticker,
        stop.announced_by(ticker.wait_for),
    ):
        try:
            _PipelineRun(description, display, ticker, stop).run(record_classes=record_classes)
        except LeaseholdError as error:
            raise QueryFailedError(f"{error} (Spark's log: {log})" if log else str(error)) from error


def _check_source(description: Pipeline) -> None:
    """Report a problem of the source before Spark starts. Its member would report it in Spark's log only."""
    from leasehold.spark.options import source_options  # noqa: PLC0415 - extras
    from leasehold.spark.pipeline.source_check import check_source  # noqa: PLC0415

    source = source_options(description.source)
    with Ticker(print_line) as ticker:
        ticker.wait_for(f"checking stream {', '.join(source.names)}")
        problem = check_source(source)
    if problem is not None:
        print_line(f"{escape_unprintable(str(problem))}; the pipeline starts, and retries until it works")


def _show_dashboard_command(description: Pipeline) -> None:
    from leasehold.spark.dashboard_command import dashboard_command  # noqa: PLC0415 - extras
    from leasehold.spark.options import source_options  # noqa: PLC0415

    print_line(f"to see the fleet in the browser: {dashboard_command(source_options(description.source))}")


def _check_sink(description: Pipeline) -> None:
    """Report an archive that cannot be opened, before Spark starts: each of its tasks would try it four times.

    The tasks of a cluster may reach what this machine does not.
    """
    from leasehold.archive.archive import Archive  # noqa: PLC0415 - extras
    from leasehold.spark.archive_sink import archive_settings  # noqa: PLC0415
    from leasehold.spark.pipeline.pipeline_file import SinkKind  # noqa: PLC0415
    from leasehold.spark.pipeline.run_pipeline import spark_settings  # noqa: PLC0415
    from leasehold.spark.pipeline.session import DEFAULT_MASTER, MASTER, is_local  # noqa: PLC0415

    is_archive = description.sink.kind is SinkKind.ARCHIVE
    if is_archive and is_local(spark_settings(description).get(MASTER, DEFAULT_MASTER)):
        Archive.open(archive_settings(description.sink.options))


class _PipelineRun:
    """One run of a pipeline, from the lock of its checkpoint to the end of the JVM."""

    def __init__(self, description: Pipeline, display: Display, ticker: Ticker, stop: StopRequest) -> None:
        self._description = description
        self._display = display
        self._ticker = ticker
        self._stop = stop

    def run(self, *, record_classes: bool) -> None:
        from leasehold.spark.pipeline.checkpoint_lock import CheckpointLock  # noqa: PLC0415 - extras
        from leasehold.spark.pipeline.run_pipeline import spark_settings  # noqa: PLC0415
        from leasehold.spark.pipeline.session import spark_session  # noqa: PLC0415

        lock = CheckpointLock(self._description.checkpoint)
        lock.acquire()
        self._ticker.wait_for("starting Spark")
        try:
            with spark_session(
                self._description.name,
                spark_settings(self._description),
                checkpoint=self._description.checkpoint,
                record_classes=record_classes,
                on_recording=self._skip_recording_on_signal,
            ) as spark:
                self._stop.end_start()
                self._run_query(spark)
                lock.release()  # so that the next run may start while this one ends
        except JvmEndedError:
            if not self._stop.was_requested:
                raise
            # A service manager may have sent its signal to every process of the service.
            self._display.show_message(
                "Spark's JVM was stopped, too; the next run repeats the unfinished batch"
            )
        finally:
            lock.release()

    def _run_query(self, spark: Any) -> None:
        from leasehold.spark.pipeline.run_pipeline import start_query, watch_query  # noqa: PLC0415 - extras

        self._ticker.wait_for(
            f"Spark {spark.version} runs on {spark.sparkContext.master}; starting the query"
        )
        query = start_query(spark, self._description)
        watch_query(query, self._show_batch, lambda: self._stop.was_requested, self._show_step)
        self._ticker.rest()
        self._display.show_message("the query has stopped and its leases are free")

    def _show_batch(self, progress: BatchProgress) -> None:
        if self._ticker.is_waiting and not self._stop.was_requested:
            self._ticker.rest()
            self._display.show_message("the query runs")
        self._display.show_batch(progress)

    def _show_step(self, step: str) -> None:
        """Show a step of the stop, unless the query has ended by itself."""
        if self._stop.was_requested:
            self._ticker.wait_for(f"stopping: {step}")

    def _skip_recording_on_signal(self) -> None:
        from leasehold.spark.pipeline.session import jvm_process  # noqa: PLC0415 - extras

        jvm = jvm_process()
        assert jvm is not None
        self._stop.let_signals(jvm.kill)
        self._ticker.wait_for("recording the loaded classes, once, for faster starts; Ctrl-C skips it")


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
