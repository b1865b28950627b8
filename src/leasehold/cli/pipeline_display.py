"""Shows the progress of a pipeline: a live table at a terminal, a line for each batch elsewhere."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from types import TracebackType
from typing import TYPE_CHECKING, Final, Protocol, Self

from rich.console import Console, Group
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from leasehold.cli.output import escape_unprintable, format_count, print_line

if TYPE_CHECKING:
    from leasehold.spark.pipeline.progress import BatchProgress

SHARDS_SHOWN: Final = 12
TICK_SECONDS: Final = 5.0


class Display(Protocol):
    """Shows the progress of a pipeline. It is a context manager."""

    def show_message(self, text: str) -> None:
        """Show a message."""

    def show_batch(self, progress: BatchProgress) -> None:
        """Show a batch. It has no records if the stream had none."""

    def __enter__(self) -> Self: ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...


class PlainLines(Display):
    """Prints a line with the time for every batch that has records."""

    def show_message(self, text: str) -> None:
        print_line(f"{_now()} {text}")

    def show_batch(self, progress: BatchProgress) -> None:
        if progress.records:
            print_line(f"{_now()} {format_batch(progress)}")

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        pass


class LiveTable(Display):
    """Shows the totals, the last batch, and the shards that are furthest behind.

    A pipeline that ends by itself also has a bar: how much of the lag at its start has been read.
    """

    def __init__(self, name: str, *, is_bounded: bool = False) -> None:
        self._name = name
        self._completion = Completion() if is_bounded else None
        self._message = ""
        self._records = self._bytes = 0
        self._last: BatchProgress | None = None
        self._behind: Mapping[str, int | None] = {}
        self._live = Live(console=Console(highlight=False), refresh_per_second=4, get_renderable=self._render)

    def show_message(self, text: str) -> None:
        self._message = text
        self._live.refresh()

    def show_batch(self, progress: BatchProgress) -> None:
        self._records += progress.records
        self._bytes += progress.size_bytes
        self._behind = progress.behind_ms
        if self._completion is not None:
            self._completion.add(progress.max_behind_ms, time.monotonic())
        if progress.records:
            self._last = progress
            self._message = ""
        self._live.refresh()

    def __enter__(self) -> Self:
        self._live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._live.stop()

    def _render(self) -> Group:
        head = f"{self._name}: {format_record_count(self._records)}, {format_bytes(self._bytes)}"
        lines = [
            Text(escape_unprintable(head), style="bold"),
            Text(escape_unprintable(self._message or "running; Ctrl-C stops")),
        ]
        if self._last is not None:
            lines.append(Text(format_batch(self._last)))
        if self._completion is not None and (share := self._completion.share) is not None:
            bar = Table.grid(padding=(0, 1))
            left = format_seconds(self._completion.left_ms())
            bar.add_row(ProgressBar(total=1.0, completed=share, width=40), f"{share:.0%}", f"{left} left")
            return Group(*lines, bar, _shard_table(self._behind))
        return Group(*lines, _shard_table(self._behind)) if self._behind else Group(*lines)


class Completion:
    """How much of the lag at the start of a bounded run has been read, and how long the rest takes at this rate."""

    def __init__(self) -> None:
        self._first: tuple[int, float] | None = None
        self._last: tuple[int, float] | None = None

    def add(self, behind_ms: int | None, now_s: float) -> None:
        """Add the lag of the shard that is furthest behind."""
        if behind_ms is None:
            return
        self._last = behind_ms, now_s
        if self._first is None or behind_ms > self._first[0]:
            self._first = behind_ms, now_s

    @property
    def share(self) -> float | None:
        """From 0 to 1; None before the first lag is known."""
        if self._first is None or self._last is None:
            return None
        return 1.0 if not self._first[0] else 1 - self._last[0] / self._first[0]

    def left_ms(self) -> int | None:
        """The time until the end at the rate so far; None if nothing can be said."""
        if self._first is None or self._last is None:
            return None
        read_ms, elapsed_s = self._first[0] - self._last[0], self._last[1] - self._first[1]
        if not self._last[0]:
            return 0
        return None if read_ms <= 0 else round(self._last[0] * elapsed_s * 1000 / read_ms)


class Ticker:
    """Shows what a command waits for, and again every few seconds, with the time. It is a context manager."""

    def __init__(self, show: Callable[[str], None], every_s: float = TICK_SECONDS) -> None:
        self._show = show
        self._every_s = every_s
        self._waits_for: tuple[str, float] | None = None
        self._is_done = threading.Event()
        self._thread = threading.Thread(target=self._tick, name="leasehold-ticker", daemon=True)

    @property
    def is_waiting(self) -> bool:
        """True between `wait_for` and `rest`."""
        return self._waits_for is not None

    def wait_for(self, what: str) -> None:
        """Show what the command waits for from now on."""
        self._waits_for = what, time.monotonic()
        self._show(what)

    def rest(self) -> None:
        """Show nothing more until the next `wait_for`."""
        self._waits_for = None

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._is_done.set()
        self._thread.join()

    def _tick(self) -> None:
        while not self._is_done.wait(self._every_s):
            if self._waits_for is not None:
                what, began_s = self._waits_for
                waited_s = time.monotonic() - began_s
                if waited_s > self._every_s / 2:  # otherwise it has just been shown
                    self._show(f"{what} ({waited_s:.0f} s)")


def _shard_table(behind_ms: Mapping[str, int | None]) -> Table:
    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column("shard", no_wrap=True)
    table.add_column("behind", justify="right")
    sorted_by_lag = sorted(behind_ms.items(), key=lambda each: -1 if each[1] is None else -each[1])
    for shard, lag_ms in sorted_by_lag[:SHARDS_SHOWN]:
        table.add_row(Text(escape_unprintable(shard)), format_seconds(lag_ms))
    if len(sorted_by_lag) > SHARDS_SHOWN:
        table.add_row(
            f"and {format_count(len(sorted_by_lag) - SHARDS_SHOWN, 'shard')} that are less behind", ""
        )
    return table


def format_batch(progress: BatchProgress) -> str:
    """Describe one batch in a line."""
    batch = (
        f"batch {progress.batch}: {format_record_count(progress.records)}, {format_bytes(progress.size_bytes)} "
        f"in {format_seconds(progress.duration_ms)}"
    )
    if progress.is_repeated:
        return f"{batch}; repeated, with the same records: it was not finished before the restart"
    shards = format_count(len(progress.behind_ms), "shard")
    return f"{batch}; {shards}, furthest behind: {format_seconds(progress.max_behind_ms)}"


def format_record_count(number: int) -> str:
    """Format a number of records.

    >>> format_record_count(1), format_record_count(12_000)
    ('1 record', '12,000 records')
    """
    return f"{number:,} record" if number == 1 else f"{number:,} records"


def format_bytes(size_bytes: int) -> str:
    """Format a size with its largest unit.

    >>> format_bytes(999), format_bytes(1_500), format_bytes(2_340_000_000)
    ('999 B', '1.5 kB', '2.3 GB')
    """
    size, unit = float(size_bytes), "B"
    for larger in ("kB", "MB", "GB", "TB"):
        if size < 1000:
            break
        size, unit = size / 1000, larger
    return f"{size:.0f} {unit}" if unit == "B" else f"{size:.1f} {unit}"


def format_seconds(duration_ms: int | None) -> str:
    """Format a duration in seconds.

    >>> format_seconds(None), format_seconds(0), format_seconds(1_234), format_seconds(90_000)
    ('unknown', '0 s', '1.2 s', '90 s')
    """
    return (
        "unknown"
        if duration_ms is None
        else f"{duration_ms / 1000:.2g} s"
        if duration_ms < 10_000
        else f"{duration_ms // 1000} s"
    )


def _now() -> str:
    return datetime.now(UTC).astimezone().strftime("%H:%M:%S")
