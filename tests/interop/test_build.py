"""Without Maven or a compiler: what is still built, and what is reported as missing."""

import shutil
from pathlib import Path

import pytest

from tests.interop import build
from tests.servers.install import java_can_compile


@pytest.fixture(autouse=True)
def empty_folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """An empty folder, and no Maven on the path."""
    monkeypatch.setattr(build, "SERVERS", tmp_path)
    monkeypatch.setattr(shutil, "which", lambda _name: None)
    return tmp_path


@pytest.mark.skipif(not java_can_compile(), reason="takes a JDK")
def test_without_maven_one_version_is_built(capsys: pytest.CaptureFixture[str]) -> None:
    """The KCL from PyPI is built. The missing versions are reported with the remedy."""
    assert build.main() == 0
    assert [version for version in build.VERSIONS if build.is_built(version)] == [build.WITHOUT_MAVEN]
    told = capsys.readouterr().err
    assert all(f"no tests with KCL {version}: there is no `mvn`" in told for version in build.FROM_MAVEN)
    with pytest.raises(build.BuildError, match="make setup-interop"):
        build.java_command(build.NEWEST, Path("log"))


def test_without_a_compiler_nothing_is_built(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """On a machine with only a Java runtime, the tests are skipped with the reason, which is not a failure."""
    monkeypatch.setattr(build, "java_can_compile", lambda: False)
    assert build.main() == build.NOTHING_CODE
    assert "a Java without a compiler: install a JDK" in capsys.readouterr().err
