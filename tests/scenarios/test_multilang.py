"""Golden dialogues of the MultiLang protocol. One file is one dialogue with a child, line by line:

# a comment; the first one says what the dialogue shows
shard ID at POSITION          the shard and the checkpoint of its lease; the first line
do ACTION [records]           the daemon begins an action; a record is NUMBER[/SUB]=KEY:DATA
legacy shutdown               the daemon speaks as the daemon 1.x did
store fails ERROR             the next write of a checkpoint fails with this error of `leasehold.errors`
> LINE                        exactly these bytes are sent to the child
< LINE                        the child prints these bytes
<                             the child prints an empty line
child ends                    the child closes its output
done                          the action is finished
fails TEXT                    the child cannot be used any more; the error contains the text
stored POSITION               the checkpoint of the lease
"""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from leasehold import errors
from leasehold.core.multilang.checkpoint_rules import (
    AlreadyStored,
    Refuse,
    StoreAt,
    StoreShardEnd,
    decide_checkpoint,
    error_name,
)
from leasehold.core.multilang.line_splitter import LineSplitter
from leasehold.core.multilang.messages import (
    Action,
    ActionName,
    CheckpointRequest,
    Initialize,
    Junk,
    LeaseLost,
    ProcessRecords,
    ShardEnded,
    ShutdownRequested,
    decode_line,
)
from leasehold.core.position import SHARD_END, Position
from leasehold.core.record import UserRecord
from leasehold.errors import LeaseholdError, ProcessorEndedError
from leasehold.multilang.conversation import Conversation, ConversationSettings

FILES = sorted((Path(__file__).parent / "multilang").glob("*.txt"))
ARRIVAL_MS = 1476889707000
DEADLINE_S = 60


@dataclass
class Stage:
    """A daemon with one shard, and the lines that it has sent."""

    shard: str = ""
    stored: Position = SHARD_END
    delivered: Position = SHARD_END
    failure: LeaseholdError | None = None
    sent: "asyncio.Queue[bytes]" = field(default_factory=asyncio.Queue)
    splitter: LineSplitter = field(default_factory=lambda: LineSplitter(1_000))
    action: "asyncio.Task[None] | None" = None
    conversation: Conversation = field(init=False)

    def __post_init__(self) -> None:
        self.speak(ConversationSettings())

    def speak(self, settings: ConversationSettings) -> None:
        """Begin a conversation."""
        self.conversation = Conversation(self.sent.put, self.execute, settings, name="the child")

    async def execute(self, request: CheckpointRequest, during: ActionName) -> str | None:
        """Execute a checkpoint as a shard does."""
        decision = decide_checkpoint(request, during, stored=self.stored, delivered=self.delivered)
        failure, self.failure = self.failure, None
        if failure is not None:
            return error_name(failure)
        match decision:
            case StoreAt(position):
                self.stored = position
            case StoreShardEnd():
                self.stored = SHARD_END
            case AlreadyStored():
                pass
            case Refuse(error):
                return error
        return None

    async def receive(self, output: bytes) -> None:
        """Pass on what the child prints."""
        for line in self.splitter.add(output):
            message = decode_line(line.content) if line.is_whole else Junk("")
            if not isinstance(message, Junk):
                await self.conversation.accept(message)

    def begin(self, action: Action) -> None:
        """Begin an action. The last one must be finished."""
        assert self.action is None, "the last action is not finished"
        self.action = asyncio.ensure_future(self.conversation.perform(action))

    async def finish(self) -> None:
        """Wait for the end of the action. Nothing else may have been sent."""
        assert self.action is not None
        await asyncio.wait({self.action}, timeout=DEADLINE_S)
        assert self.action.done()
        assert self.sent.empty(), self.sent.get_nowait()
        action, self.action = self.action, None
        await action


def position(text: str) -> Position:
    number, _, sub = text.partition("/")
    return Position(number, int(sub or 0))


def parse_record(text: str) -> UserRecord:
    at, _, content = text.partition("=")
    key, _, data = content.partition(":")
    where = position(at)
    return UserRecord(
        data.encode(), key, where.sequence_number, ARRIVAL_MS, sub_sequence_number=where.sub_sequence_number
    )


def parse_action(stage: Stage, text: str) -> Action:
    name, _, rest = text.partition(" ")
    match ActionName(name):
        case ActionName.INITIALIZE:
            return Initialize(stage.shard, stage.stored)
        case ActionName.PROCESS_RECORDS:
            records = [parse_record(each) for each in rest.split()]
            if records:
                stage.delivered = records[-1].position
            return ProcessRecords(records, 0)
        case ActionName.LEASE_LOST:
            return LeaseLost()
        case ActionName.SHARD_ENDED:
            return ShardEnded()
        case ActionName.SHUTDOWN_REQUESTED:
            return ShutdownRequested()


async def begin_shard(stage: Stage, rest: str) -> None:
    stage.shard, _, checkpoint = rest.partition(" at ")
    stage.stored = stage.delivered = position(checkpoint)


async def begin_action(stage: Stage, rest: str) -> None:
    stage.begin(parse_action(stage, rest))


async def speak_as_before(stage: Stage, rest: str) -> None:
    assert rest == "shutdown"
    stage.speak(ConversationSettings(legacy_shutdown=True))


async def let_store_fail(stage: Stage, rest: str) -> None:
    stage.failure = getattr(errors, rest.removeprefix("fails "))("as the dialogue says")


async def expect_sent(stage: Stage, rest: str) -> None:
    async with asyncio.timeout(DEADLINE_S):
        assert (await stage.sent.get()).decode("ascii") == f"{rest}\n"


async def print_line(stage: Stage, rest: str) -> None:
    await stage.receive(rest.encode() + b"\n")


async def end_child(stage: Stage, rest: str) -> None:
    assert rest == "ends"
    await stage.conversation.accept_end()


async def expect_done(stage: Stage, rest: str) -> None:
    assert not rest
    await stage.finish()


async def expect_failure(stage: Stage, rest: str) -> None:
    with pytest.raises(ProcessorEndedError) as raised:
        await stage.finish()
    assert rest in str(raised.value)


async def expect_stored(stage: Stage, rest: str) -> None:
    assert stage.stored == position(rest)


STEPS: dict[str, Callable[[Stage, str], Awaitable[None]]] = {
    "shard": begin_shard,
    "do": begin_action,
    "legacy": speak_as_before,
    "store": let_store_fail,
    ">": expect_sent,
    "<": print_line,
    "child": end_child,
    "done": expect_done,
    "fails": expect_failure,
    "stored": expect_stored,
}


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_the_daemon_holds_its_side_of_the_dialogue(path: Path) -> None:
    """Every line is sent as written, and the checkpoint ends where the dialogue says."""
    lines = [line for line in path.read_text(encoding="utf-8").splitlines() if not line.startswith("#")]

    async def hold() -> None:
        stage = Stage()
        for line in lines:
            step, _, rest = line.partition(" ")
            await STEPS[step](stage, rest)
        assert stage.action is None, "the dialogue ends before its last action"
        assert stage.sent.empty()

    asyncio.run(hold())


def test_there_is_a_dialogue_for_each_kind_of_message_and_error() -> None:
    """Each action, each error name, and each way in which a child fails."""
    text = "\n".join(path.read_text(encoding="utf-8") for path in FILES)
    actions = [f'"action":"{name.value}"' for name in ActionName]
    names = ["ShutdownException", "ThrottlingException", "InvalidStateException", "IllegalArgumentException"]
    for expected in (*actions, *names, "KinesisClientLibDependencyException", "child ends", "shutdown"):
        assert expected in text
