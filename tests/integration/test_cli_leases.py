"""`leasehold leases` as a process, on leases made by a `LeaseTable`."""

import asyncio
import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from leasehold.adapters.aws.dynamodb_rows import DynamoDbRows
from leasehold.adapters.sqlite_rows import SqliteRows
from leasehold.core.leases.row_writes import PutRow
from leasehold.core.model import (
    Lease,
    LeaseKey,
    LeaseSessionId,
    ShardId,
    StreamIdentifier,
    WorkerId,
    lease_key,
)
from leasehold.core.position import TRIM_HORIZON, Position
from leasehold.core.shards.lease_creation import CreateChildren
from leasehold.fleet.table.lease_table import Contended, LeaseTable
from leasehold.ports import RowStore
from tests.integration.cli_process import Done, cli, start_cli
from tests.servers import Server

NUMBER = "49590338271490256608559692538361571095921575989136588898"
ANNA, BERT = WorkerId("anna"), WorkerId("bert")


@dataclass(frozen=True, slots=True)
class Place:
    """Leases somewhere, and the options that lead there."""

    open: Callable[[], RowStore]
    options: tuple[str, ...]

    def fill(self, fill: Callable[[LeaseTable, RowStore], Any]) -> None:
        """Make the table, and do something with it."""

        async def run() -> None:
            rows = self.open()
            table = LeaseTable(rows)
            await table.prepare()
            await fill(table, rows)
            await table.close()

        asyncio.run(run())


@pytest.fixture
def in_file(tmp_path: Path) -> Place:
    """Leases in a SQLite file."""
    path = tmp_path / "leases.sqlite"
    return Place(lambda: SqliteRows(path), ("--sqlite", str(path)))


@pytest.fixture
def in_dynamodb(ministack: Server, unique_name: Callable[[str], str]) -> Place:
    """Leases in a DynamoDB table."""
    name = unique_name("billing")
    return Place(
        lambda: DynamoDbRows(ministack.client("dynamodb"), name),
        ("--application", name, "--endpoint-url", ministack.url),
    )


@pytest.fixture(params=["in_file", "in_dynamodb"])
def place(request: pytest.FixtureRequest) -> Place:
    found: Place = request.getfixturevalue(request.param)
    return found


def lease(shard: str, *parents: str) -> Lease:
    return Lease(
        key=LeaseKey(shard),
        shard_id=ShardId(shard),
        checkpoint=TRIM_HORIZON,
        parents=frozenset(map(ShardId, parents)),
    )


def sure(answer: Lease | Contended) -> Lease:
    assert isinstance(answer, Lease)
    return answer


async def take(table: LeaseTable, new: Lease, by: WorkerId) -> Lease:
    await table.create(new)
    return sure(await table.take(new, by, LeaseSessionId("h")))


async def every_state(table: LeaseTable, _rows: RowStore) -> None:
    """One lease in each state that there is."""
    ended = await take(table, lease("s-0"), ANNA)
    children = (lease("s-1", "s-0", "s-9"), lease("s-2", "s-0"))
    ended = sure(
        await table.finish(ended, CreateChildren(children, frozenset(child.shard_id for child in children)))
    )
    await table.release(ended)
    done = sure(await table.take(lease("s-2", "s-0"), BERT, LeaseSessionId("h")))
    done = sure(await table.checkpoint(done, Position(NUMBER, 3)))
    await table.prepare_checkpoint(done, Position(NUMBER[:-1] + "9"), b"a note of the user")
    moving = await take(table, lease("s-9"), ANNA)
    await table.request_handoff(moving, BERT)


def test_a_table_shows_every_lease_with_its_state(place: Place, tmp_path: Path) -> None:
    """Owner, checkpoint, counter, pin, family and handoff, and a line that sums it up."""
    place.fill(every_state)
    done = cli("leases", *place.options, folder=tmp_path)
    assert (done.code, done.err) == (0, "")
    assert done.lines() == [
        "shard  state                owner  checkpoint        counter  pin             parents  children  handoff",
        "s-0    ended                -      SHARD_END               3  -               -        s-1,s-2   -",
        "s-1    waiting for parents  -      TRIM_HORIZON            0  -               s-0,s-9  -         -",
        "s-2    held                 bert   4959..36588898/3        3  4959..36588899  s-0      -         -",
        "s-9    held                 anna   TRIM_HORIZON            1  -               -        -         to bert",
        "",
        "4 leases: 2 held, 1 waiting for parents, 1 ended; 2 workers",
    ]


def test_json_has_every_digit(place: Place, tmp_path: Path) -> None:
    """Programs get whole positions, as text, and not the note in a pin, which is its writer's."""
    place.fill(every_state)
    done = cli("leases", *place.options, "--json", folder=tmp_path)
    answer = json.loads(done.out)
    assert [each["state"] for each in answer["leases"]] == ["ended", "waiting for parents", "held", "held"]
    assert answer["leases"][1]["waits_for"] == ["s-9"]
    assert answer["leases"][2] == {
        "key": "s-2",
        "shard": "s-2",
        "stream": None,
        "state": "held",
        "owner": "bert",
        "next_owner": None,
        "checkpoint": {"sequence_number": NUMBER, "sub_sequence_number": 3},
        "pin": {"sequence_number": NUMBER[:-1] + "9", "sub_sequence_number": 0, "note_bytes": 18},
        "counter": 3,
        "owner_switches": 0,
        "parents": ["s-0"],
        "children": [],
        "waits_for": [],
        "throughput_kbps": None,
    }
    assert answer["leases"][3]["next_owner"] == "bert"
    assert answer["rejected"] == []
    assert "a note" not in done.out


def test_a_row_that_cannot_be_read_is_named_and_cannot_steer_the_terminal(
    place: Place, tmp_path: Path
) -> None:
    """One bad row hides no other, and its text is shown escaped."""

    async def fill(table: LeaseTable, rows: RowStore) -> None:
        await table.create(lease("s-0"))
        key = "evil\x1b[2J\n"
        await rows.write(PutRow(key, {"leaseKey": {"S": key}, "leaseCounter": {"S": "x"}}))

    place.fill(fill)
    done = cli("leases", *place.options, folder=tmp_path)
    assert done.code == 0
    assert "1 lease: 1 free; 0 workers; 1 row rejected" in done.lines()
    assert done.lines()[-1].startswith("rejected: ")
    assert "control characters" in done.lines()[-1]
    assert "\x1b" not in done.out


def test_watching_tells_who_is_silent(in_file: Place, tmp_path: Path) -> None:
    """An owner whose heartbeat does not come between two looks is silent; one that sends them is not."""

    async def fill(table: LeaseTable, _rows: RowStore) -> None:
        await take(table, lease("s-0"), ANNA)
        await take(table, lease("s-1"), BERT)
        await table.create(lease("s-2"))

    in_file.fill(fill)
    with start_cli("leases", *in_file.options, "--watch", "2", "--json", folder=tmp_path) as process:

        async def beat(table: LeaseTable, _rows: RowStore) -> None:
            held = await table.get(LeaseKey("s-1"))
            while process.poll() is None:
                assert held is not None
                held = sure(await table.renew(held))
                await asyncio.sleep(0.05)

        in_file.fill(beat)
        out, _ = process.communicate()
    states = {each["key"]: each["state"] for each in json.loads(out)["leases"]}
    assert states == {"s-0": "silent", "s-1": "held", "s-2": "free"}


def test_one_stream_of_several_can_be_asked_for(in_file: Place, tmp_path: Path) -> None:
    """In multi-stream mode a table holds the leases of many streams."""

    async def fill(table: LeaseTable, _rows: RowStore) -> None:
        for name in ("orders", "payments"):
            stream = StreamIdentifier(f"123456789012:{name}:1700000000")
            shard = ShardId("shardId-000000000000")
            await table.create(
                Lease(key=lease_key(shard, stream), shard_id=shard, checkpoint=TRIM_HORIZON, stream=stream)
            )

    in_file.fill(fill)
    done = cli("leases", *in_file.options, "--stream", "orders", "--json", folder=tmp_path)
    assert [each["stream"] for each in json.loads(done.out)["leases"]] == ["123456789012:orders:1700000000"]


def test_an_empty_table_is_no_error(in_file: Place, tmp_path: Path) -> None:
    """A fleet that has not begun has no leases."""

    async def nothing(_table: LeaseTable, _rows: RowStore) -> None:
        pass

    in_file.fill(nothing)
    done = cli("leases", *in_file.options, folder=tmp_path)
    assert (done.code, done.lines()) == (0, ["0 leases; 0 workers"])


def told(done: Done, code: int, *words: str) -> None:
    """One sentence on stderr, and no traceback."""
    assert (done.code, done.out) == (code, "")
    assert all(word in done.err for word in words), done.err
    assert "Traceback" not in done.err


def test_a_table_that_is_not_there_is_told_in_a_sentence(ministack: Server, tmp_path: Path) -> None:
    """The name and the trouble, exit code 1."""
    options = ("--application", "no-such-fleet", "--endpoint-url", ministack.url)
    told(cli("leases", *options, folder=tmp_path), 1, "Error: table no-such-fleet", "ResourceNotFound")


def test_a_file_that_is_no_lease_table_is_told_in_a_sentence(tmp_path: Path) -> None:
    """Any other file is left alone."""
    other = tmp_path / "letter.txt"
    other.write_text("Dear Anna,\n" * 1_000)
    told(cli("leases", "--sqlite", str(other), folder=tmp_path), 1, "is not a lease table of ours")
    assert other.read_text().startswith("Dear Anna")


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ((), "--application, --table or --sqlite"),
        (("--sqlite", "nowhere.sqlite"), "does not exist"),
        (("--application", "a", "--watch", "0"), "--watch"),
        (("--aplication", "a"), "--application"),
    ],
    ids=str,
)
def test_a_wrong_option_is_a_usage_error(options: tuple[str, ...], words: str, tmp_path: Path) -> None:
    """Exit code 2, with what to write instead."""
    told(cli("leases", *options, folder=tmp_path), 2, words)


@pytest.mark.parametrize(
    ("url", "words"),
    [("http://kinesis.example", "--plain-http"), ("kinesis.example:4567", "expected http://host:port")],
)
def test_an_endpoint_that_gives_credentials_away_is_refused(url: str, words: str, tmp_path: Path) -> None:
    """Signed requests do not leave this machine in the clear unless someone says so."""
    told(cli("leases", "--application", "a", "--endpoint-url", url, folder=tmp_path), 1, words)
