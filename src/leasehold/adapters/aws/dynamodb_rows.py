"""Rows in DynamoDB. Each write of `core.leases.row_writes` becomes one conditional request.

The conditions come with the write. This module knows DynamoDB's errors and table states, and that an index may be
built while the table is in use.
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
from leasehold.adapters.aws.direct_calls import SCAN, UPDATE_ITEM, DirectCalls, open_direct_calls
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
from leasehold.tasks import all_of

OWNER_INDEX: Final = "LeaseOwnerToLeaseKeyIndex"
POLL_INTERVAL_S: Final = 0.5
TABLE_WAIT_S: Final = 600  # the same time as the Java KCL

_CONDITION_FAILED: Final = "ConditionalCheckFailedException"
_CANCELLED: Final = "TransactionCanceledException"


@dataclass(frozen=True, slots=True, kw_only=True)
class TableSettings:
    """How a table is created. An existing table is not changed, except for the index and point-in-time recovery."""

    with_index: bool = True  # False beside KCL 2.x members, which have no index
    read_capacity: int | None = None  # both None: on demand
    write_capacity: int | None = None
    deletion_protection: bool = False
    point_in_time_recovery: bool = False
    tags: Mapping[str, str] = field(default_factory=dict)
    scan_segments: int = 1  # read in parallel by every scan

    def __post_init__(self) -> None:
        if (self.read_capacity is None) != (self.write_capacity is None):
            raise ConfigError(
                "provisioned capacity needs both read_capacity and write_capacity; on demand, neither"
            )


class DynamoDbRows(RowStore):
    """A DynamoDB table, through a boto3 client of the caller."""

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
        self._direct = open_direct_calls(client, {"TableName": table})
        self._index_seen_active = False

    # -- the table ---------------------------------------------------------------------------------------------

    async def prepare(self) -> None:
        """Create what is missing. Returns when rows can be written; the index may still be building."""
        description = await self._describe()
        if description is None:
            await self._create_table()
        description = await self._wait_until_usable()
        if self._settings.with_index and _index_status(description) is None:
            await self._create_index(description)
        if self._settings.point_in_time_recovery:
            # At every start, as the KCL does: the table may be older than this setting.
            recovery = {"PointInTimeRecoverySpecification": {"PointInTimeRecoveryEnabled": True}}
            await self._call_table(self._client.update_continuous_backups, recovery)

    async def create_owner_index(self) -> None:
        """Create the index if it is missing. Building it may take minutes; this does not wait."""
        description = await self._wait_until_usable()
        if _index_status(description) is None:
            await self._create_index(description)

    async def _describe(self) -> Mapping[str, Any] | None:
        try:
            response = await self._call_table(self._client.describe_table, {})
        except NotFoundError:
            return None
        table: Mapping[str, Any] = response["Table"]
        return table

    async def _create_table(self) -> None:
        request = _table_request(self._key_attribute, self._settings)
        try:
            await self._call_table(self._client.create_table, request)
        except ServiceError:
            # Another member may have created it first. Servers report that with different errors, so check the table.
            if await self._describe() is None:
                raise

    async def _create_index(self, description: Mapping[str, Any]) -> None:
        """Add the index to a table that was created without it."""
        index = _index(self._key_attribute, _capacity_of(description))
        request = {
            "AttributeDefinitions": _attribute_definitions(self._key_attribute, with_index=True),
            "GlobalSecondaryIndexUpdates": [{"Create": index}],
        }
        try:
            await self._call_table(self._client.update_table, request)
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
                f"table {self._table} was not usable within {TABLE_WAIT_S} s; check its status in DynamoDB"
            ) from error

    # -- rows --------------------------------------------------------------------------------------------------

    async def get(self, key: str) -> Row | None:
        """The current row: a consistent read."""
        response = await self._call_table(
            self._client.get_item, {"Key": self._key(key), "ConsistentRead": True}
        )
        row: Row | None = response.get("Item")
        return row

    async def write(self, write: RowWrite) -> Applied | Refused:
        """Apply one write if its condition holds."""
        call, request = self._request(write)
        try:
            if self._direct is not None and isinstance(write, UpdateRow):
                row = await _update_directly(self._direct, request)
                self._require_key(row, write.key)
                return Applied(row)
            response = await self._calls.run(call, **request)
        except ClientError as error:
            if error_code(error) == _CONDITION_FAILED:
                return Refused(await self._current_row(error, write.key))
            raise translate_error(error, self._describe_row(write.key)) from error
        except BotoCoreError as error:
            raise translate_error(error, self._describe_row(write.key)) from error
        match write:
            case PutRow(row=row):
                return Applied(row)
            case UpdateRow():
                return Applied(response["Attributes"])
            case DeleteRow():
                return Applied(None)

    async def write_transaction(self, writes: Sequence[RowWrite]) -> bool:
        """Apply all writes or none."""
        if len(writes) == 1:
            return isinstance(await self.write(writes[0]), Applied)
        items = [self._transact_item(write) for write in writes]
        subject = self._describe_row(", ".join(write.key for write in writes))
        try:
            await self._calls.run(self._client.transact_write_items, TransactItems=items)
        except ClientError as error:
            if error_code(error) == _CANCELLED:
                return _resolve_cancellation(error, subject)
            raise translate_error(error, subject) from error
        except BotoCoreError as error:
            raise translate_error(error, subject) from error
        return True

    async def scan(self, *, segments: int = 1, is_consistent: bool = False) -> Sequence[Row]:
        """Every row, in parallel segments. A scan that is not consistent has half the price."""
        options: dict[str, Any] = {"ConsistentRead": True} if is_consistent else {}
        segments = max(segments, self._settings.scan_segments)
        found = await all_of(*(self._scan_segment(number, segments, options) for number in range(segments)))
        return tuple(chain.from_iterable(found))

    async def _scan_segment(self, segment: int, segments: int, options: Mapping[str, Any]) -> list[Row]:
        rows: list[Row] = []
        part = {} if segments == 1 else {"Segment": segment, "TotalSegments": segments}
        request: dict[str, Any] = {**options, **part}
        while True:
            page = await self._scan_page(request)
            rows += page["Items"]
            if "LastEvaluatedKey" not in page:
                return rows
            request["ExclusiveStartKey"] = page["LastEvaluatedKey"]

    async def _scan_page(self, request: Mapping[str, Any]) -> Mapping[str, Any]:
        if self._direct is not None:
            # On any error the request is repeated through boto3, which raises the final error.
            with suppress(ClientError, BotoCoreError):
                return await _scan_directly(self._direct, {"TableName": self._table, **request})
        return await self._call_table(self._client.scan, request)

    async def keys_owned_by(self, owner: str) -> Sequence[str] | None:
        """Keys from the index; None if there is no index that can be read."""
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
                page = await self._call_table(self._client.query, request)
            except (NotFoundError, UnavailableError, ThrottledError):
                raise
            except ServiceError:
                # DynamoDB rejects a query on a missing index as invalid. A rollback to KCL 2.x deletes the index.
                self._index_seen_active = False
                return None
            keys += [item[self._key_attribute]["S"] for item in page["Items"]]
            if "LastEvaluatedKey" not in page:
                return keys
            request["ExclusiveStartKey"] = page["LastEvaluatedKey"]

    async def _index_can_be_read(self) -> bool:
        """Whether the index is active. While it is being built, its results are incomplete."""
        if not self._index_seen_active:
            description = await self._describe()
            self._index_seen_active = description is not None and _index_status(description) == "ACTIVE"
        return self._index_seen_active

    async def close(self) -> None:
        """Close our own threads and connections; the client belongs to the caller."""
        self._calls.close()
        if self._direct is not None:
            self._direct.close()

    # -- requests ----------------------------------------------------------------------------------------------

    async def _call_table(self, call: Callable[..., Any], request: Mapping[str, Any]) -> Mapping[str, Any]:
        try:
            response: Mapping[str, Any] = await self._calls.run(call, TableName=self._table, **request)
        except (ClientError, BotoCoreError) as error:
            raise translate_error(error, f"table {self._table}") from error
        return response

    def _request(self, write: RowWrite) -> tuple[Callable[..., Any], Mapping[str, Any]]:
        parts = _expressions(write, self._key_attribute)
        # Saves a read after a failed condition, if the server supports the option.
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

    async def _current_row(self, error: ClientError, key: str) -> Row | None:
        returned: Row | None = error.response.get("Item")
        if returned:
            self._require_key(returned, key)
        return returned or await self.get(key)

    def _key(self, key: str) -> Row:
        return {self._key_attribute: {"S": key}}

    def _require_key(self, row: Row, key: str) -> None:
        """Refuse the response to another request, which a faulty proxy may deliver."""
        if row.get(self._key_attribute) != {"S": key}:
            raise UnavailableError(
                f"{self._describe_row(key)}: the response has another row; check the proxies in front of DynamoDB"
            )

    def _describe_row(self, key: str) -> str:
        return f"row {key} of table {self._table}"


async def _update_directly(direct: DirectCalls, request: Mapping[str, Any]) -> Row:
    """The row after an UpdateItem."""
    body = await direct.send(UPDATE_ITEM, row_to_json(request))
    try:
        return row_from_json_object(orjson.loads(body)["Attributes"])
    except (ValueError, KeyError, TypeError) as error:
        raise HTTPClientError(error=f"the response holds no row ({error})") from error


async def _scan_directly(direct: DirectCalls, request: Mapping[str, Any]) -> Mapping[str, Any]:
    """A page of a Scan, with the fields of boto3's response that are used here."""
    body = await direct.send(SCAN, row_to_json(request))
    try:
        page = orjson.loads(body)
        more = page.get("LastEvaluatedKey")
        next_key = {} if more is None else {"LastEvaluatedKey": row_from_json_object(more)}
        return {"Items": [row_from_json_object(item) for item in page["Items"]], **next_key}
    except (AttributeError, ValueError, KeyError, TypeError) as error:
        raise HTTPClientError(error=f"the response holds no rows ({error})") from error


def _resolve_cancellation(error: ClientError, subject: str) -> bool:
    """False if a condition failed. Raises if the transaction was cancelled for another reason; nothing was written."""
    reasons = {reason.get("Code", "None") for reason in error.response.get("CancellationReasons", [])}
    # The 2020 build of DynamoDB Local has the reasons only in the message.
    if "ConditionalCheckFailed" in reasons or "ConditionalCheckFailed" in str(error):
        return False
    raise ThrottledError(
        f"{subject}: transaction cancelled ({', '.join(sorted(reasons))}); retry it"
    ) from error


def _expressions(write: RowWrite, key_attribute: str) -> dict[str, Any]:
    """The expression parameters of a write. Every attribute name has an alias."""
    names = _Aliases("#n")
    values = _Aliases(":v")
    match write:
        case PutRow():
            condition = f"attribute_not_exists({names.alias(key_attribute)})"
            update = ""
        case UpdateRow(when=when):
            condition = " AND ".join(_condition(part, names, values) for part in when)
            update = _update(write, names, values)
        case DeleteRow(when=when):
            held = " AND ".join(_condition(part, names, values) for part in when)
            # A missing row counts as deleted.
            condition = f"attribute_not_exists({names.alias(key_attribute)}) OR ({held})"
            update = ""
    return {
        "ConditionExpression": condition,
        "UpdateExpression": update,
        "ExpressionAttributeNames": names.targets,
        "ExpressionAttributeValues": values.targets,
    }


def _condition(condition: Condition, names: _Aliases, values: _Aliases) -> str:
    match condition:
        case Equals(name, value):
            return f"{names.alias(name)} = {values.alias(value)}"
        case Absent(name):
            return f"attribute_not_exists({names.alias(name)})"


def _update(write: UpdateRow, names: _Aliases, values: _Aliases) -> str:
    clauses = {
        "SET": [f"{names.alias(name)} = {values.alias(value)}" for name, value in write.set.items()],
        "REMOVE": [names.alias(name) for name in write.remove],
        "ADD": [f"{names.alias(name)} {values.alias(number(amount))}" for name, amount in write.add.items()],
    }
    return " ".join(f"{verb} {', '.join(parts)}" for verb, parts in clauses.items() if parts)


class _Aliases:
    """Aliases for names or values in an expression. Equal names or values share one alias."""

    def __init__(self, prefix: str) -> None:
        self._prefix = prefix
        self.targets: dict[str, Any] = {}

    def alias(self, target: str | Attribute) -> str:
        for alias, known in self.targets.items():
            if known == target:
                return alias
        alias = f"{self._prefix}{len(self.targets)}"
        self.targets[alias] = target
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
        # An index in CreateTable is ready as soon as the table is.
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
    """The KCL's index of owners. The KCL checks only its name, but uses its keys."""
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
    """The capacity for an index that is added later: the table's own, or nothing on demand."""
    provisioned = description.get("ProvisionedThroughput", {})
    return _capacity(provisioned.get("ReadCapacityUnits"), provisioned.get("WriteCapacityUnits"))


def _index_status(description: Mapping[str, Any]) -> str | None:
    """CREATING, ACTIVE, ...; None if the table has no index of owners."""
    indexes = description.get("GlobalSecondaryIndexes", [])
    return next((index["IndexStatus"] for index in indexes if index["IndexName"] == OWNER_INDEX), None)
