"""Sends the most frequent AWS calls without boto3: signed by botocore, sent on the event loop, without threads. This
takes a quarter of the processor time.

An idle worker polls every shard once a second (GetRecords), renews every lease every few seconds (UpdateItem), and
scans all leases every few seconds (Scan); other calls are rare. Direct calls are used only where boto3 would do
nothing else with the call: no proxy, no client certificate, the regular endpoint. All other calls go through boto3.
Never retries: the caller does.
"""

from __future__ import annotations

from typing import Any, Final

import orjson
from botocore.exceptions import ClientError, HTTPClientError

from leasehold.adapters.aws.async_http import HttpEndpoint, HttpLimits
from leasehold.adapters.aws.request_signing import Operation, RequestSigner, open_signer
from leasehold.adapters.row_json import row_from_json_object

GET_RECORDS: Final = Operation("kinesis", "Kinesis_20131202.GetRecords", "application/x-amz-json-1.1")
UPDATE_ITEM: Final = Operation("dynamodb", "DynamoDB_20120810.UpdateItem", "application/x-amz-json-1.0")
SCAN: Final = Operation("dynamodb", "DynamoDB_20120810.Scan", "application/x-amz-json-1.0")


def open_direct_calls(client: Any) -> DirectCalls | None:
    """Direct calls with the endpoint, region and credentials of the client; None if boto3 has to send its calls."""
    signer = open_signer(client, f"{client.meta.endpoint_url.rstrip('/')}/")
    return None if signer is None else DirectCalls(client, signer)


class DirectCalls:
    """Calls to one AWS endpoint, from one event loop."""

    def __init__(self, client: Any, signer: RequestSigner) -> None:
        config = client.meta.config
        self._signer = signer
        self._endpoint = HttpEndpoint(
            signer.url,
            HttpLimits(
                connections_max=config.max_pool_connections,
                connect_s=config.connect_timeout,
                response_s=config.read_timeout,
            ),
            signer.tls_context(),
        )

    async def send(self, operation: Operation, body: bytes) -> bytes:
        """Send one call and return the body of its response. Raises the same errors as boto3."""
        try:
            response = await self._endpoint.post(await self._signer.headers(operation, body), body)
        except OSError as error:
            raise HTTPClientError(error=str(error) or "timeout") from error
        if response.status != 200:
            raise client_error(operation.name, response.status, response.body)
        return response.body

    def close(self) -> None:
        """Close the connections."""
        self._endpoint.close()


def client_error(operation: str, status: int, body: bytes) -> ClientError:
    """The error as boto3 would raise it."""
    try:
        fields = orjson.loads(body)
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
            # Some services prefix the name with a namespace.
            "Error": {"Code": kind.rsplit("#", 1)[-1] or str(status), "Message": message},
            "ResponseMetadata": {"HTTPStatusCode": status},
            **item,
        },
        operation,
    )
