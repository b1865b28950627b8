"""Builds the Java member, one per version of the KCL, in `.servers/` inside the checkout.

Maven fetches the KCL and what it needs from Maven Central, into a cache of our own. One version comes with `kclpy-ext`,
which the test servers bring anyway: it is all there is where Maven is missing or Maven Central does not answer. What
`tests/interop/java` holds is compiled against each of them by the JDK. A stamp holds the digest of the sources, so that
a second run does nothing. Run as a program: `python -m tests.interop.build`.

The jars must have the checksums in `tests/interop/checksums`, one file a version. After a change of a version or of
`pom.xml`, `python -m tests.interop.build --record-checksums` fetches the jars again and writes the files; look at what
has changed before you commit it.
"""

import hashlib
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from tests.servers.install import SERVERS, InstallError, exclusively, java, java_can_compile, kcl_jars

SOURCES = Path(__file__).resolve().parent / "java"
CHECKSUMS = Path(__file__).resolve().parent / "checksums"
# KCL 1.x has other packages and another SDK, so its member has sources of its own, except for what it tells a test.
SOURCES_1 = Path(__file__).resolve().parent / "java1"
TOLD = SOURCES / "src" / "main" / "java" / "leasehold" / "interop" / "Told.java"
NEWEST = "3.5.1"  # leases, lock and reports in one table
THREE_TABLES = "3.4.2"  # the last on Maven Central with separate tables for lock and reports
KCL_2 = "2.7.2"  # the last without a leader that Maven Central has
KCL_1 = "1.15.3"  # the last of 1.x
WITHOUT_MAVEN = "3.1.3"  # the version in `kclpy-ext`; three tables
FROM_MAVEN = (NEWEST, THREE_TABLES, KCL_2, KCL_1)
VERSIONS = (WITHOUT_MAVEN, *FROM_MAVEN)
# Maven's messages for a failed download.
UNREACHABLE = re.compile(
    "(?i)could not (resolve|transfer)|could not be resolved|could not find artifact|unknown host"
)
NOTHING_CODE = 3
REMEDY = "run `make setup-interop` on a machine that has a JDK and Maven and reaches Maven Central"


class BuildError(Exception):
    """The Java member could not be built, or was not built."""


class UnreachableError(BuildError):
    """There is no compiler or no Maven, or Maven Central does not respond: the sources are not the cause."""


@dataclass(frozen=True, slots=True)
class Member:
    """The Java member for one version of the KCL, with the folders of its jars and classes."""

    version: str

    @property
    def home(self) -> Path:
        """Its folder."""
        return SERVERS / f"kcl-{self.version}"

    @property
    def classes(self) -> Path:
        """The folder of the compiled classes."""
        return self.home / "classes"

    @property
    def jars(self) -> Path:
        """The folder of the KCL and its dependencies."""
        return kcl_jars() if self.version == WITHOUT_MAVEN else self.home / "lib"

    @property
    def sources(self) -> list[Path]:
        """The sources for all versions, and those for this one."""
        if self.version == KCL_1:
            return [*sorted(SOURCES_1.rglob("*.java")), TOLD]
        generation = f"kcl{self.version.partition('.')[0]}"
        return sorted(
            path for part in ("main", generation) for path in (SOURCES / "src" / part).rglob("*.java")
        )

    @property
    def class_path(self) -> str:
        """The class path for compiling and running."""
        parts = (self.classes, SOURCES / "src" / "main" / "resources", *sorted(self.jars.glob("*.jar")))
        return os.pathsep.join(map(str, parts))

    @property
    def is_built(self) -> bool:
        """Whether it was built from the present sources."""
        return self._stamp.exists() and self._stamp.read_text() == self._digest()

    def record_build(self) -> None:
        """Record that it was built from the present sources."""
        self._stamp.write_text(self._digest())

    @property
    def pom(self) -> Path:
        """The file that names what Maven fetches."""
        return (SOURCES_1 if self.version == KCL_1 else SOURCES) / "pom.xml"

    def _digest(self) -> str:
        if self.version == KCL_1:
            return _digest([*SOURCES_1.rglob("*"), TOLD, _checksum_file(self)])
        return _digest([*SOURCES.rglob("*"), _checksum_file(self)])

    @property
    def _stamp(self) -> Path:
        return SERVERS / f"kcl-{self.version}.stamp"


def is_built(version: str) -> bool:
    """Whether members on this KCL can be started."""
    return Member(version).is_built


def java_command(version: str, log: Path) -> list[str]:
    """The command that starts a member on this KCL, without options. The KCL's log goes to a file."""
    member = Member(version)
    if not member.is_built:
        raise BuildError(f"the Java member on KCL {version} is not built in {member.home}: {REMEDY}")
    return [
        str(java()),
        # Several JVMs share two processors, so each must start quickly and stay small.
        "-Xmx192m",
        "-XX:+UseSerialGC",
        "-XX:TieredStopAtLevel=1",
        f"-Dlog.file={log}",
        "-cp",
        member.class_path,
        "leasehold.interop.JavaMember",
    ]


def build_all() -> dict[str, UnreachableError]:
    """Build what is missing. Returns what cannot be built on this machine, with the reason."""
    missing: dict[str, UnreachableError] = {}
    with exclusively(SERVERS / ".lock-interop"):
        for version in VERSIONS:
            try:
                _build(Member(version))
            except UnreachableError as error:
                missing[version] = error
    return missing


def _build(member: Member) -> None:
    if member.is_built:
        return
    print(f"interop: building the Java member on KCL {member.version} ...", flush=True)
    if not java_can_compile():
        raise UnreachableError(f"{java()} is a Java without a compiler: install a JDK, 11 or newer")
    if member.version in FROM_MAVEN:
        _fetch(member)
        verify_checksums(member)
    _compile(member)
    member.record_build()


def _fetch(member: Member) -> None:
    maven = shutil.which("mvn")
    if maven is None:
        raise UnreachableError("there is no `mvn` on this machine: install Maven 3.8 or newer")
    shutil.rmtree(member.jars, ignore_errors=True)
    done = _run(
        maven,
        "--batch-mode",
        "--quiet",
        "--strict-checksums",
        f"--file={member.pom}",
        f"-Dmaven.repo.local={SERVERS / 'maven'}",
        f"-Djars.in={member.jars}",
        f"-Dkcl.version={member.version}",
        "dependency:copy-dependencies",
    )
    if done.returncode != 0:
        kind = UnreachableError if UNREACHABLE.search(done.stdout) else BuildError
        raise kind(f"Maven gave {done.returncode} for KCL {member.version}:\n{done.stdout.strip()[-3000:]}")


def verify_checksums(member: Member) -> None:
    """Delete the fetched jars and raise an error unless they are exactly the recorded ones. Nothing of them has run."""
    recorded = _checksum_file(member)
    expected = recorded.read_text().splitlines() if recorded.exists() else []
    found = _checksums(member)
    if found == expected:
        return
    changed = sorted({line.split()[-1] for line in set(found).symmetric_difference(expected)})
    shutil.rmtree(member.jars)
    raise BuildError(
        f"the jars of KCL {member.version} are not those in {recorded.name}: {', '.join(changed[:5])}"
        f"{' ...' if len(changed) > 5 else ''}; if their versions were changed on purpose, run "
        "`python -m tests.interop.build --record-checksums`, and otherwise find out who has changed them"
    )


def record_checksums() -> None:
    """Fetch the jars of all versions, and write their checksums."""
    with exclusively(SERVERS / ".lock-interop"):
        for member in map(Member, FROM_MAVEN):
            _fetch(member)
            _checksum_file(member).write_text("".join(f"{line}\n" for line in _checksums(member)))


def _checksum_file(member: Member) -> Path:
    return CHECKSUMS / f"kcl-{member.version}.sha256"


def _checksums(member: Member) -> list[str]:
    """One line for each jar, as `sha256sum` writes it."""
    return [
        f"{hashlib.sha256(jar.read_bytes()).hexdigest()}  {jar.name}"
        for jar in sorted(member.jars.glob("*.jar"))
    ]


def _compile(member: Member) -> None:
    try:
        class_path = member.class_path
    except InstallError as error:
        raise UnreachableError(str(error)) from error
    shutil.rmtree(member.classes, ignore_errors=True)
    compiler = [str(java()), "--module", "jdk.compiler/com.sun.tools.javac.Main", "--release", "11"]
    # Only the KCL's own build needs its annotations.
    compiler += ["-proc:none", "-d", str(member.classes), "-cp", class_path]
    done = _run(*compiler, *map(str, member.sources))
    if done.returncode != 0:
        raise BuildError(
            f"javac gave {done.returncode} for KCL {member.version}:\n{done.stdout.strip()[-3000:]}"
        )


def _run(*command: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(command, check=False, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)


def _digest(paths: Iterable[Path]) -> str:
    files = [path for path in sorted(paths) if path.is_file()]
    return hashlib.sha256(b"\0".join(path.read_bytes() for path in files)).hexdigest()


def main(*arguments: str) -> int:
    """Build what is available. Exit codes: 0, at least one version was built; 3, none is available; 1, a build
    failed.
    """
    try:
        if arguments == ("--record-checksums",):
            record_checksums()
            return 0
        missing = build_all()
    except BuildError as error:
        print(f"interop: {error}", file=sys.stderr)
        return 1
    for version, why in missing.items():
        print(f"interop: no tests with KCL {version}: {why}", file=sys.stderr)
    return NOTHING_CODE if len(missing) == len(VERSIONS) else 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
