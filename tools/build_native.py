"""Builds `leasehold-native` and installs it into this environment: `python -m tools.build_native`.

Without a Rust toolchain, or if the crates cannot be fetched, it says so and succeeds, because everything works without
this package. A build that fails is an error.
"""

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
NATIVE = ROOT / "native"
NOT_BUILT = "leasehold-native is not built: {}. Everything works without it, only slower (docs/native.md)."


def find_cargo() -> str | None:
    """Rust's package manager, from the path or from where rustup puts it."""
    return shutil.which("cargo") or shutil.which("cargo", path=Path("~/.cargo/bin").expanduser())


def run(command: list[str], cargo: str) -> int:
    """The exit code of a command that finds cargo and rustc."""
    path = f"{Path(cargo).parent}{os.pathsep}{os.environ.get('PATH', '')}"
    return subprocess.run(command, cwd=NATIVE, env=os.environ | {"PATH": path}, check=False).returncode


def main() -> int:
    cargo = find_cargo()
    if cargo is None:
        print(NOT_BUILT.format("there is no Rust toolchain (cargo) on this machine"))
        return 0
    if run([cargo, "fetch", "--quiet", "--locked"], cargo):
        print(NOT_BUILT.format("cargo could not fetch its crates, see above"))
        return 0
    programs = Path(sys.executable).parent
    with tempfile.TemporaryDirectory() as folder:
        # The wheel is for this machine, so it need not be portable to older ones.
        build = "build --quiet --release --locked --offline --compatibility linux --interpreter"
        if run([f"{programs}/maturin", *build.split(), sys.executable, "--out", folder], cargo):
            return 1
        (wheel,) = map(str, Path(folder).glob("*.whl"))
        install = "pip install --quiet --no-deps --reinstall --python"
        if run([f"{programs}/uv", *install.split(), sys.executable, wheel], cargo):
            return 1
    (Path(sys.prefix) / ".native").touch()
    return 0


if __name__ == "__main__":
    sys.exit(main())
