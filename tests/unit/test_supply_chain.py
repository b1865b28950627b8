"""What is installed is what was locked, and lists of it can be made."""

import json
import re
import tomllib
from importlib.metadata import requires
from pathlib import Path
from typing import Any

import pytest

from tools import audit
from tools.locks import REQUIREMENTS, Locked, read_lock
from tools.sbom import OPTIONAL_PARTS, SbomError, build_document, find_dependencies

ROOT = REQUIREMENTS.parent
LOCKS = sorted(REQUIREMENTS.glob("*.lock"))


@pytest.mark.parametrize("lock", LOCKS, ids=lambda path: path.name)
def test_every_locked_package_has_hashes_and_no_address(lock: Path) -> None:
    """The project decides what is installed, the machine from where."""
    text = lock.read_text()
    packages = read_lock(text)
    assert len(packages) == len(re.findall(r"(?m)^\S+==", text)) > 0
    assert all(each.hashes for each in packages)
    assert "://" not in text


def test_every_environment_has_the_same_uv() -> None:
    """It is installed first, from a lock file of its own, and must not be replaced by another one."""
    (uv,) = read_lock((REQUIREMENTS / "uv.lock").read_text())
    found = {each for lock in LOCKS for each in read_lock(lock.read_text()) if each.name == "uv"}
    assert found == {uv}


def test_make_installs_nothing_without_hashes() -> None:
    """Except our own package, which needs nothing else then."""
    makefile = (ROOT / "Makefile").read_text()
    installs = re.findall(r"(?m)^.*\bpip (?:install|sync)\b.*$", makefile)
    assert len(installs) >= 4
    for line in installs:
        assert "--require-hashes" in line or "--no-deps --no-build-isolation --editable ." in line, line


def test_every_crate_is_locked_with_a_checksum() -> None:
    """The source of a crate is the name of cargo's registry; the configuration of the machine decides where that is."""
    crates = tomllib.loads((ROOT / "native" / "Cargo.lock").read_text())["package"]
    assert {each["name"] for each in crates if "checksum" not in each} == {"leasehold-native"}
    sources = {each["source"] for each in crates if "checksum" in each}
    assert sources == {"registry+https://github.com/rust-lang/crates.io-index"}


def test_the_bill_of_materials_lists_what_leasehold_installs() -> None:
    """With all extras and what they need, each with its hashes, and without the tools of development."""
    dependencies = find_dependencies()
    document = build_document(dependencies, read_lock((REQUIREMENTS / "dev.lock").read_text()))
    assert (document["bomFormat"], document["specVersion"]) == ("CycloneDX", "1.6")
    components = {each["name"]: each for each in document["components"]}
    direct = {re.split(r"[^A-Za-z0-9-]", text)[0] for text in requires("leasehold") or ()} - {"leasehold"}
    direct -= OPTIONAL_PARTS
    assert direct | {"botocore", "py4j"} <= components.keys()
    assert not {"pytest", "mypy", "ruff", "leasehold"} & components.keys()
    for each in components.values():
        assert each["purl"] == each["bom-ref"] == f"pkg:pypi/{each['name']}@{each['version']}"
        assert each["hashes"]
        assert each["licenses"]
    references = {each["ref"] for each in document["dependencies"]}
    assert references == {
        each["bom-ref"] for each in [*components.values(), document["metadata"]["component"]]
    }
    assert {used for each in document["dependencies"] for used in each["dependsOn"]} <= references


def test_a_package_that_is_not_locked_is_refused() -> None:
    """The document would name another version than the one that users get."""
    with pytest.raises(
        SbomError, match=r"boto3 .* is installed, and dev.lock does not have it: run `make setup`"
    ):
        build_document({"leasehold": ["boto3"], "boto3": []}, [Locked("boto3", "0.0.1", ())])


def answer(*packages: dict[str, Any]) -> audit.Answer:
    parsed = audit.parse_answer(json.dumps({"dependencies": packages, "fixes": []}))
    assert parsed is not None
    return parsed


GOOD = {"name": "good", "version": "1", "vulns": []}
BAD = {
    "name": "bad",
    "version": "2",
    "vulns": [{"id": "PYSEC-1", "fix_versions": ["3"], "description": "..."}],
}
SKIPPED = {"name": "odd", "skip_reason": "not found"}


def test_an_audit_passes_only_with_an_answer_about_every_package(capsys: pytest.CaptureFixture[str]) -> None:
    """Vulnerabilities are listed with their remedy, and packages without an answer by name."""
    assert audit.report("osv", answer(GOOD)) == 0
    assert audit.report("osv", answer(GOOD, BAD, SKIPPED)) == audit.VULNERABLE_CODE
    assert audit.report("osv", answer(GOOD, SKIPPED)) == audit.UNKNOWN_CODE
    assert capsys.readouterr().out.splitlines() == [
        "audit: 1 packages, no known vulnerabilities (source: osv)",
        "audit: bad 2: PYSEC-1, fixed in 3",
        "audit: not known to the source: odd: not found",
        "audit: 3 packages, 1 known vulnerabilities, 1 packages NOT CHECKED (source: osv)",
        "audit: not known to the source: odd: not found",
        "audit: 2 packages, no known vulnerabilities, 1 packages NOT CHECKED (source: osv)",
    ]


@pytest.mark.parametrize("output", ["", "Traceback", "[]", "{}"])
def test_an_audit_without_an_answer_says_so(
    output: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A source that cannot be reached must not look like a source that knows no vulnerability."""
    monkeypatch.setattr(audit, "ask", lambda _source, _packages: (audit.parse_answer(output), "unreachable"))
    assert audit.main() == audit.UNKNOWN_CODE
    told = capsys.readouterr().err
    assert "no answer from the source pypi: unreachable" in told
    assert "NOT DONE. No source of advisories answered" in told


def test_a_source_that_knows_no_package_has_not_answered(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """As a mirror of packages that has no advisories. The next source is asked."""
    answers = {"pypi": answer(SKIPPED), "osv": answer(GOOD)}
    monkeypatch.setattr(audit, "ask", lambda source, _packages: (answers[source], ""))
    assert audit.main() == 0
    assert "source: osv" in capsys.readouterr().out


def test_every_locked_version_is_audited() -> None:
    """A package may be locked in two versions, which no single list may contain."""
    lists = audit.locked_packages()
    expected = {f"{each.name}=={each.version}" for lock in LOCKS for each in read_lock(lock.read_text())}
    assert {each for packages in lists for each in packages} == expected
    for packages in lists:
        names = [each.partition("==")[0] for each in packages]
        assert len(names) == len(set(names))
