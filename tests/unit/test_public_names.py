"""`import leasehold` is fast, and `leasehold` exports exactly its public names."""

import ast
import subprocess
import sys
from importlib.metadata import version
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
    """Return the modules that are loaded in a fresh interpreter after a statement."""
    code = f"import sys; {statement}; print(*sys.modules)"
    shown = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return set(shown.stdout.split())


def test_importing_the_package_loads_no_other_module() -> None:
    """Other modules are imported when a public name is first used."""
    loaded = modules_after("import leasehold")
    assert not HEAVY & loaded
    assert not [name for name in loaded if name.startswith("leasehold.")]


def test_declaring_a_consumer_loads_neither_spark_nor_the_command_line_nor_boto3() -> None:
    """Tests and tools import modules with handlers, and that must be fast."""
    loaded = modules_after("from leasehold import Consumer; Consumer(stream='a', application='b')")
    assert not {"boto3", "click", "pyspark", "rich", "prometheus_client", "obstore"} & loaded


def test_the_public_names_are_the_same_everywhere() -> None:
    """`__all__`, the names imported on demand, and the names that type checkers see are the same."""
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


def test_the_version_is_that_of_the_installed_package() -> None:
    assert leasehold.__version__ == version("leasehold")
