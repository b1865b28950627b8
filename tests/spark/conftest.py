"""Fixtures for the tests of queries."""

import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from leasehold.local import LocalKinesis
from tests.servers import Server
from tests.spark.gates import FOLDER
from tests.spark.pipeline_world import PipelineWorld

ROOT = Path(__file__).parents[2]
MakeWorld = Callable[..., PipelineWorld]


@pytest.fixture(scope="module")
def spark_environment(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Set the environment of Spark's processes, so that they find and import the gates. Returns a folder."""
    folder = tmp_path_factory.mktemp("spark")
    path = os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH"))))
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(FOLDER, str(folder / "gates"))
        patch.setenv("PYTHONPATH", path)
        patch.setenv("AWS_ACCESS_KEY_ID", "test")
        patch.setenv("AWS_SECRET_ACCESS_KEY", "test")
        yield folder


@pytest.fixture
def make_world(
    spark_environment: Path,
    local_kinesis: LocalKinesis,
    dynamodb_local: Server,
    unique_name: Callable[[str], str],
) -> MakeWorld:
    """Return a function that creates a stream with leases in DynamoDB Local."""

    def make(shards: int = 4, kinesis: LocalKinesis = local_kinesis) -> PipelineWorld:
        return PipelineWorld(unique_name("spark"), spark_environment, kinesis, dynamodb_local, shards)

    return make
