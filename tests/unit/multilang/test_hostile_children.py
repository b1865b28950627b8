"""No line of a child moves the stored checkpoint past the records that it has got: the real conversation and worker."""

import asyncio
import base64
import json
from collections.abc import Callable, Sequence
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from leasehold.core.multilang.line_splitter import LineSplitter
from leasehold.core.multilang.messages import Action, Junk, decode_line, decode_part
from leasehold.core.position import SHARD_END, TRIM_HORIZON, Position
from leasehold.multilang.conversation import Conversation, ConversationSettings
from leasehold.multilang.processor_client import ExecuteCheckpoint, ProcessorClient, ProcessorClients
from leasehold.multilang.shard_consumer import MultiLangHandler
from leasehold.simulation.virtual_time import run_in_virtual_time
from leasehold.worker.delivery.served_shard import ServedShard
from tests.properties.test_multilang_lines import OUTPUT
from tests.unit.worker.worker_world import SHARD, RunningWorker, WorkerWorld

DATA = "abcdefgh"
CHECKPOINT_ALL = b'{"action": "checkpoint"}\n'
# A child of the first shard: it gets an action and returns what it prints.
Behaviour = Callable[["Child", dict[str, Any]], bytes]


def status(action: dict[str, Any]) -> bytes:
    """Return the line that finishes an action."""
    return json.dumps({"action": "status", "responseFor": action["action"]}).encode() + b"\n"


def polite(_child: "Child", action: dict[str, Any]) -> bytes:
    """Checkpoint whenever that is allowed."""
    return (b"" if action["action"] in {"initialize", "leaseLost"} else CHECKPOINT_ALL) + status(action)


class Child(ProcessorClient):
    """A child in memory, behind a real conversation. It prints as soon as it has read an action."""

    def __init__(self, scene: "Children", behave: Behaviour, execute: ExecuteCheckpoint) -> None:
        self.got: Position = TRIM_HORIZON
        self.has_got_end = False
        self.records: list[str] = []
        self._behave = behave
        self._splitter = LineSplitter(1_000)
        self._printed: asyncio.Queue[bytes] = asyncio.Queue()
        self._scene = scene
        self._conversation = Conversation(
            self._read, execute, ConversationSettings(timeout_s=5), name="the child"
        )
        self._printing: asyncio.Task[None] | None = None

    async def start(self) -> None:
        self._printing = asyncio.get_running_loop().create_task(self._print())

    async def perform(self, action: Action) -> None:
        await self._conversation.perform(action)
        await self._scene.check(self)

    def end(self) -> None:
        assert self._printing is not None
        self._printing.cancel()

    def lose(self) -> None:
        self.end()

    async def _read(self, line: bytes) -> None:
        await self._scene.check(self)
        message = json.loads(line)
        if message["action"] == "checkpoint":
            return
        for record in message.get("records", ()):
            self.got = Position(record["sequenceNumber"], record["subSequenceNumber"])
            self.records.append(base64.b64decode(record["data"]).decode())
        self.has_got_end = self.has_got_end or message["action"] == "shardEnded"
        self._printed.put_nowait(self._behave(self, message))

    async def _print(self) -> None:
        while True:
            output = await self._printed.get()
            if not output:
                await self._conversation.accept_end()
            for line in self._splitter.add(output):
                message = decode_line(line.content) if line.is_whole else decode_part(line.content)
                if not isinstance(message, Junk):
                    await self._conversation.accept(message)


class Children(ProcessorClients):
    """The children of all shards. Those of the first shard behave as told; the last behaviour is repeated."""

    def __init__(self, world: WorkerWorld, *behaviours: Behaviour) -> None:
        self.world = world
        self.of_first_shard: list[Child] = []
        self.violations: list[str] = []
        self._behaviours = behaviours

    def __call__(self, shard: ServedShard, execute: ExecuteCheckpoint) -> ProcessorClient:
        """Make the child of a shard."""
        if shard.held.shard != SHARD:
            return Child(self, polite, execute)
        behave = self._behaviours[min(len(self.of_first_shard), len(self._behaviours) - 1)]
        self.of_first_shard.append(Child(self, behave, execute))
        return self.of_first_shard[-1]

    async def close(self) -> None:
        """There is nothing to wait for."""

    async def check(self, child: Child) -> None:
        """Record it if the stored checkpoint is past what the children of the first shard have got."""
        if child not in self.of_first_shard:
            return
        stored = (await self.world.lease()).checkpoint
        if stored == SHARD_END:
            is_allowed = any(each.has_got_end for each in self.of_first_shard)
        else:
            is_allowed = stored <= max(each.got for each in self.of_first_shard)
        if not is_allowed:
            self.violations.append(str(stored))

    def start(self) -> RunningWorker:
        """Start a worker with these children."""
        return self.world.start(
            MultiLangHandler(clients=self),
            checkpoint="manual",
            max_records=2,
            max_wait=0,
            cooldown_after_failure="1s",
        )


def hostile(script: Sequence[bytes], numbers: Sequence[str]) -> Behaviour:
    """Return a child that prints the next part of a script before and after each status."""
    parts = iter([part.replace(b"NUMBER", numbers[len(part) % len(numbers)].encode()) for part in script])

    def behave(_child: Child, action: dict[str, Any]) -> bytes:
        return next(parts, b"") + b"\n" + status(action) + next(parts, b"") + b"\n"

    return behave


NUMBERS = st.sampled_from(
    [
        '"NUMBER"', "NUMBER", '"NUMBER0"', '"-NUMBER"', '"NUMBER\\n"', "NUMBER.5", "null", '"SHARD_END"', '"LATEST"',
        f'"{"9" * 200}"', "9" * 5_000, "1e99", '"\\ud800"', "true",
    ]
)  # fmt: skip
SUB_NUMBERS = st.sampled_from(["null", "0", "1", "-1", '"5"', "0.9", "9223372036854775808"])
REQUESTS = st.builds(
    lambda number, sub: (
        f'\n{{"action":"checkpoint","sequenceNumber":{number},"subSequenceNumber":{sub}}}\n'.encode()
    ),
    NUMBERS,
    SUB_NUMBERS,
)
PARTS = st.lists(st.one_of(OUTPUT, REQUESTS, REQUESTS, st.just(CHECKPOINT_ALL)), max_size=4).map(b"".join)


@settings(max_examples=30, deadline=None)
@given(script=st.lists(PARTS, max_size=14))
def test_no_output_of_a_child_stores_a_checkpoint_past_its_records(script: list[bytes]) -> None:
    """The worker goes on, and every record is delivered."""

    async def scenario() -> None:
        world = WorkerWorld()
        world.put(*DATA)
        numbers = [world.sequence_numbers[each.encode()] for each in DATA]
        children = Children(world, hostile(script, numbers), polite)
        worker = children.start()
        await world.until(
            lambda: len({each for child in children.of_first_shard for each in child.records}) == len(DATA)
        )
        world.split()
        await world.clock.sleep_ms(5_000)
        await children.check(children.of_first_shard[0])
        assert await worker.stop_and_wait() is None
        assert not children.violations

    run_in_virtual_time(scenario())


def test_a_request_from_before_a_batch_does_not_store_the_batch() -> None:
    """A child that printed the request after a status, and died, has not handled the next batch."""

    def prints_late(child: Child, action: dict[str, Any]) -> bytes:
        if len(child.records) <= 2:
            return status(action) + (CHECKPOINT_ALL if child.records else b"")
        return b""  # it ends its output

    async def scenario() -> None:
        world = WorkerWorld()
        world.put(*"abcd")
        children = Children(world, prints_late, polite)
        worker = children.start()
        await world.until(lambda: len(children.of_first_shard) == 2)
        await world.clock.sleep_ms(5_000)
        await worker.stop_and_wait()
        assert [child.records for child in children.of_first_shard] == [["a", "b", "c", "d"], ["c", "d"]]
        assert await world.checkpoint() == "d"

    run_in_virtual_time(scenario())


def test_a_number_of_thousands_of_digits_is_answered() -> None:
    """Otherwise the child and the daemon would wait for each other."""
    number = "9" * 5_000
    message = decode_line(f'{{"action":"checkpoint","sequenceNumber":{number}}}'.encode())
    assert not isinstance(message, Junk)
