"""Builds `leasehold-native` and installs it: `python -m tools.build_native [ENVIRONMENT]`.

It is installed into this environment, or into the named one, for example `.venv-bench`. Without a Rust toolchain, or if
the crates cannot be fetched, the wheel of an earlier build is installed; without one it says so and succeeds, because
everything works without this package. A build that fails is an error.
"""

import os
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
NATIVE = ROOT / "native"
WHEELS = NATIVE / "target" / "wheels"
NOT_BUILT = "leasehold-native is not built: {}. Everything works without it, only slower (docs/native.md)."


def find_cargo() -> str | None:
    """Rust's package manager, from the path or from where rustup puts it."""
    return shutil.which("cargo") or shutil.which("cargo", path=Path("~/.cargo/bin").expanduser())


def run(command: list[str], cargo: str | None = None) -> int:
    """The exit code of a command that finds cargo and rustc."""
    path = os.environ.get("PATH", "")
    path = f"{Path(cargo).parent}{os.pathsep}{path}" if cargo else path
    return subprocess.run(command, cwd=NATIVE, env=os.environ | {"PATH": path}, check=False).returncode


def reason_not_to_build(cargo: str | None) -> str | None:
    """Why the package cannot be built on this machine; None if it can."""
    if cargo is None:
        return "there is no Rust toolchain (cargo) on this machine"
    if run([cargo, "fetch", "--quiet", "--locked"], cargo):
        return "cargo could not fetch its crates, see above"
    return None


def find_wheel(wheels: Path) -> Path | None:
    """The wheel of the newest build."""
    found = sorted(wheels.glob("leasehold_native-*.whl"), key=lambda each: each.stat().st_mtime)
    return found[-1] if found else None


def main(environment: Path) -> int:
    cargo, programs = find_cargo(), Path(sys.executable).parent
    reason = reason_not_to_build(cargo)
    if reason is None:
        # The wheel is for this machine, so it need not be portable to older ones.
        build = "build --quiet --release --locked --offline --compatibility linux --interpreter"
        if run([f"{programs}/maturin", *build.split(), sys.executable, "--out", str(WHEELS)], cargo):
            return 1
    wheel = find_wheel(WHEELS)
    if wheel is None:
        print(NOT_BUILT.format(reason))
        return 0
    if reason is not None:
        print(f"leasehold-native is installed from an earlier build, {wheel.name}: {reason}.")
    install = "pip install --quiet --no-deps --reinstall --python"
    if run([f"{programs}/uv", *install.split(), str(environment / "bin" / "python"), str(wheel)]):
        return 1
    (environment / ".native").touch()
    return 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1] if len(sys.argv) > 1 else sys.prefix).absolute()))
