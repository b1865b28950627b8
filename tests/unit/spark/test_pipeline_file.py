"""A pipeline file becomes checked values, or one sentence that says what is wrong with it."""

import tomllib
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from leasehold.errors import ConfigError
from leasehold.spark.pipeline.pipeline_file import (
    Pipeline,
    Sink,
    SinkKind,
    Trigger,
    parse_pipeline,
    read_pipeline,
)

LEAST = """
checkpoint = "checkpoint"

[source]
streamName = "orders"
applicationName = "billing"

[sink]
kind = "console"
"""


def _pipeline(text: str) -> Pipeline:
    return parse_pipeline(tomllib.loads(text), name="a-file")


def _with(addition: str) -> Pipeline:
    return _pipeline(f"{LEAST}\n{addition}")


def test_the_least_that_is_needed() -> None:
    """A stream, an application, a sink and a checkpoint; the file names the pipeline."""
    assert _pipeline(LEAST) == Pipeline(
        name="a-file",
        checkpoint="checkpoint",
        source={"streamName": "orders", "applicationName": "billing"},
        sink=Sink(kind=SinkKind.CONSOLE),
        trigger=Trigger(processing_time=timedelta(seconds=10)),
    )


def test_values_become_the_text_that_spark_wants() -> None:
    """Booleans, numbers, times and lists can be written as TOML has them."""
    source = _pipeline(
        LEAST.replace(
            "[sink]",
            """failOnDataLoss = false
            maxRecordsPerTrigger = 1000
            startingTimestamp = 2026-11-15T12:00:00Z
            columns = ["data", "shardId"]
            [sink]""",
        )
    ).source
    assert source["failOnDataLoss"] == "false"
    assert source["maxRecordsPerTrigger"] == "1000"
    assert source["startingTimestamp"] == "2026-11-15T12:00:00+00:00"
    assert source["columns"] == "data,shardId"


def test_options_of_the_source_have_all_their_spellings() -> None:
    """Dots and other connectors' names included."""
    described = _pipeline(LEAST.replace('streamName = "orders"', 'kinesis.streamName = "orders"'))
    assert described.source_option("streamName") == "orders"


def test_an_archive_is_given_all_columns_that_it_needs() -> None:
    """Unless the file chooses them."""
    archive = LEAST.replace('kind = "console"', 'kind = "archive"\npath = "a"\nmaxConcurrentPuts = 4')
    described = _pipeline(archive)
    assert described.source["columns"] == "archive"
    assert described.sink == Sink(kind=SinkKind.ARCHIVE, options={"path": "a", "maxConcurrentPuts": "4"})
    chosen = archive.replace("[sink]", 'columns = "all"\n[sink]')
    assert _pipeline(chosen).source["columns"] == "all"


def test_settings_of_spark_with_or_without_its_name_quoted_or_not() -> None:
    """Four ways to write the same kind of key."""
    described = _with(
        """[spark]
        master = "local[2]"
        sql.shuffle.partitions = 4
        "spark.driver.memory" = "2g"
        spark.ui.enabled = true"""
    )
    assert described.spark == {
        "spark.master": "local[2]",
        "spark.sql.shuffle.partitions": "4",
        "spark.driver.memory": "2g",
        "spark.ui.enabled": "true",
    }


@pytest.mark.parametrize(
    ("table", "trigger"),
    [
        ('processing_time = "500ms"', Trigger(processing_time=timedelta(milliseconds=500))),
        ("available_now = true", Trigger(processing_time=None)),
        ("once = true", Trigger(processing_time=None, once=True)),
    ],
)
def test_the_triggers(table: str, trigger: Trigger) -> None:
    """Each of the three."""
    assert _with(f"[trigger]\n{table}").trigger == trigger


def test_a_sink_of_spark_has_options_of_its_own() -> None:
    """Where, how it is divided, and whatever the writer knows."""
    described = _pipeline(
        LEAST.replace(
            'kind = "console"',
            'kind = "parquet"\npath = "out"\npartition_by = ["shardId"]\noptions = { compression = "zstd" }',
        )
    )
    assert described.sink == Sink(
        kind=SinkKind.PARQUET, path="out", partition_by=("shardId",), options={"compression": "zstd"}
    )


WRONG: list[tuple[str, dict[str, str], str]] = [
    ("a table", {"[sink]": "[snik]"}, "did you mean sink?"),
    ("the checkpoint", {'checkpoint = "checkpoint"': ""}, "checkpoint is missing"),
    ("an option of the source", {"streamName": "streamNane"}, "did you mean streamName?"),
    ("a source without application", {'applicationName = "billing"': ""}, "applicationName is missing"),
    ("a sink's kind", {'"console"': '"consul"'}, "expected 'archive' or 'parquet'"),
    ("a sink's key", {'kind = "console"': 'kind = "console"\npth = "x"'}, "did you mean path?"),
    ("an option of the archive", {'kind = "console"': 'kind = "archive"\npth = "x"'}, "did you mean path?"),
    ("parquet to nowhere", {'"console"': '"parquet"'}, "needs path"),
    ("iceberg without a table", {'"console"': '"iceberg"\npath = "x"'}, "needs table"),
    ("delta with both", {'"console"': '"delta"\npath = "x"\ntable = "t"'}, "either path or table"),
    ("two triggers", {"[sink]": "[trigger]\nonce = true\navailable_now = true\n[sink]"}, "one of them"),
    ("a trigger that is off", {"[sink]": "[trigger]\nonce = false\n[sink]"}, "expected true"),
    ("a transformation", {"[sink]": '[transform]\nslq = "select 1"\n[sink]'}, "did you mean sql?"),
    ("a value", {"[sink]": "maxRecordsPerTrigger = [1]\n[sink]"}, "maxRecordsPerTrigger=[1]"),
    ("no table", {'checkpoint = "checkpoint"': 'spark = "x"'}, "spark must be a table"),
    (
        "a file of leases on a cluster",
        {"[sink]": 'leases = "sqlite:l"\n[spark]\nmaster = "spark://h:7077"\n[sink]'},
        "DynamoDB",
    ),
]


@pytest.mark.parametrize(("changes", "part"), [each[1:] for each in WRONG], ids=[each[0] for each in WRONG])
def test_what_is_wrong_is_said_in_a_sentence(changes: dict[str, str], part: str) -> None:
    """With the nearest name that exists, or what is expected."""
    text = LEAST
    for old, new in changes.items():
        text = text.replace(old, new)
    with pytest.raises(ConfigError) as caught:
        _pipeline(text)
    assert part in str(caught.value)


@pytest.mark.parametrize("content", [b"[source", b"\xff\xfe"])
def test_a_file_that_is_not_toml_is_named(tmp_path: Path, content: bytes) -> None:
    """With its path, as every other problem of it."""
    file = tmp_path / "p.toml"
    file.write_bytes(content)
    with pytest.raises(ConfigError, match=r"p\.toml is not TOML"):
        read_pipeline(file)


def test_a_problem_names_the_file(tmp_path: Path) -> None:
    """So that it is found among several."""
    file = tmp_path / "p.toml"
    content: Any = LEAST.replace("streamName", "sreamName")
    file.write_text(content)
    with pytest.raises(ConfigError, match=r"p\.toml: unknown option sreamName"):
        read_pipeline(file)
