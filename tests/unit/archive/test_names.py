"""The public names of `leasehold.archive`, and the cost of importing them."""

import ast
import subprocess
import sys
from pathlib import Path

import leasehold.archive


def test_every_public_name_can_be_imported_and_no_other() -> None:
    """`__all__` equals the names that type checkers see."""
    source = ast.parse(Path(leasehold.archive.__file__).read_text(encoding="utf-8"))
    seen = {
        alias.asname
        for statement in source.body
        if isinstance(statement, ast.If)
        for line in statement.body
        if isinstance(line, ast.ImportFrom)
        for alias in line.names
    }
    assert set(leasehold.archive.__all__) == seen
    assert all(getattr(leasehold.archive, name).__name__ == name for name in leasehold.archive.__all__)
    assert not hasattr(leasehold.archive, "Archives")


def test_a_spark_task_does_not_load_the_plain_worker() -> None:
    """Every Python worker of an executor imports the sink."""
    code = "import sys, leasehold.spark.archive_sink; print(*sys.modules)"
    shown = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert not [name for name in shown.stdout.split() if name.startswith("leasehold.worker")]
