"""The `leasehold` command, without starting a server."""

import subprocess
import sys

import pytest
from click.testing import CliRunner

from leasehold.cli.command import leasehold
from leasehold.cli.local import next_steps
from leasehold.errors import ConfigError
from leasehold.local.server import ServerOptions


def run_cli(*arguments: str) -> tuple[int, str]:
    """Run the command and return its exit code and output."""
    result = CliRunner().invoke(leasehold, arguments)
    return result.exit_code, result.output


def test_version_is_one_line() -> None:
    """`leasehold --version` prints one line."""
    code, output = run_cli("--version")
    assert (code, output.startswith("leasehold "), output.count("\n")) == (0, True, 1)


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["--host", "0.0.0.0"], "not a loopback address"),
        (["--stream", "orders"], "expected NAME:SHARDS"),
        (["--stream", "orders:0"], "expected NAME:SHARDS"),
        (["--status-delay-ms", "-1"], "--status-delay-ms=-1"),
    ],
)
def test_an_invalid_option_is_reported_in_one_sentence(arguments: list[str], sentence: str) -> None:
    """Exit code 2, no traceback, and the error names the option and the value."""
    code, output = run_cli("local", "--port", "0", *arguments)
    assert code == 2
    assert "\nError: " in output
    assert sentence in output
    assert "Traceback" not in output


def test_a_state_file_that_cannot_be_written_is_a_failure() -> None:
    """The option is right, and its folder is missing."""
    code, output = run_cli("local", "--port", "0", "--state", "/no/such/folder/state")
    assert code == 1
    assert "/no/such/folder/state: No such file or directory: check that its folder exists" in output
    assert "Traceback" not in output


def test_a_port_that_does_not_exist_is_refused() -> None:
    """In one sentence, as an option and as a setting of a server in a program."""
    code, output = run_cli("local", "--port", "99999")
    assert code == 2
    assert "99999 is not in the range 0<=x<=65535" in output
    with pytest.raises(ConfigError, match="port=99999: expected 1 to 65535"):
        ServerOptions(port=99_999)


def test_the_instructions_do_not_create_a_stream_that_exists() -> None:
    """They put a record into it instead. Without a stream they create the first one."""
    assert next_steps(["orders"])[0] == "leasehold put orders hello"
    assert "create-stream" in next_steps([])[0]


def test_the_module_is_the_command() -> None:
    """`python -m leasehold` works like `leasehold`."""
    done = subprocess.run(
        [sys.executable, "-m", "leasehold", "--version"],
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    assert done.stdout == run_cli("--version")[1]


@pytest.mark.parametrize(
    ("missing", "extra"),
    [("click", "cli"), ("rich", "cli"), ("uvicorn", "local"), ("cbor2", "local"), ("httptools", "local")],
)
def test_a_missing_library_is_named_with_its_extra(missing: str, extra: str) -> None:
    """Without the extra the command prints one sentence and no traceback."""
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


def test_importing_the_package_loads_no_extra() -> None:
    """Neither the package nor the pytest plugin imports the libraries of an extra."""
    program = (
        "import sys, leasehold, leasehold.local, leasehold.local.pytest_plugin, leasehold.cli;"
        "print([name for name in ('click', 'rich', 'uvicorn', 'cbor2', 'boto3', 'orjson') if name in sys.modules])"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True
    )
    assert done.stdout.strip() == "[]"
