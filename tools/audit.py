"""Looks for known vulnerabilities of all locked packages: `make audit`.

pip-audit asks its sources of advisories, one after the other, until one of them answers. Exit codes: 0, no known
vulnerabilities; 1, some; 3, nothing is known about some packages, or about all because no source answered. Without an
answer the audit has not passed, and the output says so.
"""

import json
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

from tools.locks import REQUIREMENTS, read_lock

SOURCES = ("pypi", "osv")  # as pip-audit names them
VULNERABLE_CODE = 1
UNKNOWN_CODE = 3


@dataclass(frozen=True, slots=True)
class Answer:
    """What a source knows: the number of packages, its vulnerabilities, and the packages that it does not know."""

    packages: int
    vulnerabilities: Sequence[str]
    skipped: Sequence[str]


def parse_answer(output: str) -> Answer | None:
    """The answer in the output of pip-audit; None if there is none, because the source could not be asked."""
    try:
        packages = json.loads(output)["dependencies"]
    except (ValueError, KeyError, TypeError):
        return None
    return Answer(
        len(packages),
        sorted({_describe(each, found) for each in packages for found in each.get("vulns", ())}),
        sorted({f"{each['name']}: {each['skip_reason']}" for each in packages if "skip_reason" in each}),
    )


def _describe(package: dict[str, str], found: dict[str, object]) -> str:
    fixed = found.get("fix_versions")
    remedy = f"fixed in {', '.join(fixed)}" if isinstance(fixed, list) and fixed else "not fixed yet"
    return f"{package['name']} {package['version']}: {found.get('id')}, {remedy}"


def locked_packages() -> list[list[str]]:
    """All packages of all lock files, in lists of which none has two versions of a package: pip-audit refuses those."""
    lists: list[dict[str, str]] = []
    for name, version, _ in sorted(
        {each for lock in REQUIREMENTS.glob("*.lock") for each in read_lock(lock.read_text())}
    ):
        fitting = next((each for each in lists if each.get(name, version) == version), None)
        if fitting is None:
            lists.append(fitting := {})
        fitting[name] = version
    return [[f"{name}=={version}" for name, version in each.items()] for each in lists]


def ask(source: str, packages: Sequence[str]) -> tuple[Answer | None, str]:
    """The answer of a source, or None and the last line of what pip-audit says about it."""
    command = [sys.executable, "-m", "pip_audit", "--format=json", "--progress-spinner=off", "--timeout=20"]
    command += ["--no-deps", "--disable-pip", f"--vulnerability-service={source}"]
    with TemporaryDirectory() as folder:
        file = Path(folder) / "requirements.txt"
        file.write_text("".join(f"{each}\n" for each in packages))
        done = subprocess.run(
            [*command, f"--requirement={file}"], capture_output=True, text=True, check=False
        )
    lines = done.stderr.strip().splitlines() or ["no output"]
    return parse_answer(done.stdout), lines[-1]


def report(source: str, answer: Answer) -> int:
    """Print an answer, and return the exit code."""
    for line in answer.vulnerabilities:
        print(f"audit: {line}")
    for line in answer.skipped:
        print(f"audit: not known to the source: {line}")
    counts = [f"{answer.packages} packages", f"{len(answer.vulnerabilities) or 'no'} known vulnerabilities"]
    counts += [f"{len(answer.skipped)} packages NOT CHECKED"] if answer.skipped else []
    print(f"audit: {', '.join(counts)} (source: {source})")
    if answer.vulnerabilities:
        return VULNERABLE_CODE
    return UNKNOWN_CODE if answer.skipped else 0


def ask_all(source: str) -> Answer | None:
    """The answer of a source about all packages; None if it does not answer."""
    answers = []
    for packages in locked_packages():
        answer, problem = ask(source, packages)
        if answer is not None and len(answer.skipped) == answer.packages:
            # For example a mirror of packages, which has no advisories.
            answer, problem = None, "it knows none of the packages"
        if answer is None:
            print(f"audit: no answer from the source {source}: {problem}", file=sys.stderr)
            return None
        answers.append(answer)
    return Answer(
        sum(answer.packages for answer in answers),
        sorted({line for answer in answers for line in answer.vulnerabilities}),
        sorted({line for answer in answers for line in answer.skipped}),
    )


def main() -> int:
    for source in SOURCES:
        answer = ask_all(source)
        if answer is not None:
            return report(source, answer)
    print(
        "audit: NOT DONE. No source of advisories answered, so nothing is known about the locked packages. Run "
        "`make audit` on a machine that reaches one.",
        file=sys.stderr,
    )
    return UNKNOWN_CODE


if __name__ == "__main__":
    sys.exit(main())
