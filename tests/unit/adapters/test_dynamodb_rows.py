"""Behaviour of DynamoDB that local servers do not show: the requests themselves, pages of the index, cancelled
transactions.
"""

import asyncio
from collections.abc import Callable
from typing import Any

import pytest
from botocore.exceptions import ClientError

from leasehold.adapters.aws.dynamodb_rows import DynamoDbRows, TableSettings
from leasehold.core.leases.row_writes import PutRow
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
