"""The tables of a DynamoDB account: lists, describes, scans and deletes them. For `leasehold cleanup`."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from botocore.exceptions import BotoCoreError, ClientError

from leasehold.adapters.aws.blocking import BlockingCalls
from leasehold.adapters.aws.dynamodb_rows import DynamoDbRows
from leasehold.adapters.aws.error_translation import translate_error
from leasehold.core.leases.row_writes import Row
from leasehold.core.steering.unused_applications import TableShape


class DynamoDbTables:
    """All tables of a region, through a boto3 client of the caller."""

    def __init__(self, client: Any) -> None:
        self._client = client
        self._calls = BlockingCalls("dynamodb-tables", threads=4)

    async def list_names(self) -> Sequence[str]:
        """All pages of the names of tables."""
        names: list[str] = []
        start: Mapping[str, Any] = {}
        while True:
            page = await self._call("list of tables", self._client.list_tables, **start)
            names += page["TableNames"]
            if "LastEvaluatedTableName" not in page:
                return names
            start = {"ExclusiveStartTableName": page["LastEvaluatedTableName"]}

    async def describe(self, name: str) -> TableShape:
        """The primary key and the indexes of a table."""
        response = await self._call(f"table {name}", self._client.describe_table, TableName=name)
        table = response["Table"]
        types = {each["AttributeName"]: each["AttributeType"] for each in table["AttributeDefinitions"]}
        keys = tuple(
            (each["AttributeName"], types[each["AttributeName"]], each["KeyType"])
            for each in table["KeySchema"]
        )
        indexes = [
            *table.get("GlobalSecondaryIndexes", ()),
            *table.get("LocalSecondaryIndexes", ()),
        ]
        return TableShape(name, keys, frozenset(each["IndexName"] for each in indexes))

    async def rows(self, name: str) -> Sequence[Row]:
        """Every row of a table, with the newest writes."""
        rows = DynamoDbRows(self._client, name)
        try:
            return await rows.scan(is_consistent=True)
        finally:
            await rows.close()

    async def delete(self, name: str) -> None:
        """Delete a table. DynamoDB refuses a table with deletion protection."""
        await self._call(f"table {name}", self._client.delete_table, TableName=name)

    async def close(self) -> None:
        """Close our own threads; the client belongs to the caller."""
        self._calls.close()

    async def _call(self, subject: str, call: Callable[..., Any], **request: Any) -> Mapping[str, Any]:
        try:
            response: Mapping[str, Any] = await self._calls.run(call, **request)
        except (ClientError, BotoCoreError) as error:
            raise translate_error(error, subject) from error
        return response
