"""What the tests of queries share."""

import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from leasehold.local import LocalKinesis
from tests.servers import Server
from tests.spark.gates import FOLDER
from tests.spark.pipeline_world import Scene

ROOT = Path(__file__).parents[2]
MakeScene = Callable[..., Scene]


@pytest.fixture(scope="module")
def spark_environment(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """What Spark's processes inherit: where the gates are, and how to import them. Returns the folder of a module."""
    folder = tmp_path_factory.mktemp("spark")
    path = os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH"))))
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(FOLDER, str(folder / "gates"))
        patch.setenv("PYTHONPATH", path)
        patch.setenv("AWS_ACCESS_KEY_ID", "test")
        patch.setenv("AWS_SECRET_ACCESS_KEY", "test")
        yield folder


@pytest.fixture
def scene(
    spark_environment: Path,
    local_kinesis: LocalKinesis,
    dynamodb_local: Server,
    unique_name: Callable[[str], str],
) -> MakeScene:
    """Makes a stream with leases on DynamoDB Local; arguments of `Scene` may be given."""

    def make(shards: int = 4, kinesis: LocalKinesis = local_kinesis) -> Scene:
        return Scene(unique_name("spark"), spark_environment, kinesis, dynamodb_local, shards)

    return make
