"""A short chaos run. `make chaos` is the long one."""

from pathlib import Path

import pytest

from leasehold.local import LocalKinesis
from tests.chaos.fault_plan import FaultCounts, Kill, NetworkFault, Pause
from tests.chaos.run import ChaosRun
from tests.chaos.system import ChaosOptions, Servers
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
def test_nothing_is_lost_or_duplicated_in_chaos(
    dynamodb_local: Server, ministack: Server, tmp_path: Path
) -> None:
    """Every record is archived exactly once while workers and Spark are killed, paused and cut off."""
    with LocalKinesis.in_process() as kinesis, run_proxies() as proxies:
        servers = Servers(kinesis, dynamodb_local, ministack)
        report = ChaosRun(SMALL, servers, proxies, tmp_path, print).run()
    print(report.text())
    assert report.problems == []
    assert (report.lost, report.duplicated, report.archived) == (0, 0, report.produced)
    assert report.by_spark > 0
    assert {Kill, Pause, NetworkFault} <= {type(fault) for fault in report.injected}
    assert report.splits + report.merges > 0
