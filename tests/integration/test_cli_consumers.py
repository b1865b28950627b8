"""`leasehold consumers` as a process, on the local Kinesis server."""

import json
from collections.abc import Callable
from pathlib import Path

from leasehold.local import LocalKinesis
from tests.integration.cli_process import CliResult, run_cli


def test_a_consumer_is_registered_listed_and_deregistered(
    local_kinesis: LocalKinesis, unique_name: Callable[[str], str], tmp_path: Path
) -> None:
    """A second registration uses the existing one, and a deletion without confirmation changes nothing."""
    stream = unique_name("consumers")
    local_kinesis.client().create_stream(StreamName=stream, ShardCount=1)

    def consumers(*arguments: str) -> CliResult:
        options = ("--stream", stream, "--kinesis-endpoint-url", local_kinesis.endpoint_url)
        return run_cli("consumers", *arguments, *options, folder=tmp_path)

    registered = consumers("register", "app", "--json")
    assert registered.code == 0, registered.err
    arn = json.loads(registered.out)["arn"]
    assert consumers("register", "app").lines() == [f"app is ACTIVE: {arn}"]
    listed = consumers("list").lines()
    assert listed[0].split() == ["name", "status", "created", "arn"]
    assert (listed[1].split()[:2], listed[1].split()[-1]) == (["app", "ACTIVE"], arn)
    assert listed[-1] == f"1 consumer of {stream}"
    assert consumers("deregister", "app").code == 1
    assert consumers("deregister", "app", "--yes").lines() == [f"deleted app: {arn}"]
    assert json.loads(consumers("list", "--json").out) == {"consumers": []}
    missing = consumers("deregister", "app", "--yes")
    assert missing.code == 1
    assert "ResourceNotFoundException" in missing.err
    assert "`leasehold consumers list` shows the consumers of a stream" in missing.err
