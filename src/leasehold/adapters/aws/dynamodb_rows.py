"""Rows in DynamoDB: each write of `core.row_writes` becomes one conditional request.

Decides nothing: conditions come with the write. Knows how AWS says "condition failed", "no index yet", "table is being
created", and that an index may be built while the table is in use.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import chain
from typing import Any, Final

import orjson
from botocore.exceptions import BotoCoreError, ClientError, HTTPClientError

from leasehold.adapters.aws.blocking import BlockingCalls
from leasehold.adapters.aws.direct_calls import SCAN, UPDATE_ITEM, DirectCalls, direct_calls
from leasehold.adapters.aws.error_translation import error_code, translate_error
from leasehold.adapters.row_json import row_from_json_object, row_to_json
from leasehold.core.leases.row_writes import (
    Absent,
    Attribute,
    Condition,
    DeleteRow,
    Equals,
    PutRow,
    Row,
    RowWrite,
    UpdateRow,
    number,
)
from leasehold.errors import ConfigError, NotFoundError, ServiceError, ThrottledError, UnavailableError
from leasehold.ports import Applied, Refused, RowStore

OWNER_INDEX: Final = "LeaseOwnerToLeaseKeyIndex"
POLL_INTERVAL_S: Final = 0.5
TABLE_WAIT_S: Final = 600  # as long as the Java KCL waits

_CONDITION_FAILED: Final = "ConditionalCheckFailedException"
_CANCELLED: Final = "TransactionCanceledException"


@dataclass(frozen=True, slots=True, kw_only=True)
class TableSettings:
    """How a table is created. An existing table is used as it is, but for the index and the recovery."""

    with_index: bool = True  # False next to KCL 2.x members, who did not ask for one
    read_capacity: int | None = None  # both None: on demand
    write_capacity: int | None = None
    deletion_protection: bool = False
    point_in_time_recovery: bool = False
    tags: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if (self.read_capacity is None) != (self.write_capacity is None):
            raise ConfigError(
                "provisioned capacity needs both read_capacity and write_capacity; on demand, neither"
            )


class DynamoDbRows(RowStore):
    """A DynamoDB table, through a boto3 client that the caller made."""

    def __init__(
        self,
        client: Any,
        table: str,
        *,
        key_attribute: str = "leaseKey",
        settings: TableSettings | None = None,
    ) -> None:
        self._client = client
        self._table = table
        self._key_attribute = key_attribute
        self._settings = settings or TableSettings()
        self._calls = BlockingCalls("dynamodb")
        self._lean = direct_calls(client)
        self._index_seen_active = False

    # -- the table ---------------------------------------------------------------------------------------------

    async def prepare(self) -> None:
        """Create what is missing; returns when rows can be written. The index may still be filling."""
        description = await self._describe()
        if description is None:
            await self._create_table()
        description = await self._wait_until_usable()
        if self._settings.with_index and _index_status(description) is None:
            await self._create_index(description)
        if self._settings.point_in_time_recovery:
            # At every start, as the KCL does: the table may be older than the wish.
            recovery = {"PointInTimeRecoverySpecification": {"PointInTimeRecoveryEnabled": True}}
            await self._ask(self._client.update_continuous_backups, recovery)

    async def create_owner_index(self) -> None:
        """Have the index made if there is none. It may take minutes to fill; nobody waits for it."""
        description = await self._wait_until_usable()
        if _index_status(description) is None:
            await self._create_index(description)

    async def _describe(self) -> Mapping[str, Any] | None:
        try:
            answer = await self._ask(self._client.describe_table, {})
        except NotFoundError:
            return None
        table: Mapping[str, Any] = answer["Table"]
        return table

    async def _create_table(self) -> None:
        request = _table_request(self._key_attribute, self._settings)
        try:
            await self._ask(self._client.create_table, request)
        except ServiceError:
            # Another member may have been faster; each server words that differently, so look instead.
            if await self._describe() is None:
                raise

    async def _create_index(self, description: Mapping[str, Any]) -> None:
        """Add the index to a table that was made without it."""
        index = _index(self._key_attribute, _capacity_of(description))
        request = {
            "AttributeDefinitions": _attribute_definitions(self._key_attribute, with_index=True),
            "GlobalSecondaryIndexUpdates": [{"Create": index}],
        }
        try:
            await self._ask(self._client.update_table, request)
        except ServiceError:
            now = await self._describe()
            if now is None or _index_status(now) is None:
                raise

    async def _wait_until_usable(self) -> Mapping[str, Any]:
        try:
            async with asyncio.timeout(TABLE_WAIT_S):
                while True:
                    description = await self._describe()
                    if description is not None and description["TableStatus"] in {"ACTIVE", "UPDATING"}:
                        return description
                    await asyncio.sleep(POLL_INTERVAL_S)
        except TimeoutError as error:
            raise UnavailableError(
                f"table {self._table} was not usable within {TABLE_WAIT_S} s; look at its status in DynamoDB"
            ) from error

    # -- rows --------------------------------------------------------------------------------------------------

    async def get(self, key: str) -> Row | None:
        """The row as it is now: a consistent read."""
        answer = await self._ask(self._client.get_item, {"Key": self._key(key), "ConsistentRead": True})
        row: Row | None = answer.get("Item")
        return row

    async def write(self, write: RowWrite) -> Applied | Refused:
        """Apply one write if its condition holds."""
        call, request = self._request(write)
        try:
            if self._lean is not None and isinstance(write, UpdateRow):
                return Applied(await _update_leanly(self._lean, request))
            answer = await self._calls.run(call, **request)
        except ClientError as error:
            if error_code(error) == _CONDITION_FAILED:
                return Refused(await self._row_at_refusal(error, write.key))
            raise translate_error(error, self._naming(write.key)) from error
        except BotoCoreError as error:
            raise translate_error(error, self._naming(write.key)) from error
        match write:
            case PutRow(row=row):
                return Applied(row)
            case UpdateRow():
                return Applied(answer["Attributes"])
            case DeleteRow():
                return Applied(None)

    async def write_transaction(self, writes: Sequence[RowWrite]) -> bool:
        """Apply all writes or none."""
        if len(writes) == 1:
            return isinstance(await self.write(writes[0]), Applied)
        items = [self._transact_item(write) for write in writes]
        naming = self._naming(", ".join(write.key for write in writes))
        try:
            await self._calls.run(self._client.transact_write_items, TransactItems=items)
        except ClientError as error:
            if error_code(error) == _CANCELLED:
                return _cancelled(error, naming)
            raise translate_error(error, naming) from error
        except BotoCoreError as error:
            raise translate_error(error, naming) from error
        return True

    async def scan(self, *, segments: int = 1) -> Sequence[Row]:
        """Every row, in parallel lanes. Eventually consistent, at half the price."""
        lanes = await asyncio.gather(*(self._scan_lane(lane, segments) for lane in range(segments)))
        return tuple(chain.from_iterable(lanes))

    async def _scan_lane(self, lane: int, lanes: int) -> list[Row]:
        rows: list[Row] = []
        request: dict[str, Any] = {} if lanes == 1 else {"Segment": lane, "TotalSegments": lanes}
        while True:
            page = await self._scan_page(request)
            rows += page["Items"]
            if "LastEvaluatedKey" not in page:
                return rows
            request["ExclusiveStartKey"] = page["LastEvaluatedKey"]

    async def _scan_page(self, request: Mapping[str, Any]) -> Mapping[str, Any]:
        if self._lean is not None:
            # Whatever goes wrong, boto3 asks once more, and says what it is.
            with suppress(ClientError, BotoCoreError):
                return await _scan_leanly(self._lean, {"TableName": self._table, **request})
        return await self._ask(self._client.scan, request)

    async def keys_owned_by(self, owner: str) -> Sequence[str] | None:
        """Keys through the index; None while there is no index that can be read."""
        if not await self._index_can_be_read():
            return None
        keys: list[str] = []
        request: dict[str, Any] = {
            "IndexName": OWNER_INDEX,
            "KeyConditionExpression": "leaseOwner = :owner",
            "ExpressionAttributeValues": {":owner": {"S": owner}},
        }
        while True:
            try:
                page = await self._ask(self._client.query, request)
            except (NotFoundError, UnavailableError, ThrottledError):
                raise
            except ServiceError:
                # AWS calls a query on a missing index invalid. A rollback to KCL 2.x deletes the index under us.
                self._index_seen_active = False
                return None
            keys += [item[self._key_attribute]["S"] for item in page["Items"]]
            if "LastEvaluatedKey" not in page:
                return keys
            request["ExclusiveStartKey"] = page["LastEvaluatedKey"]

    async def _index_can_be_read(self) -> bool:
        """An index that is being filled answers wrongly or not at all, so it is asked only once it is active."""
        if not self._index_seen_active:
            description = await self._describe()
            self._index_seen_active = description is not None and _index_status(description) == "ACTIVE"
        return self._index_seen_active

    async def close(self) -> None:
        """End threads and connections of our own; the client belongs to the caller."""
        self._calls.close()
        if self._lean is not None:
            self._lean.close()

    # -- requests ----------------------------------------------------------------------------------------------

    async def _ask(self, call: Callable[..., Any], request: Mapping[str, Any]) -> Mapping[str, Any]:
        try:
            answer: Mapping[str, Any] = await self._calls.run(call, TableName=self._table, **request)
        except (ClientError, BotoCoreError) as error:
            raise translate_error(error, f"table {self._table}") from error
        return answer

    def _request(self, write: RowWrite) -> tuple[Callable[..., Any], Mapping[str, Any]]:
        parts = _expressions(write, self._key_attribute)
        # Saves a read after a refusal, where the server knows the option.
        common = {
            "TableName": self._table,
            "ReturnValuesOnConditionCheckFailure": "ALL_OLD",
            **{name: part for name, part in parts.items() if part},
        }
        match write:
            case PutRow(row=row):
                return self._client.put_item, {"Item": row, **common}
            case UpdateRow(key=key):
                return self._client.update_item, {
                    "Key": self._key(key),
                    "ReturnValues": "ALL_NEW",
                    **common,
                }
            case DeleteRow(key=key):
                return self._client.delete_item, {"Key": self._key(key), **common}

    def _transact_item(self, write: RowWrite) -> Mapping[str, Any]:
        parts = {name: part for name, part in _expressions(write, self._key_attribute).items() if part}
        match write:
            case PutRow(row=row):
                return {"Put": {"TableName": self._table, "Item": row, **parts}}
            case UpdateRow(key=key):
                return {"Update": {"TableName": self._table, "Key": self._key(key), **parts}}
            case DeleteRow(key=key):
                return {"Delete": {"TableName": self._table, "Key": self._key(key), **parts}}

    async def _row_at_refusal(self, error: ClientError, key: str) -> Row | None:
        returned: Row | None = error.response.get("Item")
        return returned or await self.get(key)

    def _key(self, key: str) -> Row:
        return {self._key_attribute: {"S": key}}

    def _naming(self, key: str) -> str:
        return f"row {key} of table {self._table}"


async def _update_leanly(direct: DirectCalls, request: Mapping[str, Any]) -> Row:
    """The row after an UpdateItem."""
    body = await direct.send(UPDATE_ITEM, row_to_json(request))
    try:
        return row_from_json_object(orjson.loads(body)["Attributes"])
    except (ValueError, KeyError, TypeError) as error:
        raise HTTPClientError(error=f"the answer holds no row ({error})") from error


async def _scan_leanly(direct: DirectCalls, request: Mapping[str, Any]) -> Mapping[str, Any]:
    """A page of a Scan as boto3 would answer it, as far as we look."""
    body = await direct.send(SCAN, row_to_json(request))
    try:
        page = orjson.loads(body)
        more = page.get("LastEvaluatedKey")
        next_key = {} if more is None else {"LastEvaluatedKey": row_from_json_object(more)}
        return {"Items": [row_from_json_object(item) for item in page["Items"]], **next_key}
    except (AttributeError, ValueError, KeyError, TypeError) as error:
        raise HTTPClientError(error=f"the answer holds no rows ({error})") from error


def _cancelled(error: ClientError, naming: str) -> bool:
    """False if a condition failed; anything else that cancels a transaction is trouble, and nothing happened."""
    reasons = {reason.get("Code", "None") for reason in error.response.get("CancellationReasons", [])}
    # The 2020 build of DynamoDB Local gives the reasons in the message only.
    if "ConditionalCheckFailed" in reasons or "ConditionalCheckFailed" in str(error):
        return False
    raise ThrottledError(
        f"{naming}: transaction cancelled ({', '.join(sorted(reasons))}); try again"
    ) from error


def _expressions(write: RowWrite, key_attribute: str) -> dict[str, Any]:
    """The expression parameters of a write, every attribute name behind an alias."""
    names = _Aliases("#n")
    values = _Aliases(":v")
    match write:
        case PutRow():
            condition = f"attribute_not_exists({names.of(key_attribute)})"
            update = ""
        case UpdateRow(when=when):
            condition = " AND ".join(_condition(part, names, values) for part in when)
            update = _update(write, names, values)
        case DeleteRow(when=when):
            held = " AND ".join(_condition(part, names, values) for part in when)
            # A row that is already gone is as good as deleted.
            condition = f"attribute_not_exists({names.of(key_attribute)}) OR ({held})"
            update = ""
    return {
        "ConditionExpression": condition,
        "UpdateExpression": update,
        "ExpressionAttributeNames": names.taken,
        "ExpressionAttributeValues": values.taken,
    }


def _condition(condition: Condition, names: _Aliases, values: _Aliases) -> str:
    match condition:
        case Equals(name, value):
            return f"{names.of(name)} = {values.of(value)}"
        case Absent(name):
            return f"attribute_not_exists({names.of(name)})"


def _update(write: UpdateRow, names: _Aliases, values: _Aliases) -> str:
    clauses = {
        "SET": [f"{names.of(name)} = {values.of(value)}" for name, value in write.set.items()],
        "REMOVE": [names.of(name) for name in write.remove],
        "ADD": [f"{names.of(name)} {values.of(number(amount))}" for name, amount in write.add.items()],
    }
    return " ".join(f"{verb} {', '.join(parts)}" for verb, parts in clauses.items() if parts)


class _Aliases:
    """Short stand-ins for names or values in an expression, each used once."""

    def __init__(self, prefix: str) -> None:
        self._prefix = prefix
        self.taken: dict[str, Any] = {}

    def of(self, meaning: str | Attribute) -> str:
        for alias, taken in self.taken.items():
            if taken == meaning:
                return alias
        alias = f"{self._prefix}{len(self.taken)}"
        self.taken[alias] = meaning
        return alias


def _table_request(key_attribute: str, settings: TableSettings) -> dict[str, Any]:
    capacity = _capacity(settings.read_capacity, settings.write_capacity)
    request: dict[str, Any] = {
        "KeySchema": [{"AttributeName": key_attribute, "KeyType": "HASH"}],
        "AttributeDefinitions": _attribute_definitions(key_attribute, with_index=settings.with_index),
        "BillingMode": "PROVISIONED" if capacity else "PAY_PER_REQUEST",
        **capacity,
    }
    if settings.with_index:
        # Inside CreateTable the index is ready as soon as the table is.
        request["GlobalSecondaryIndexes"] = [_index(key_attribute, capacity)]
    if settings.deletion_protection:
        request["DeletionProtectionEnabled"] = True
    if settings.tags:
        request["Tags"] = [{"Key": name, "Value": value} for name, value in settings.tags.items()]
    return request


def _attribute_definitions(key_attribute: str, *, with_index: bool) -> list[Mapping[str, str]]:
    names: Iterable[str] = (key_attribute, "leaseOwner") if with_index else (key_attribute,)
    return [{"AttributeName": name, "AttributeType": "S"} for name in names]


def _index(key_attribute: str, capacity: Mapping[str, Any]) -> Mapping[str, Any]:
    """The KCL's index of owners, to the letter: only its name is ever checked, but its keys are relied on."""
    return {
        "IndexName": OWNER_INDEX,
        "KeySchema": [
            {"AttributeName": "leaseOwner", "KeyType": "HASH"},
            {"AttributeName": key_attribute, "KeyType": "RANGE"},
        ],
        "Projection": {"ProjectionType": "KEYS_ONLY"},
        **capacity,
    }


def _capacity(read: int | None, write: int | None) -> dict[str, Any]:
    if not read or not write:
        return {}
    return {"ProvisionedThroughput": {"ReadCapacityUnits": read, "WriteCapacityUnits": write}}


def _capacity_of(description: Mapping[str, Any]) -> dict[str, Any]:
    """What an index added later must be given: the table's own capacity, or nothing on demand."""
    provisioned = description.get("ProvisionedThroughput", {})
    return _capacity(provisioned.get("ReadCapacityUnits"), provisioned.get("WriteCapacityUnits"))


def _index_status(description: Mapping[str, Any]) -> str | None:
    """CREATING, ACTIVE, ...; None if the table has no index of owners."""
    indexes = description.get("GlobalSecondaryIndexes", [])
    return next((index["IndexStatus"] for index in indexes if index["IndexName"] == OWNER_INDEX), None)
