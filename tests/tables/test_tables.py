"""Tables and a database through kills with -9: each record once, as readers without Spark count.

Not part of `make test`: `make tables-test` names this folder, and has another environment.
"""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from leasehold.local import LocalKinesis
from tests.tables.packages import DELTA, IVY, UnreachableError, resolve
from tests.tables.postgresql import MISSING, find_program, running_postgresql
from tests.tables.table_world import STREAM, TableWorld

EXAMPLES = Path(__file__).parents[2] / "examples"
pytestmark = pytest.mark.timeout(3600)  # each test starts six JVMs or more


@pytest.fixture
def kinesis() -> Iterator[LocalKinesis]:
    """A server without streams."""
    with LocalKinesis.in_thread() as server:
        yield server


@pytest.fixture(scope="module")
def delta_package() -> str:
    """Delta's package. Where it cannot be fetched, its tests are skipped."""
    try:
        resolve(DELTA)
    except UnreachableError as error:
        pytest.skip(f"no tests with Delta: {error}")
    return DELTA


def test_a_delta_table_has_each_record_once(
    kinesis: LocalKinesis, delta_package: str, tmp_path: Path
) -> None:
    """`leasehold pipeline` with the sink `delta`, read with delta-rs."""
    from deltalake import DeltaTable

    (tmp_path / "orders.toml").write_text(
        f"""
        checkpoint = "checkpoint"
        [source]
        streamName = "{STREAM}"
        applicationName = "orders-table"
        region = "us-east-1"
        endpointUrl = "{kinesis.endpoint_url}"
        leases = "sqlite:leases.sqlite"
        startingPosition = "trim_horizon"
        columns = "all"
        maxRecordsPerTrigger = 200
        [sink]
        kind = "delta"
        path = "table"
        [trigger]
        processing_time = "1s"
        [spark]
        master = "local[2]"
        jars.packages = "{delta_package}"
        jars.ivy = "{IVY}"
        databricks.delta.snapshotPartitions = 1
        """
    )

    def read() -> list[int]:
        if not (tmp_path / "table" / "_delta_log").exists():
            return []
        rows = DeltaTable(str(tmp_path / "table")).to_pyarrow_table(columns=["data"])
        return [int(data) for data in rows["data"].to_pylist()]

    command = ["-m", "leasehold.cli", "pipeline", "orders.toml", "--no-record-classes"]
    TableWorld(tmp_path, kinesis, command, "checkpoint", read).run_under_kills()


def test_an_iceberg_table_has_each_record_once(kinesis: LocalKinesis, tmp_path: Path) -> None:
    """`examples/spark_iceberg.py`, read with Iceberg's Python library from the files of the table."""
    from pyiceberg.catalog import load_catalog
    from pyiceberg.exceptions import NoSuchTableError

    (tmp_path / "warehouse").mkdir()

    def read() -> list[int]:
        catalog = load_catalog("orders", type="sql", uri=f"sqlite:///{tmp_path}/warehouse/catalog.sqlite")
        try:
            rows = catalog.load_table("shop.orders").scan(selected_fields=("data",)).to_arrow()
        except NoSuchTableError:
            return []
        return [int(data) for data in rows["data"].to_pylist()]

    run_example("spark_iceberg.py", "iceberg-checkpoint", kinesis, tmp_path, read)


def test_a_database_has_each_record_once(kinesis: LocalKinesis, tmp_path: Path) -> None:
    """`examples/spark_postgresql.py`. The number of orders, which has no key, is right as well."""
    import psycopg

    if find_program("postgres") is None:
        pytest.skip(MISSING)
    with running_postgresql() as url:

        def read() -> list[int]:
            with psycopg.connect(url) as database:
                return [int(data) for (data,) in database.execute("select data from orders")]

        with psycopg.connect(url) as database:
            database.execute("create table orders (shard text, data bytea)")
        world = run_example(
            "spark_postgresql.py", "postgresql-checkpoint", kinesis, tmp_path, read, DATABASE_URL=url
        )
        with psycopg.connect(url) as database:
            assert database.execute("select orders from totals").fetchone() == (world.producer.produced,)


def run_example(
    name: str,
    checkpoint: str,
    kinesis: LocalKinesis,
    folder: Path,
    read: Callable[[], list[int]],
    **settings: str,
) -> TableWorld:
    """Run an example of `foreachBatch` under kills."""
    settings |= {"LEASEHOLD_KINESIS_ENDPOINT": kinesis.endpoint_url}
    world = TableWorld(folder, kinesis, [str(EXAMPLES / name)], checkpoint, read, settings)
    world.run_under_kills()
    return world
