"""A recorded incident, and its playback."""

from pathlib import Path

import pytest

from leasehold.core.observing.dashboard.fleet_history import FleetHistory
from leasehold.dashboard.recording import WHOLE_EVERY, Recorder, read_recording
from leasehold.errors import ConfigError
from tests.dashboard.sample_fleets import small_fleet, view_at

FRAMES = WHOLE_EVERY + 10


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "incident.jsonl"


def test_a_recording_plays_back_every_view_in_any_order(file: Path) -> None:
    history = FleetHistory()
    views = [view_at(small_fleet(), step, history) for step in range(FRAMES)]
    recorder = Recorder(file, "orders")
    for view in views:
        recorder.add(view)
    recorder.close()
    playback = read_recording(file)
    assert list(playback.times) == [view["at"] for view in views]
    for frame in (0, 7, 3, FRAMES - 1, WHOLE_EVERY - 1, WHOLE_EVERY):
        assert playback.view(frame) == views[frame]
    assert playback.view(10**6) == views[-1]
    number = int(next(iter(views[-1]["shards"])))
    points = playback.series([number, 999], FRAMES - 1)
    assert list(points) == [number]
    assert points[number][-1][1] == views[-1]["shards"][str(number)]["lag"]


def test_the_last_line_may_be_incomplete(file: Path) -> None:
    """The process was killed while it wrote."""
    recorder, history = Recorder(file, "orders"), FleetHistory()
    for step in range(3):
        recorder.add(view_at(small_fleet(), step, history))
    recorder.close()
    file.write_bytes(file.read_bytes()[:-20])
    assert len(read_recording(file).times) == 2


@pytest.mark.parametrize(
    "content", ["", "{}\n", "no\n{}\n", "[]\n", '{"format": "leasehold-dashboard", "version": 1}\n']
)
def test_another_file_is_refused(file: Path, content: str) -> None:
    file.write_text(content)
    with pytest.raises(ConfigError, match=r"--replay .*incident\.jsonl"):
        read_recording(file)


def test_an_existing_file_is_not_overwritten(file: Path) -> None:
    file.write_text("precious")
    with pytest.raises(ConfigError, match="the file exists"):
        Recorder(file, "orders")
    assert file.read_text() == "precious"
