"""`leasehold dashboard` says what is missing."""

import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from leasehold.cli.command import leasehold


@pytest.fixture(autouse=True)
def no_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("LEASEHOLD_APPLICATION", "LEASEHOLD_LEASES", "LEASEHOLD_CONFIG"):
        monkeypatch.delenv(name, raising=False)


def test_without_leases_the_options_are_named() -> None:
    result = CliRunner().invoke(leasehold, ["dashboard"])
    assert result.exit_code == 2
    assert "Say where the leases are" in result.output
    assert "--replay FILE" in result.output


def test_a_file_that_is_no_recording_is_refused(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("notes\n")
    result = CliRunner().invoke(leasehold, ["dashboard", "--replay", str(tmp_path / "notes.txt")])
    assert result.exit_code == 1
    assert "this is not a recording" in result.output


def test_a_missing_library_is_reported_with_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "starlette", None)
    result = CliRunner().invoke(leasehold, ["dashboard", "--application", "orders"])
    assert result.exit_code == 1
    assert "starlette is not installed: pip install 'leasehold[dashboard]'" in result.output


def test_a_wrong_status_address_is_refused_at_the_start() -> None:
    result = CliRunner().invoke(leasehold, ["dashboard", "--application", "orders", "--status", "ftp://x"])
    assert result.exit_code == 2
    assert "--status ftp://x: expected http://host:port" in result.output
