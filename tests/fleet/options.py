"""What a worker of a test is told: as little patience as a busy machine allows."""

from typing import Any

from tests.contract.lease_stores import TableLocation

FAILOVER_S = 5
REGION = "us-east-1"


def consumer_options(where: TableLocation, kinesis_url: str, stream: str) -> dict[str, Any]:
    """Settings for these leases and this stream. Peers in a file; under a leader, which is the default, elsewhere."""
    leases: dict[str, Any] = (
        {"leases": f"sqlite:///{where.table}", "mode": "peer"}
        if where.kind == "sqlite"
        else {"leases": "dynamodb", "lease_table": where.table, "dynamodb_endpoint": where.url}
    )
    return leases | {
        "stream": stream,
        "application": "under-faults",
        "region": REGION,
        "kinesis_endpoint": kinesis_url,
        "failover_after": f"{FAILOVER_S}s",
        "refresh_every": "500ms",
        "checkpoint_every": "500ms",
        "clean_up_every": "5s",
        "idle_poll_every": "250ms",
    }
