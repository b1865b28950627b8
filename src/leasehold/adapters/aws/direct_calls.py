"""Sends the most frequent AWS calls without boto3: signed here, sent on the event loop, without threads. This takes a
tenth of the processor time.

An idle worker polls every shard once a second (GetRecords), renews every lease every few seconds (UpdateItem), and
scans all leases every few seconds (Scan). A Spark query requests an iterator for each shard of each batch
(GetShardIterator). Other calls are rare. Direct calls are used only where boto3 would do
nothing else with the call: no proxy, no client certificate, the regular endpoint. All other calls go through boto3.
Never retries: the caller does.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import orjson
from botocore.exceptions import ClientError, HTTPClientError

from leasehold.adapters.aws import cbor
from leasehold.adapters.aws.async_http import HttpEndpoint, HttpLimits
from leasehold.adapters.aws.http_response import Response
from leasehold.adapters.aws.request_signing import Operation, RequestSigner, Route, open_signer
from leasehold.adapters.row_json import row_from_json_object

GET_RECORDS: Final = Operation("Kinesis_20131202.GetRecords", "application/x-amz-json-1.1")
GET_SHARD_ITERATOR: Final = Operation("Kinesis_20131202.GetShardIterator", "application/x-amz-json-1.1")
GET_RECORDS_IN_CBOR: Final = Operation("Kinesis_20131202.GetRecords", cbor.CONTENT_TYPE)
UPDATE_ITEM: Final = Operation("DynamoDB_20120810.UpdateItem", "application/x-amz-json-1.0")
SCAN: Final = Operation("DynamoDB_20120810.Scan", "application/x-amz-json-1.0")


def open_direct_calls(client: Any, arguments: Mapping[str, str] | None = None) -> DirectCalls | None:
    """Direct calls with the endpoints, region and credentials of the client; None if boto3 has to send its calls.

    `arguments` are arguments of every call from which botocore determines the endpoint, such as the table.
    """
    signer = open_signer(client)
    return None if signer is None else DirectCalls(signer, client.meta.config, arguments or {})


class DirectCalls:
    """Calls to one AWS service, from one event loop."""

    def __init__(self, signer: RequestSigner, config: Any, arguments: Mapping[str, str]) -> None:
        self._signer = signer
        self._arguments = arguments
        self._limits = HttpLimits(
            connections_max=config.max_pool_connections,
            connect_s=config.connect_timeout,
            response_s=config.read_timeout,
        )
        self._endpoints: dict[str, HttpEndpoint] = {}  # by URL

    async def send(self, operation: Operation, body: bytes) -> bytes:
        """Send one call and return the body of its response. Raises the same errors as boto3."""
        response = await self.exchange(operation, body)
        if response.status != 200:
            raise client_error(operation.name, response.status, response.body)
        return response.body

    async def exchange(self, operation: Operation, body: bytes) -> Response:
        """Send one call and return its response, with any status. Raises an error only if there is none."""
        route = await self.find_route(operation)
        try:
            return await self._endpoint(route.url).send(self._signer.request(operation, route, body))
        except OSError as error:
            raise HTTPClientError(error=str(error) or "timeout") from error

    async def find_route(self, operation: Operation) -> Route:
        """The endpoint of an operation."""
        return await self._signer.find_route(operation, self._arguments)

    def close(self) -> None:
        """Close the connections."""
        for endpoint in self._endpoints.values():
            endpoint.close()

    def _endpoint(self, url: str) -> HttpEndpoint:
        if url not in self._endpoints:
            self._endpoints[url] = HttpEndpoint(url, self._limits, self._signer.tls_context(url))
        return self._endpoints[url]


def client_error(operation: str, status: int, body: bytes, *, is_cbor: bool = False) -> ClientError:
    """The error as boto3 would raise it."""
    try:
        fields = cbor.decode(body) if is_cbor else orjson.loads(body)
        kind, message = (
            str(fields.get("__type", "")),
            str(fields.get("message", fields.get("Message", ""))),
        )
        # DynamoDB returns the row for which a condition did not hold.
        item = {"Item": row_from_json_object(fields["Item"])} if "Item" in fields else {}
    except (ValueError, AttributeError):
        kind, message, item = "", "the response is not an AWS error", {}
    return ClientError(
        {
            # Some services put a namespace before the name, or an address behind it.
            "Error": {"Code": kind.partition(":")[0].rsplit("#", 1)[-1] or str(status), "Message": message},
            "ResponseMetadata": {"HTTPStatusCode": status},
            **item,
        },
        operation,
    )
