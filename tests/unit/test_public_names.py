"""`import leasehold` is cheap, and its names are what they claim to be."""

import ast
import subprocess
import sys
from pathlib import Path

import leasehold

HEAVY = {
    "boto3",
    "botocore",
    "click",
    "google.protobuf",
    "obstore",
    "orjson",
    "prometheus_client",
    "pyspark",
    "rich",
}


def modules_after(statement: str) -> set[str]:
    """What is loaded in a fresh interpreter after a statement."""
    code = f"import sys; {statement}; print(*sys.modules)"
    shown = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return set(shown.stdout.split())


def test_importing_the_package_loads_nothing_heavy() -> None:
    """Neither Spark nor the command line, nor anything else until a name is asked for."""
    loaded = modules_after("import leasehold")
    assert not HEAVY & loaded
    assert not [name for name in loaded if name.startswith("leasehold.")]


def test_declaring_a_consumer_loads_neither_spark_nor_the_command_line_nor_boto3() -> None:
    """A module with a handler is imported by tests and tools; that must not take a second."""
    loaded = modules_after("from leasehold import Consumer; Consumer(stream='a', application='b')")
    assert not {"boto3", "click", "pyspark", "rich", "prometheus_client", "obstore"} & loaded


def test_every_public_name_can_be_had_and_no_other() -> None:
    """`__all__`, what is imported on demand, and what type checkers see are one list."""
    source = ast.parse(Path(leasehold.__file__).read_text(encoding="utf-8"))
    seen = {
        alias.asname
        for statement in source.body
        if isinstance(statement, ast.If)
        for line in statement.body
        if isinstance(line, ast.ImportFrom)
        for alias in line.names
    }
    assert set(leasehold.__all__) == seen
    assert all(getattr(leasehold, name).__name__ == name for name in leasehold.__all__)
    assert set(leasehold.__all__) <= set(dir(leasehold))
    assert not hasattr(leasehold, "Consume")
