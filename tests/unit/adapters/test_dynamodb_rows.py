"""Behaviour of DynamoDB that local servers do not show: the requests themselves, pages of the index, cancelled
transactions.
"""

import asyncio
import re
from collections.abc import Callable
from typing import Any

import pytest
from botocore.exceptions import ClientError

from leasehold.adapters.aws.dynamodb_rows import DynamoDbRows, TableSettings
from leasehold.core.leases.row_writes import Absent, DeleteRow, Equals, PutRow, RowWrite, UpdateRow
from leasehold.errors import ThrottledError, UnavailableError

ACTIVE: dict[str, Any] = {
    "Table": {
        "TableStatus": "ACTIVE",
        "GlobalSecondaryIndexes": [{"IndexName": "LeaseOwnerToLeaseKeyIndex", "IndexStatus": "ACTIVE"}],
    }
}


class StubClient:
    """Returns a response from a list for each operation, and keeps the requests."""

    def __init__(self, **responses: list[Any]) -> None:
        self.requests: list[tuple[str, dict[str, Any]]] = []
        self._responses = {name: iter(given) for name, given in responses.items()}

    def __getattr__(self, name: str) -> Callable[..., Any]:
        def call(**request: Any) -> Any:
            self.requests.append((name, dict(request)))
            response = next(self._responses[name])
            if isinstance(response, Exception):
                raise response
            return response

        return call


def client_error(code: str, **more: Any) -> ClientError:
    """An error as boto3 raises it."""
    return ClientError({"Error": {"Code": code, "Message": "no"}, **more}, "Operation")


def test_a_single_row_is_read_consistently() -> None:
    """Decisions about ownership need the current row."""
    client = StubClient(get_item=[{}])
    assert asyncio.run(DynamoDbRows(client, "leases").get("a")) is None
    assert client.requests == [
        ("get_item", {"TableName": "leases", "Key": {"leaseKey": {"S": "a"}}, "ConsistentRead": True})
    ]


ROW = {"leaseKey": {"S": "a"}, "leaseCounter": {"N": "7"}}
TWO_CONDITIONS = (Equals("leaseCounter", {"N": "7"}), Absent("checkpointOwner"))
UPDATE = UpdateRow(
    key="a",
    when=TWO_CONDITIONS,
    set={"leaseOwner": {"S": "me"}, "checkpoint": {"S": "7"}},
    remove=("pendingCheckpoint", "session"),
    add={"leaseCounter": 1},
    proof=(),
)


@pytest.mark.parametrize(
    ("write", "condition", "update"),
    [
        pytest.param(PutRow("a", ROW), "attribute_not_exists(leaseKey)", None, id="put"),
        pytest.param(
            UPDATE,
            "leaseCounter = 7 AND attribute_not_exists(checkpointOwner)",
            "SET leaseOwner = me, checkpoint = 7 REMOVE pendingCheckpoint, session ADD leaseCounter 1",
            id="update",
        ),
        pytest.param(
            DeleteRow(key="a", when=TWO_CONDITIONS),
            "attribute_not_exists(leaseKey) OR (leaseCounter = 7 AND attribute_not_exists(checkpointOwner))",
            None,
            id="delete",
        ),
    ],
)
def test_every_condition_and_change_is_sent_alone_and_in_a_transaction(
    write: RowWrite, condition: str, update: str | None
) -> None:
    """A condition that is not sent would let a stale member write."""
    done: list[Any] = [{"Attributes": ROW}]
    client = StubClient(put_item=done, update_item=done, delete_item=done, transact_write_items=[{}])

    async def write_twice() -> None:
        rows = DynamoDbRows(client, "leases")
        await rows.write(write)
        await rows.write_transaction([PutRow("b", {}), write])

    asyncio.run(write_twice())
    (_, alone), (_, together) = client.requests
    (in_transaction,) = together["TransactItems"][1].values()
    for request in (alone, in_transaction):
        assert request["TableName"] == "leases"
        assert _spelled_out(request, "ConditionExpression") == condition
        assert _spelled_out(request, "UpdateExpression") == update
        assert request.get("Item", request.get("Key")) in (ROW, {"leaseKey": {"S": "a"}})


def _spelled_out(request: dict[str, Any], expression: str) -> str | None:
    """An expression with the names and values that its aliases stand for."""
    spelled: str | None = request.get(expression)
    values = request.get("ExpressionAttributeValues", {})
    named = {
        **request["ExpressionAttributeNames"],
        **{alias: next(iter(values[alias].values())) for alias in values},
    }
    for alias, target in named.items():
        spelled = spelled and re.sub(rf"{alias}\b", target, spelled)
    return spelled


@pytest.mark.parametrize(("is_consistent", "options"), [(False, {}), (True, {"ConsistentRead": True})])
def test_every_page_of_a_scan_is_read_as_consistently_as_requested(
    is_consistent: bool, options: dict[str, bool]
) -> None:
    """A lease that is missing in a scan would be created again."""
    rows = [{"leaseKey": {"S": name}} for name in "abc"]
    pages = [
        {"Items": rows[:1], "LastEvaluatedKey": rows[0]},
        {"Items": [], "LastEvaluatedKey": rows[1]},
        {"Items": rows[1:]},
    ]
    client = StubClient(scan=pages)
    found = asyncio.run(DynamoDbRows(client, "leases").scan(is_consistent=is_consistent))
    assert found == tuple(rows)
    starts: list[dict[str, Any]] = [{}, {"ExclusiveStartKey": rows[0]}, {"ExclusiveStartKey": rows[1]}]
    assert [request for _, request in client.requests] == [
        {"TableName": "leases", **options, **start} for start in starts
    ]


def test_every_page_of_the_index_is_read() -> None:
    """A worker with more leases than fit on one page finds all of them."""
    pages = [
        {"Items": [{"leaseKey": {"S": "a"}}], "LastEvaluatedKey": {"leaseKey": {"S": "a"}}},
        {"Items": [{"leaseKey": {"S": "b"}}]},
    ]
    client = StubClient(describe_table=[ACTIVE], query=pages)
    assert asyncio.run(DynamoDbRows(client, "leases").keys_owned_by("me")) == ["a", "b"]
    assert client.requests[-1][1]["ExclusiveStartKey"] == {"leaseKey": {"S": "a"}}


def test_an_index_is_queried_only_when_it_is_complete() -> None:
    """While DynamoDB builds it, it lacks rows, and a member would not see all of its leases."""
    indexes = ACTIVE["Table"]["GlobalSecondaryIndexes"]
    building = {
        "Table": {
            "TableStatus": "UPDATING",
            "GlobalSecondaryIndexes": [{**indexes[0], "IndexStatus": "CREATING"}],
        }
    }
    client = StubClient(describe_table=[building, ACTIVE], query=[{"Items": [{"leaseKey": {"S": "a"}}]}] * 2)

    async def query_twice() -> list[Any]:
        rows = DynamoDbRows(client, "leases")
        return [await rows.keys_owned_by("me"), await rows.keys_owned_by("me")]

    assert asyncio.run(query_twice()) == [None, ["a"]]


def test_a_deleted_index_is_no_longer_queried() -> None:
    """A rollback to KCL 2.x deletes the index; then the caller has to scan."""
    gone = {"Table": {"TableStatus": "ACTIVE"}}
    client = StubClient(describe_table=[ACTIVE, gone], query=[client_error("ValidationException")])

    async def query_twice() -> list[Any]:
        rows = DynamoDbRows(client, "leases")
        return [await rows.keys_owned_by("me"), await rows.keys_owned_by("me")]

    assert asyncio.run(query_twice()) == [None, None]


@pytest.mark.parametrize("code", ["TransactionConflict", "ThrottlingError", "ProvisionedThroughputExceeded"])
def test_a_transaction_conflict_is_not_a_lost_race(code: str) -> None:
    """Only a failed condition is a lost race. A transaction that was cancelled for another reason is retried."""
    reasons = [{"Code": "None"}, {"Code": code}]
    cancelled = client_error("TransactionCanceledException", CancellationReasons=reasons)
    rows = DynamoDbRows(StubClient(transact_write_items=[cancelled]), "leases")
    with pytest.raises(ThrottledError, match=code):
        asyncio.run(rows.write_transaction([PutRow("a", {}), PutRow("b", {})]))


def test_a_failed_condition_in_a_transaction_is_a_lost_race() -> None:
    """It is a return value, and nothing was written."""
    reasons = [{"Code": "None"}, {"Code": "ConditionalCheckFailed"}]
    cancelled = client_error("TransactionCanceledException", CancellationReasons=reasons)
    rows = DynamoDbRows(StubClient(transact_write_items=[cancelled]), "leases")
    assert asyncio.run(rows.write_transaction([PutRow("a", {}), PutRow("b", {})])) is False


def test_point_in_time_recovery_is_enabled_on_an_existing_table() -> None:
    """The setting may be newer than the table."""
    client = StubClient(describe_table=[ACTIVE, ACTIVE], update_continuous_backups=[{}])
    asyncio.run(DynamoDbRows(client, "leases", settings=TableSettings(point_in_time_recovery=True)).prepare())
    assert client.requests[-1][0] == "update_continuous_backups"


def test_a_table_that_never_becomes_usable_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """The wait has a timeout, and the error names the table."""
    monkeypatch.setattr("leasehold.adapters.aws.dynamodb_rows.TABLE_WAIT_S", 0)
    creating = {"Table": {"TableStatus": "CREATING"}}
    rows = DynamoDbRows(StubClient(describe_table=[creating] * 1000), "leases")
    with pytest.raises(UnavailableError, match="leases"):
        asyncio.run(rows.prepare())
