"""leasehold-native is installed into the environment that is named, built or from an earlier build."""

import os
from pathlib import Path

import pytest

from tools import build_native

ROOT = Path(build_native.__file__).parents[1]


@pytest.fixture
def commands(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[list[str]]:
    """The commands that would run, on a machine without a Rust toolchain and without earlier builds."""
    made: list[list[str]] = []

    def note(command: list[str], _: str | None = None) -> int:
        made.append(command)
        return 0

    monkeypatch.setattr(build_native, "find_cargo", lambda: None)
    monkeypatch.setattr(build_native, "WHEELS", tmp_path / "wheels")
    monkeypatch.setattr(build_native, "run", note)
    return made


def test_without_a_toolchain_the_newest_wheel_is_installed(
    commands: list[list[str]], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Into the named environment, and the output says that it was not built now."""
    build_native.WHEELS.mkdir()
    for age, version in enumerate(("0.1.1", "0.1.0")):
        wheel = build_native.WHEELS / f"leasehold_native-{version}-cp311-abi3-linux_x86_64.whl"
        wheel.touch()
        os.utime(wheel, (1_000 - age, 1_000 - age))
    assert build_native.main(tmp_path) == 0
    ((_, *words),) = commands
    assert words[-2:] == [
        str(tmp_path / "bin" / "python"),
        str(build_native.WHEELS / "leasehold_native-0.1.1-cp311-abi3-linux_x86_64.whl"),
    ]
    assert (tmp_path / ".native").exists()
    assert "earlier build" in capsys.readouterr().out


def test_without_toolchain_and_wheel_a_sentence_says_so(
    commands: list[list[str]], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """And nothing is marked as installed."""
    assert build_native.main(tmp_path) == 0
    assert commands == []
    assert not (tmp_path / ".native").exists()
    assert "no Rust toolchain" in capsys.readouterr().out


def test_the_benchmarks_install_it_beside_the_peers() -> None:
    """Both sides of a comparison have to be in one process."""
    targets = [line for line in (ROOT / "Makefile").read_text().splitlines() if line.startswith("bench")]
    beside_peers = [line.partition(":")[0] for line in targets if "$(PEERS_READY)" in line]
    assert beside_peers == ["bench", "bench-java"]
    assert all("$(PEERS_NATIVE)" in line for line in targets if "$(PEERS_READY)" in line)
