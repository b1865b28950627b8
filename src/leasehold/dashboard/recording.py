"""A recorded incident: the views of a fleet as lines of JSON, and their playback.

The first line describes the file. Each further line is a whole view or the change since the line before it. Every so
often a view is whole, so that playback can begin there. Views contain no payloads and no partition keys.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, TextIO

from leasehold.core.observing.dashboard.fleet_history import POINTS_MAX
from leasehold.core.observing.dashboard.view_changes import TABLES, View, apply_change, diff_views
from leasehold.dashboard.view_hub import encode
from leasehold.errors import ConfigError

FORMAT: Final = "leasehold-dashboard"
VERSION: Final = 1
WHOLE_EVERY: Final = 100

Points = Sequence[tuple[int, int | None, float | None]]


class Recorder:
    """Writes views to a file. Each line is flushed, so that a killed process loses none."""

    def __init__(self, path: Path, application: str) -> None:
        try:
            self._file: TextIO = path.open("x", encoding="ascii")
        except FileExistsError:
            raise ConfigError(f"--record {path}: the file exists; choose another one, or delete it") from None
        self._last: View | None = None
        self._lines = 0
        self._write({"format": FORMAT, "version": VERSION, "application": application})

    def add(self, view: View) -> None:
        """Write a view, or only what has changed."""
        is_whole = self._last is None or self._lines % WHOLE_EVERY == 0
        value = view if self._last is None or is_whole else diff_views(self._last, view)
        self._write({"view" if is_whole else "change": value})
        self._last, self._lines = view, self._lines + 1

    def close(self) -> None:
        """Close the file."""
        self._file.close()

    def _write(self, value: Mapping[str, Any]) -> None:
        self._file.write(f"{encode(value)}\n")
        self._file.flush()


class Playback:
    """The frames of a recording. A frame is computed from the last whole view before it."""

    def __init__(self, frames: Sequence[Mapping[str, View]]) -> None:
        self._frames = frames
        self._number = -1
        self._view: View = {}

    @property
    def times(self) -> Sequence[int]:
        """The time of each frame, in milliseconds since the epoch."""
        times: list[int] = []
        for frame in self._frames:
            value = frame.get("view") or frame["change"]
            times.append(int(value.get("at", times[-1] if times else 0)))
        return times

    def view(self, number: int) -> View:
        """The view of a frame. Numbers outside the recording mean its first or last frame."""
        number = max(0, min(number, len(self._frames) - 1))
        start = number
        while start > 0 and "view" not in self._frames[start]:
            start -= 1
        if start <= self._number <= number:
            start, view = self._number + 1, self._view
        else:
            view = {}
        for each in range(start, number + 1):
            frame = self._frames[each]
            view = frame["view"] if "view" in frame else apply_change(view, frame["change"])
        self._number, self._view = number, view
        return view

    def series(self, numbers: Iterable[int], until: int) -> Mapping[int, Points]:
        """Lag and throughput of shards up to a frame."""
        wanted = [str(number) for number in numbers]
        found: dict[str, list[tuple[int, int | None, float | None]]] = {key: [] for key in wanted}
        for number in range(max(0, until - POINTS_MAX + 1), until + 1):
            view = self.view(number)
            for key in wanted:
                if (row := view.get("shards", {}).get(key)) is not None and row.get("lag") is not None:
                    found[key].append((int(view.get("at", 0)) // 1000, row["lag"], row.get("kbps")))
        return {int(key): points for key, points in found.items() if points}


def read_recording(path: Path) -> Playback:
    """Read a recording. Its last line may be incomplete, if the process was killed while it wrote."""
    with path.open(encoding="utf-8", errors="replace") as lines:
        values = list(_parse(path, lines))
    if not values or values[0].get("format") != FORMAT or values[0].get("version") != VERSION:
        raise ConfigError(f"--replay {path}: this is not a recording of `leasehold dashboard --record`")
    frames = values[1:]
    if not frames or not all(map(_is_frame, frames)) or "view" not in frames[0]:
        raise ConfigError(f"--replay {path}: the recording contains no view of a fleet")
    return Playback(frames)


def _parse(path: Path, lines: Iterable[str]) -> Iterable[Mapping[str, Any]]:
    broken = None
    for number, line in enumerate(lines, start=1):
        if broken is not None:
            raise ConfigError(f"--replay {path}: line {broken} is not JSON")
        try:
            value = json.loads(line)
        except ValueError:
            broken = number
            continue
        if not isinstance(value, dict):
            raise ConfigError(f"--replay {path}: line {number} is not an object")
        yield value


def _is_frame(value: Mapping[str, Any]) -> bool:
    content = value.get("view", value.get("change"))
    return isinstance(content, dict) and all(isinstance(content.get(name, {}), dict) for name in TABLES)
