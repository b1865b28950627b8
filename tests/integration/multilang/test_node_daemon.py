"""A record processor on the KCL for Node, the package of npm, through `leasehold multilang`."""

import os
import re
import signal
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

from leasehold.core.position import SHARD_END
from leasehold.local import LocalKinesis
from tests.integration.multilang.daemon_world import PROGRAMS, DaemonWorld, is_running
from tests.servers.install import is_installed, node, node_modules

PARENT = "shardId-000000000000"
PROCESSOR = PROGRAMS / "node_processor.js"
# Loaded into each child: prints to standard output, with and without line ends, as a careless library does.
JUNK = "setInterval(() => process.stdout.write('junk of a library\\n{\"half\\n'), 20).unref();\n"


class NodeWorld(DaemonWorld):
    """The processor with the KCL for Node, and a library that prints junk."""

    def __post_init__(self) -> None:
        super().__post_init__()
        (self.folder / "junk.js").write_text(JUNK)

    def variables(self) -> Mapping[str, str]:
        """Return the environment of the daemon and of its children."""
        return {
            **super().variables(),
            "NODE_PATH": str(node_modules("kcl_clients")),
            "NODE_OPTIONS": f"--no-deprecation --require {self.folder / 'junk.js'}",
        }


@pytest.fixture
def world(local_kinesis: LocalKinesis, tmp_path: Path, unique_name: Callable[[str], str]) -> NodeWorld:
    """Create a stream and a folder for the daemon."""
    if not is_installed("kcl_clients"):
        pytest.skip("the KCL for Node is not installed: run `make setup-servers`")
    return NodeWorld(local_kinesis, unique_name("orders"), tmp_path)


def test_a_processor_for_node(world: NodeWorld) -> None:
    """It is split, killed and paused, and prints junk: every record at least once, in order, with its checkpoints."""
    first, second, third = (
        [f"{name}-{number}" for number in range(20)] for name in ("first", "second", "third")
    )
    world.put(*first)
    with world.daemon(executableName=f"{node()} {PROCESSOR}", timeoutInSeconds=10) as daemon:

        def running() -> list[int]:
            return [*filter(is_running, daemon.children())]

        daemon.wait_for(lambda: world.has_handled(*first))
        os.kill(running()[0], signal.SIGKILL)
        world.put(*second)
        daemon.wait_for(lambda: world.has_handled(*second))
        os.kill(running()[-1], signal.SIGSTOP)  # it hangs
        world.split()
        world.put(*third)
        daemon.wait_for(lambda: world.has_handled(*third))
        daemon.wait_for(lambda: world.leases()[PARENT].checkpoint == SHARD_END)
        assert daemon.stop() == 0
        log = daemon.log()
    world.check_order()
    last = {str(each["shard"]): str(each["number"]) for each in world.handled()}
    for shard, lease in world.leases().items():
        if lease.checkpoint != SHARD_END:
            assert lease.checkpoint.sequence_number == last[shard]
    assert "stdout: junk of a library" in log
    # The killed child is noticed by the end of its output, or earlier, when the next action is written to it.
    assert re.search(r"ended during processRecords|has closed its input", log)
    assert "(timeoutInSeconds)" in log
    assert not any(map(is_running, daemon.children()))
