"""Settings of a worker under test, with intervals as short as a busy machine allows."""

from typing import Any

from tests.contract.lease_stores import TableLocation

FAILOVER_S = 5
REGION = "us-east-1"


def consumer_options(location: TableLocation, kinesis_url: str, stream: str) -> dict[str, Any]:
    """Return settings for a lease table and a stream: mode "peer" in a SQLite file, the default mode elsewhere."""
    leases: dict[str, Any] = (
        {"leases": f"sqlite:///{location.table}", "mode": "peer"}
        if location.kind == "sqlite"
        else {"leases": "dynamodb", "lease_table": location.table, "dynamodb_endpoint": location.url}
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
