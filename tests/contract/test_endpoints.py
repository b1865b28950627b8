"""Every call that bypasses boto3 goes to the endpoint to which boto3 would send it: in every partition and mode."""

import asyncio
from collections.abc import Iterator
from itertools import product
from typing import Any

import boto3
import pytest
from botocore import xform_name
from botocore.awsrequest import AWSRequest
from botocore.config import Config
from botocore.exceptions import BotoCoreError

from leasehold.adapters.aws.clients import AwsAccess, dynamodb_client, resolve_s3_endpoint
from leasehold.adapters.aws.direct_calls import GET_RECORDS, SCAN, UPDATE_ITEM
from leasehold.adapters.aws.dynamodb_rows import DynamoDbRows
from leasehold.adapters.aws.kinesis_fan_out import SUBSCRIBE
from leasehold.adapters.aws.request_signing import Operation, open_signer
from leasehold.adapters.obstore_objects import _open_obstore
from leasehold.errors import ConfigError

REGIONS = (
    "us-east-1",
    "eu-west-1",
    "ap-southeast-5",
    "us-gov-west-1",
    "cn-north-1",
    "us-iso-east-1",
    "eusc-de-east-1",
)
ACCOUNT = "123456789012"
KEYS = {"aws_access_key_id": "AKIDEXAMPLE", "aws_secret_access_key": "secret"}


class SentError(Exception):
    """Raised instead of sending a request."""


@pytest.fixture(autouse=True)
def credentials(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("AWS_ENDPOINT_URL", "AWS_PROFILE", "AWS_SESSION_TOKEN", "AWS_ACCOUNT_ID"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "AKIDEXAMPLE")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "secret")
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    monkeypatch.setenv("AWS_CONFIG_FILE", "/dev/null")


def url_of_boto3(client: Any, operation: Operation, arguments: dict[str, Any]) -> str:
    """The URL to which boto3 would send a call, or the error that it raises before."""

    def stop(request: AWSRequest, **_more: object) -> None:
        raise SentError(request.url)

    client.meta.events.register("before-send", stop)
    try:
        getattr(client, xform_name(operation.name))(**arguments)
    except (SentError, BotoCoreError) as error:
        return str(error)
    raise AssertionError


def url_of_direct_call(client: Any, operation: Operation, arguments: dict[str, Any]) -> str:
    signer = open_signer(client)
    assert signer is not None
    texts = {name: value for name, value in arguments.items() if isinstance(value, str)}
    try:
        return asyncio.run(signer.find_route(operation, texts)).url
    except BotoCoreError as error:
        return str(error)


def modes() -> Iterator[tuple[Config, str | None]]:
    for fips, dual_stack in product((False, True), repeat=2):
        for account_mode, account in (
            ("preferred", None),
            ("preferred", ACCOUNT),
            ("disabled", ACCOUNT),
            ("required", None),
        ):
            yield (
                Config(
                    use_fips_endpoint=fips,
                    use_dualstack_endpoint=dual_stack,
                    account_id_endpoint_mode=account_mode,
                ),
                account,
            )


@pytest.mark.parametrize("region", REGIONS)
def test_direct_calls_use_the_endpoints_of_boto3(region: str) -> None:
    """With FIPS, dual stack and endpoints of accounts, for a table by name and by ARN, and for a consumer."""
    partition = boto3.Session().get_partition_for_region(region)
    table_arn = f"arn:{partition}:dynamodb:{region}:210987654321:table/leases"
    calls: dict[str, dict[Operation, dict[str, Any]]] = {
        "kinesis": {
            GET_RECORDS: {"ShardIterator": "here"},
            SUBSCRIBE: {
                "ConsumerARN": f"arn:{partition}:kinesis:{region}:210987654321:stream/orders/consumer/c:1",
                "ShardId": "shardId-000000000000",
                "StartingPosition": {"Type": "LATEST"},
            },
        },
        "dynamodb": {
            SCAN: {"TableName": "leases"},
            UPDATE_ITEM: {"TableName": table_arn, "Key": {"leaseKey": {"S": "a"}}},
        },
    }
    session = boto3.Session(region_name=region)
    urls = set()
    for (config, account), service in product(modes(), calls):
        if service == "kinesis" and config.account_id_endpoint_mode != "required":
            continue  # Kinesis has no endpoints of accounts, so one mode is enough
        client = session.client(service, config=config, aws_account_id=account, **KEYS)
        for operation, arguments in calls[service].items():
            found = url_of_direct_call(client, operation, arguments)
            assert found == url_of_boto3(client, operation, arguments), (config, account, operation)
            urls.add(found)
    assert len(urls) > 3  # the modes lead to different endpoints


def test_the_account_of_the_environment_is_used(monkeypatch: pytest.MonkeyPatch) -> None:
    """`AWS_ACCOUNT_ID` belongs to the credentials of the environment."""
    monkeypatch.setenv("AWS_ACCOUNT_ID", ACCOUNT)
    client = dynamodb_client(AwsAccess(region="eu-west-1"))
    url = url_of_direct_call(client, SCAN, {"TableName": "leases"})
    assert url == f"https://{ACCOUNT}.ddb.eu-west-1.amazonaws.com/"


def test_an_endpoint_that_cannot_be_resolved_is_a_config_error(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is not an unavailable service, for which one would wait."""
    monkeypatch.setenv("AWS_ACCOUNT_ID_ENDPOINT_MODE", "required")

    async def scan() -> None:
        rows = DynamoDbRows(dynamodb_client(AwsAccess(region="eu-west-1")), "leases")
        try:
            await rows.scan()
        finally:
            await rows.close()

    with pytest.raises(ConfigError, match=r"table leases: .*AccountId"):
        asyncio.run(scan())


@pytest.mark.parametrize(
    ("variables", "region", "endpoint"),
    [
        ({}, "eu-west-1", "https://my-bucket.s3.eu-west-1.amazonaws.com"),
        ({}, "cn-north-1", "https://my-bucket.s3.cn-north-1.amazonaws.com.cn"),
        (
            {"AWS_USE_FIPS_ENDPOINT": "true"},
            "us-gov-west-1",
            "https://my-bucket.s3-fips.us-gov-west-1.amazonaws.com",
        ),
        (
            {"AWS_USE_DUALSTACK_ENDPOINT": "true"},
            "eu-west-1",
            "https://my-bucket.s3.dualstack.eu-west-1.amazonaws.com",
        ),
        ({"AWS_ENDPOINT_URL_S3": "http://127.0.0.1:9"}, "eu-west-1", "http://127.0.0.1:9"),
    ],
)
def test_the_object_store_uses_the_endpoint_of_boto3(
    monkeypatch: pytest.MonkeyPatch, variables: dict[str, str], region: str, endpoint: str
) -> None:
    """On its own, obstore knows neither FIPS nor dual stack, and one partition of AWS only."""
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    access = AwsAccess(region=region)
    store = _open_obstore("s3://my-bucket/archive", access, "url", "archive")
    assert store.config["endpoint"] == endpoint
    assert resolve_s3_endpoint(access, "my-bucket").startswith(endpoint)
    is_virtual = endpoint.startswith("https://my-bucket.")
    assert str(store.config["virtual_hosted_style_request"]).lower() == str(is_virtual).lower()
