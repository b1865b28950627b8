"""The commands of worker processes, and what the `leasehold` command imports for them."""

import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from leasehold.cli.command import leasehold
from leasehold.cli.processes import member_command
from leasehold.cli.run import run


@pytest.mark.parametrize(
    "arguments",
    [
        ["billing:consumer"],
        ["--config", "worker.toml", "--log-level", "debug", "--log-aws"],
        [
            "--kclpy",
            "billing:Processor",
            "--properties",
            "kcl.properties",
            "--kclpy-alias",
            "--restart-failed",
        ],
    ],
    ids=" ".join,
)
def test_a_process_gets_the_options_of_its_supervisor(
    arguments: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All of them, and its number and descriptor instead of the number of processes."""
    monkeypatch.chdir(tmp_path)
    for name in ("worker.toml", "kcl.properties"):
        (tmp_path / name).touch()
    given = run.make_context("run", [*arguments, "--processes", "2"]).params
    options = {name: value for name, value in given.items() if name not in {"processes", "member"}}
    command = member_command(options, 1, 7)
    assert command[:5] == [sys.executable, "-P", "-m", "leasehold", "run"]
    repeated = run.make_context("run", list(command[5:])).params
    assert repeated == {**given, "processes": None, "member": "1:7"}


def test_auto_is_the_number_of_usable_processors() -> None:
    """At least one."""
    assert run.make_context("run", ["billing:consumer", "--processes", "auto"]).params["processes"] >= 1


def test_a_wrong_number_of_processes_is_a_usage_error() -> None:
    """Before anything starts."""
    result = CliRunner().invoke(leasehold, ["run", "billing:consumer", "--processes", "0"])
    assert result.exit_code == 2
    assert "expected a number from 1 to 256, or auto" in result.output


@pytest.mark.parametrize(
    ("module", "absent"),
    [
        ("leasehold.cli.processes", ("boto3", "botocore", "orjson", "rich", "pyarrow", "google")),
        (
            "leasehold.worker.connect",
            ("rich", "click", "pyarrow", "msgspec", "numpy", "pyspark", "google.protobuf.descriptor_pb2"),
        ),
    ],
)
def test_a_process_imports_only_what_it_needs(module: str, absent: tuple[str, ...]) -> None:
    """Each process of a worker pays for its imports in memory."""
    program = f"import leasehold.cli.run, {module}, sys; print([each for each in {absent!r} if each in sys.modules])"
    if module == "leasehold.worker.connect":
        program = program.replace("leasehold.cli.run, ", "")
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
