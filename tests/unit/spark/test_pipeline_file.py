"""Parsing and checking pipeline files."""

import tomllib
from datetime import timedelta
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest

from leasehold.errors import ConfigError
from leasehold.spark.decoding.avro_payloads import AvroPayloads
from leasehold.spark.decoding.decode_settings import Decode, DecodeFormat
from leasehold.spark.decoding.protobuf_payloads import ProtobufPayloads
from leasehold.spark.pipeline.pipeline_file import (
    Pipeline,
    Sink,
    SinkKind,
    Trigger,
    parse_pipeline,
    read_pipeline,
)
from tests.unit.spark.payloads import DESCRIPTORS

MINIMAL = """
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
    return _pipeline(f"{MINIMAL}\n{addition}")


def test_a_minimal_file() -> None:
    """It has a stream, an application, a sink and a checkpoint. The name is that of the file."""
    assert _pipeline(MINIMAL) == Pipeline(
        name="a-file",
        checkpoint="checkpoint",
        source={"streamName": "orders", "applicationName": "billing"},
        sink=Sink(kind=SinkKind.CONSOLE),
        trigger=Trigger(processing_time=timedelta(seconds=10)),
    )


@pytest.mark.parametrize(
    ("given", "source"),
    [
        ('streams = ["orders", "returns"]', {"streams": "orders,returns"}),
        ('stream = "orders,returns"', {"stream": "orders,returns"}),
        (
            'streams = { orders = "latest", returns = "trim_horizon" }',
            {"streams": "orders=latest,returns=trim_horizon"},
        ),
    ],
)
def test_several_streams_are_given_as_in_the_settings_of_a_worker(given: str, source: dict[str, str]) -> None:
    text = MINIMAL.replace('streamName = "orders"', given)
    assert _pipeline(text).source == {**source, "applicationName": "billing"}


def test_payloads_are_decoded_by_a_schema() -> None:
    """With SQL or without. A schema without a format is refused."""
    text = "[transform]\ndecode = 'json'\nschema = 'customer STRING'"
    assert _with(text).decode == Decode(format=DecodeFormat.JSON, schema="customer STRING")
    assert _with(f"{text}\nsql = 'select 1'").sql == "select 1"
    for wrong in ("decode = 'json'", "schema = 'customer STRING'"):
        with pytest.raises(ConfigError, match="belong together"):
            _with(f"[transform]\n{wrong}")
    with pytest.raises(ConfigError, match="expected 'json'"):
        _with(text.replace("'json'", "'xml'"))


AVRO = '{"type": "record", "name": "Order", "fields": [{"name": "customer", "type": "string"}]}'


def test_payloads_are_decoded_by_the_schema_in_a_file(tmp_path: Path) -> None:
    """The file is read with the pipeline file, so that a mistake is found before Spark starts."""
    avsc, descriptors = tmp_path / "order.avsc", tmp_path / "orders.desc"
    avsc.write_text(AVRO)
    descriptors.write_bytes(DESCRIPTORS)
    avro = f"[transform]\ndecode = 'avro'\nschema_file = '{avsc}'\n"
    assert _with(avro).decode == Decode(format=DecodeFormat.AVRO, payloads=AvroPayloads(AVRO))
    confluent = _with(f"{avro}header = 'confluent'\nschema_id = 258").decode
    assert confluent == Decode(format=DecodeFormat.AVRO, payloads=AvroPayloads(AVRO, b"\x00\x00\x00\x01\x02"))
    glue = _with(f"{avro}header = 'glue'\nschema_id = '{UUID(int=7)}'").decode
    assert glue == Decode(
        format=DecodeFormat.AVRO, payloads=AvroPayloads(AVRO, b"\x03\x00" + UUID(int=7).bytes)
    )
    protobuf = f"[transform]\ndecode = 'protobuf'\ndescriptor_file = '{descriptors}'\nmessage = 'shop.Order'"
    assert _with(protobuf).decode == Decode(
        format=DecodeFormat.PROTOBUF, payloads=ProtobufPayloads(DESCRIPTORS, "shop.Order")
    )
    avsc.write_text('{"type": "record"}')
    for wrong, sentence in (
        (avro, "order.avsc': not an Avro schema"),
        (avro.replace("order.avsc", "other.avsc"), "No such file"),
        (f"{avro}message = 'x'", r"\[transform\] message is not a setting of decode = 'avro'"),
        (f"{avro}header = 'confluent'", "header and schema_id belong together"),
        (f"{avro}header = 'glue'\nschema_id = 7", "schema_id=7: expected the id"),
        (f"{avro}header = 'x'", "header='x': expected"),
        ("[transform]\ndecode = 'protobuf'\nmessage = 'x'", "descriptor_file belong together"),
        (protobuf.replace("Order", "Other"), "message='shop.Other' is not in the descriptor set"),
        (protobuf.replace("orders.desc", "order.avsc"), "protoc --include_imports"),
    ):
        with pytest.raises(ConfigError, match=sentence):
            _with(f"{wrong}")


def test_values_are_converted_to_text() -> None:
    """Spark's options are text. TOML has booleans, numbers, times and lists."""
    source = _pipeline(
        MINIMAL.replace(
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


def test_source_options_may_have_any_of_their_names() -> None:
    """Names of other connectors may contain dots."""
    described = _pipeline(MINIMAL.replace('streamName = "orders"', 'kinesis.streamName = "orders"'))
    assert described.source_option("streamName") == "orders"


def test_an_archive_gets_all_columns_by_default() -> None:
    """The file may choose others."""
    archive = MINIMAL.replace('kind = "console"', 'kind = "archive"\npath = "a"\nmaxConcurrentPuts = 4')
    described = _pipeline(archive)
    assert described.source["columns"] == "archive"
    assert described.sink == Sink(kind=SinkKind.ARCHIVE, options={"path": "a", "maxConcurrentPuts": "4"})
    chosen = archive.replace("[sink]", 'columns = "all"\n[sink]')
    assert _pipeline(chosen).source["columns"] == "all"


def test_spark_settings_may_have_the_prefix_and_quotes() -> None:
    """There are four ways to write a key."""
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
    assert _with(f"[trigger]\n{table}").trigger == trigger


def test_a_spark_sink_has_its_own_options() -> None:
    """Path or table, partitioning, and the options of Spark's writer."""
    described = _pipeline(
        MINIMAL.replace(
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
    ("the name of a sink's kind", {"kind =": "kynd ="}, "[sink] kynd is not a setting: did you mean kind?"),
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
def test_an_invalid_file_is_an_error_with_a_remedy(changes: dict[str, str], part: str) -> None:
    """The error suggests the closest name or lists the expected values."""
    text = MINIMAL
    for old, new in changes.items():
        text = text.replace(old, new)
    with pytest.raises(ConfigError) as caught:
        _pipeline(text)
    assert part in str(caught.value)


@pytest.mark.parametrize("content", [b"[source", b"\xff\xfe"])
def test_a_file_that_is_not_toml_is_refused(tmp_path: Path, content: bytes) -> None:
    """The error contains its path."""
    file = tmp_path / "p.toml"
    file.write_bytes(content)
    with pytest.raises(ConfigError, match=r"p\.toml is not TOML"):
        read_pipeline(file)


def test_every_error_names_the_file(tmp_path: Path) -> None:
    file = tmp_path / "p.toml"
    content: Any = MINIMAL.replace("streamName", "sreamName")
    file.write_text(content)
    with pytest.raises(ConfigError, match=r"p\.toml: unknown option sreamName"):
        read_pipeline(file)
