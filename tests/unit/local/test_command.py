"""The `leasehold` command, without starting a server."""

import subprocess
import sys

import pytest
from click.testing import CliRunner

from leasehold.cli.command import leasehold


def run(*arguments: str) -> tuple[int, str]:
    result = CliRunner().invoke(leasehold, arguments)
    return result.exit_code, result.output


def test_the_version_is_told() -> None:
    """`leasehold --version` is one line."""
    code, output = run("--version")
    assert (code, output.startswith("leasehold "), output.count("\n")) == (0, True, 1)


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["--host", "0.0.0.0"], "not a loopback address"),
        (["--stream", "orders"], "expected NAME:SHARDS"),
        (["--stream", "orders:0"], "expected NAME:SHARDS"),
        (["--status-delay-ms", "-1"], "status_delay_ms=-1"),
        (["--state", "/no/such/folder/state"], "/no/such/folder/state"),
    ],
)
def test_what_cannot_work_is_one_sentence(arguments: list[str], sentence: str) -> None:
    """No traceback, exit code 1, and the thing and the value named."""
    code, output = run("local", "--port", "0", *arguments)
    assert code == 1
    assert output.startswith("Error: ")
    assert sentence in output
    assert "Traceback" not in output


@pytest.mark.parametrize(
    ("missing", "extra"),
    [("click", "cli"), ("rich", "cli"), ("uvicorn", "local"), ("cbor2", "local"), ("httptools", "local")],
)
def test_a_missing_library_is_named_with_the_extra_that_brings_it(missing: str, extra: str) -> None:
    """Without the extra: one sentence, never a traceback."""
    program = (
        f"import sys; sys.modules[{missing!r}] = None; sys.argv = ['leasehold', 'local', '--port', '0'];"
        "from leasehold.cli import main; main()"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 1
    assert f"{missing} is not installed: pip install 'leasehold[{extra}]'" in done.stderr
    assert "Traceback" not in done.stderr


def test_importing_the_package_brings_no_server_and_no_command_line() -> None:
    """Neither the package nor the pytest plugin loads an extra."""
    program = (
        "import sys, leasehold, leasehold.local, leasehold.local.pytest_plugin, leasehold.cli;"
        "print([name for name in ('click', 'rich', 'uvicorn', 'cbor2', 'boto3', 'orjson') if name in sys.modules])"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True
    )
    assert done.stdout.strip() == "[]"
