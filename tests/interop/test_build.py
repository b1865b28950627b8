"""Where there is no Maven, or no compiler: what is built all the same, and how the rest is named."""

import shutil
from pathlib import Path

import pytest

from tests.interop import build
from tests.servers.install import java_can_compile


@pytest.fixture(autouse=True)
def empty_folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """Nothing was built yet, and there is no Maven."""
    monkeypatch.setattr(build, "SERVERS", tmp_path)
    monkeypatch.setattr(shutil, "which", lambda _name: None)
    return tmp_path


@pytest.mark.skipif(not java_can_compile(), reason="takes a JDK")
def test_without_maven_one_version_is_built(capsys: pytest.CaptureFixture[str]) -> None:
    """The KCL that comes from PyPI is enough to go on; the others are missed by name, with the remedy."""
    assert build.main() == 0
    assert [version for version in build.VERSIONS if build.is_built(version)] == [build.WITHOUT_MAVEN]
    told = capsys.readouterr().err
    assert all(f"no stories on KCL {version}: there is no `mvn`" in told for version in build.FROM_MAVEN)
    with pytest.raises(build.BuildError, match="make setup-interop"):
        build.java_command(build.NEWEST, Path("log"))


def test_without_a_compiler_nothing_is_built(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A machine with a mere Java runtime has no stories, and is told why; that is no failure."""
    monkeypatch.setattr(build, "java_can_compile", lambda: False)
    assert build.main() == build.NOTHING_CODE
    assert "a Java without a compiler: install a JDK" in capsys.readouterr().err
