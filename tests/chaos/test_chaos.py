"""A small run of chaos, as part of the tests. `make chaos` is the large one."""

from pathlib import Path

import pytest

from leasehold.local import LocalKinesis
from tests.chaos.fault_plan import FaultCounts, Kill, NetworkFault, Pause
from tests.chaos.run import ChaosOptions, ChaosRun, Servers
from tests.proxy import run_proxies
from tests.servers import Server

SMALL = ChaosOptions(
    seed=4711,
    minutes=1.2,
    counts=FaultCounts(kills=6, pauses=3, reshards=2, network_faults=5),
    shards=4,
    records_per_s=100,
)


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_nothing_is_lost_or_doubled_in_chaos(
    dynamodb_local: Server, ministack: Server, tmp_path: Path
) -> None:
    """Workers and Spark share an application, are killed, paused and cut off; every record is archived exactly once."""
    with LocalKinesis.in_process() as kinesis, run_proxies() as running:
        report = ChaosRun(SMALL, Servers(kinesis, dynamodb_local, ministack), running, tmp_path, print).run()
    print(report.text())
    assert report.problems == []
    assert (report.lost, report.duplicated, report.archived) == (0, 0, report.produced)
    assert report.by_spark > 0
    assert {Kill, Pause, NetworkFault} <= {type(fault) for fault in report.injected}
    assert report.splits + report.merges > 0
