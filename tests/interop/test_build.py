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


@pytest.fixture
def fetched(empty_folder: Path, monkeypatch: pytest.MonkeyPatch) -> build.Member:
    """A member with two jars that were fetched and recorded."""
    monkeypatch.setattr(build, "CHECKSUMS", empty_folder)
    member = build.Member("9.9.9")
    member.jars.mkdir(parents=True)
    for name in ("client.jar", "sdk.jar"):
        (member.jars / name).write_bytes(name.encode())
    (empty_folder / "kcl-9.9.9.sha256").write_text("".join(f"{line}\n" for line in build._checksums(member)))
    return member


def test_recorded_jars_are_accepted(fetched: build.Member) -> None:
    """All of them, and no other."""
    build.verify_checksums(fetched)
    assert len(list(fetched.jars.iterdir())) == 2


@pytest.mark.parametrize("change", ["changed", "missing", "added", "not recorded"])
def test_other_jars_are_refused_and_deleted(fetched: build.Member, empty_folder: Path, change: str) -> None:
    """Before anything of them runs. The error names the jar."""
    match change:
        case "changed":
            (fetched.jars / "sdk.jar").write_bytes(b"evil")
        case "missing":
            (fetched.jars / "sdk.jar").unlink()
        case "added":
            (fetched.jars / "evil.jar").write_bytes(b"evil")
        case _:
            (empty_folder / "kcl-9.9.9.sha256").unlink()
    with pytest.raises(build.BuildError, match=r"KCL 9.9.9 are not those in kcl-9.9.9.sha256: .*\.jar"):
        build.verify_checksums(fetched)
    assert not fetched.jars.exists()


def test_every_version_has_recorded_checksums() -> None:
    """And every recorded version is used."""
    recorded = {path.stem.removeprefix("kcl-") for path in build.CHECKSUMS.glob("*.sha256")}
    assert recorded == set(build.FROM_MAVEN)
