"""The modules with which Spark finds the source and the archive without registration."""

import importlib
import subprocess
import sys

import pytest


@pytest.mark.parametrize(
    ("module", "format_name"),
    [("pyspark_leasehold", "leasehold"), ("pyspark_leasehold_archive", "leasehold-archive")],
)
def test_a_format_is_found_by_the_name_of_its_module(module: str, format_name: str) -> None:
    """Each module provides one source under the name that Spark expects."""
    assert importlib.import_module(module).DefaultSource.name() == format_name


@pytest.mark.parametrize("module", ["pyspark_leasehold", "pyspark_leasehold_archive"])
def test_a_missing_library_hides_only_this_source(module: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without pyarrow the module has no source. An exception would hide the sources of other packages too."""
    for name in ("leasehold.spark.source", "leasehold.spark.archive_sink"):
        monkeypatch.setitem(sys.modules, name, None)
    assert not hasattr(importlib.import_module(module), "DefaultSource")


def test_a_process_that_only_plans_does_not_import_the_reader() -> None:
    """Spark checks the options in one process and plans in another. boto3 takes most of a second to import."""
    program = (
        "import sys; from pyspark_leasehold import DefaultSource\n"
        "source = DefaultSource({'streamName': 's', 'applicationName': 'a'})\n"
        "source.schema(), source.streamReader(None), source.reader(None)\n"
        "print([name for name in ('boto3', 'botocore', 'asyncio', 'leasehold.fleet') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"
