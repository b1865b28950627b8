"""`leasehold leases` as a process, on leases that a `LeaseTable` wrote."""

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
from tests.integration.cli_process import CliResult, run_cli, start_cli
from tests.servers import Server

NUMBER = "49590338271490256608559692538361571095921575989136588898"
ANNA, BERT = WorkerId("anna"), WorkerId("bert")


@dataclass(frozen=True, slots=True)
class LeaseLocation:
    """A lease table and the options that select it."""

    open: Callable[[], RowStore]
    options: tuple[str, ...]

    def fill(self, fill: Callable[[LeaseTable, RowStore], Any]) -> None:
        """Create the table and call `fill` with it."""

        async def run() -> None:
            rows = self.open()
            table = LeaseTable(rows)
            await table.prepare()
            await fill(table, rows)
            await table.close()

        asyncio.run(run())


@pytest.fixture
def in_file(tmp_path: Path) -> LeaseLocation:
    """Leases in a SQLite file."""
    path = tmp_path / "leases.sqlite"
    return LeaseLocation(lambda: SqliteRows(path), ("--sqlite", str(path)))


@pytest.fixture
def in_dynamodb(ministack: Server, unique_name: Callable[[str], str]) -> LeaseLocation:
    """Leases in a DynamoDB table."""
    name = unique_name("billing")
    return LeaseLocation(
        lambda: DynamoDbRows(ministack.client("dynamodb"), name),
        ("--application", name, "--endpoint-url", ministack.url),
    )


@pytest.fixture(params=["in_file", "in_dynamodb"])
def location(request: pytest.FixtureRequest) -> LeaseLocation:
    found: LeaseLocation = request.getfixturevalue(request.param)
    return found


def make_lease(shard: str, *parents: str) -> Lease:
    return Lease(
        key=LeaseKey(shard),
        shard_id=ShardId(shard),
        checkpoint=TRIM_HORIZON,
        parents=frozenset(map(ShardId, parents)),
    )


def require_lease(output: Lease | Contended) -> Lease:
    assert isinstance(output, Lease)
    return output


async def take(table: LeaseTable, new: Lease, by: WorkerId) -> Lease:
    await table.create(new)
    return require_lease(await table.take(new, by, LeaseSessionId("h")))


async def every_state(table: LeaseTable, _rows: RowStore) -> None:
    """Create one lease in each state."""
    ended = await take(table, make_lease("s-0"), ANNA)
    children = (make_lease("s-1", "s-0", "s-9"), make_lease("s-2", "s-0"))
    ended = require_lease(
        await table.finish(ended, CreateChildren(children, frozenset(child.shard_id for child in children)))
    )
    await table.release(ended)
    done = require_lease(await table.take(make_lease("s-2", "s-0"), BERT, LeaseSessionId("h")))
    done = require_lease(await table.checkpoint(done, Position(NUMBER, 3)))
    await table.prepare_checkpoint(done, Position(NUMBER[:-1] + "9"), b"metadata of the user")
    moving = await take(table, make_lease("s-9"), ANNA)
    await table.request_handoff(moving, BERT)


def test_a_table_shows_every_lease_with_its_state(location: LeaseLocation, tmp_path: Path) -> None:
    """Owner, checkpoint, counter, pin, parents, children and handoff, and a summary line."""
    location.fill(every_state)
    done = run_cli("leases", *location.options, folder=tmp_path)
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


def test_json_has_complete_sequence_numbers(location: LeaseLocation, tmp_path: Path) -> None:
    """Programs get complete positions as text. The metadata in a pin is not printed."""
    location.fill(every_state)
    done = run_cli("leases", *location.options, "--json", folder=tmp_path)
    output = json.loads(done.out)
    assert [each["state"] for each in output["leases"]] == ["ended", "waiting for parents", "held", "held"]
    assert output["leases"][1]["waits_for"] == ["s-9"]
    assert output["leases"][2] == {
        "key": "s-2",
        "shard": "s-2",
        "stream": None,
        "state": "held",
        "owner": "bert",
        "next_owner": None,
        "checkpoint": {"sequence_number": NUMBER, "sub_sequence_number": 3},
        "pin": {"sequence_number": NUMBER[:-1] + "9", "sub_sequence_number": 0, "state_bytes": 20},
        "counter": 3,
        "owner_switches": 0,
        "parents": ["s-0"],
        "children": [],
        "waits_for": [],
        "throughput_kbps": None,
    }
    assert output["leases"][3]["next_owner"] == "bert"
    assert output["rejected"] == []
    assert "metadata of" not in done.out


def test_a_row_that_is_no_lease_is_named(location: LeaseLocation, tmp_path: Path) -> None:
    """A note of an operator: it blocks nothing. A damaged lease blocks its shard."""

    async def fill(table: LeaseTable, rows: RowStore) -> None:
        await table.create(make_lease("s-0"))
        for key in ("note", "shardId-000000000001"):
            await rows.write(PutRow(key, {"leaseKey": {"S": key}}))

    location.fill(fill)
    done = run_cli("leases", *location.options, folder=tmp_path)
    assert done.code == 0
    rejected, ignored = done.lines()[-2:]
    assert rejected.startswith("rejected: shardId-000000000001: ")
    assert "repair or delete the row; its shard and all descendants" in rejected
    assert ignored.startswith("ignored: note: it is not a lease and blocks nothing")
    output = json.loads(run_cli("leases", "--json", *location.options, folder=tmp_path).out)
    assert [each["key"] for each in output["ignored"]] == ["note"]


def test_an_unreadable_row_is_named_and_escaped(location: LeaseLocation, tmp_path: Path) -> None:
    """One unreadable row hides no other. Its control characters do not reach the terminal."""

    async def fill(table: LeaseTable, rows: RowStore) -> None:
        await table.create(make_lease("s-0"))
        key = "evil\x1b[2J\n"
        await rows.write(PutRow(key, {"leaseKey": {"S": key}, "leaseCounter": {"S": "x"}}))

    location.fill(fill)
    done = run_cli("leases", *location.options, folder=tmp_path)
    assert done.code == 0
    assert "1 lease: 1 free; 0 workers; 1 row rejected" in done.lines()
    assert done.lines()[-1].startswith(r"rejected: evil\x1b[2J\n: leaseKey: contains control characters")
    assert done.lines()[-1].endswith("; its key is not that of a shard, so no shard waits for it")
    assert "\x1b" not in done.out


def test_watch_marks_leases_without_heartbeat_as_silent(in_file: LeaseLocation, tmp_path: Path) -> None:
    """A lease without a heartbeat between the two reads is silent. One with heartbeats is held."""

    async def fill(table: LeaseTable, _rows: RowStore) -> None:
        await take(table, make_lease("s-0"), ANNA)
        await take(table, make_lease("s-1"), BERT)
        await table.create(make_lease("s-2"))

    in_file.fill(fill)
    with start_cli("leases", *in_file.options, "--watch", "2", "--json", folder=tmp_path) as process:

        async def send_heartbeats(table: LeaseTable, _rows: RowStore) -> None:
            held = await table.get(LeaseKey("s-1"))
            while process.poll() is None:
                assert held is not None
                held = require_lease(await table.renew(held))
                await asyncio.sleep(0.05)

        in_file.fill(send_heartbeats)
        out, _ = process.communicate()
    states = {each["key"]: each["state"] for each in json.loads(out)["leases"]}
    assert states == {"s-0": "silent", "s-1": "held", "s-2": "free"}


def test_the_leases_of_one_stream_can_be_selected(in_file: LeaseLocation, tmp_path: Path) -> None:
    """In multi-stream mode a table has the leases of several streams."""

    async def fill(table: LeaseTable, _rows: RowStore) -> None:
        for name in ("orders", "payments"):
            stream = StreamIdentifier(f"123456789012:{name}:1700000000")
            shard = ShardId("shardId-000000000000")
            await table.create(
                Lease(key=lease_key(shard, stream), shard_id=shard, checkpoint=TRIM_HORIZON, stream=stream)
            )

    in_file.fill(fill)
    done = run_cli("leases", *in_file.options, "--stream", "orders", "--json", folder=tmp_path)
    assert [each["stream"] for each in json.loads(done.out)["leases"]] == ["123456789012:orders:1700000000"]


def test_an_empty_table_is_no_error(in_file: LeaseLocation, tmp_path: Path) -> None:
    """A fleet that has not started has no leases."""

    async def nothing(_table: LeaseTable, _rows: RowStore) -> None:
        pass

    in_file.fill(nothing)
    done = run_cli("leases", *in_file.options, folder=tmp_path)
    assert (done.code, done.lines()) == (0, ["0 leases; 0 workers"])


def assert_refused(done: CliResult, code: int, *texts: str) -> None:
    """Assert that the command printed one sentence on stderr and no traceback."""
    assert (done.code, done.out) == (code, "")
    assert all(text in done.err for text in texts), done.err
    assert "Traceback" not in done.err


def test_a_missing_table_is_reported_in_one_sentence(ministack: Server, tmp_path: Path) -> None:
    """The error names the table and the reason, with exit code 1."""
    options = ("--application", "no-such-fleet", "--endpoint-url", ministack.url)
    assert_refused(
        run_cli("leases", *options, folder=tmp_path), 1, "Error: table no-such-fleet", "ResourceNotFound"
    )


def test_a_file_that_is_no_lease_table_is_refused(tmp_path: Path) -> None:
    """The file stays unchanged."""
    other = tmp_path / "letter.txt"
    other.write_text("Dear Anna,\n" * 1_000)
    assert_refused(run_cli("leases", "--sqlite", str(other), folder=tmp_path), 1, "is not a database")
    assert other.read_text().startswith("Dear Anna")


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ((), "--application, --table or --leases"),
        (("--sqlite", "nowhere.sqlite"), "does not exist"),
        (("--application", "a", "--watch", "0"), "--watch"),
        (("--aplication", "a"), "--application"),
    ],
    ids=str,
)
def test_a_wrong_option_is_a_usage_error(options: tuple[str, ...], text: str, tmp_path: Path) -> None:
    """Exit code 2, and the right option."""
    assert_refused(run_cli("leases", *options, folder=tmp_path), 2, text)


@pytest.mark.parametrize(
    ("url", "text"),
    [("http://kinesis.example", "--plain-http"), ("kinesis.example:4567", "expected http://host:port")],
)
def test_an_unencrypted_endpoint_on_another_machine_is_refused(url: str, text: str, tmp_path: Path) -> None:
    """Signed requests leave this machine unencrypted only with --plain-http."""
    assert_refused(run_cli("leases", "--application", "a", "--endpoint-url", url, folder=tmp_path), 2, text)
