"""A worker connects to the services that its settings name: object stores for dead letters, roles for credentials."""

import asyncio
import json
from collections.abc import Callable
from typing import Any

import boto3
import pytest

from leasehold.adapters.aws.clients import AwsAccess, aws_session, kinesis_client
from leasehold.config.connection import ConnectionSettings
from leasehold.core.model import ShardId
from leasehold.core.record import UserRecord
from leasehold.errors import ConfigError, UnavailableError
from leasehold.worker.connect import open_dead_letters
from leasehold.worker.dead_letters import DeadLetter, dead_letter_to_json, object_name
from tests.servers import Server

LETTER = DeadLetter(
    application="billing",
    stream="orders",
    shard=ShardId("shardId-000000000003"),
    record=UserRecord(b"\x00\xff", "customer-7", "4957"),
    error_type="ValueError",
    error_message="no such customer",
    attempts=6,
    dead_lettered_ms=1_790_000_001_000,
)


@pytest.fixture
def credentials(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fake credentials, found as by any AWS tool."""
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "test")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "test")
    monkeypatch.setenv("AWS_DEFAULT_REGION", "us-east-1")
    monkeypatch.delenv("AWS_PROFILE", raising=False)


def test_dead_letters_are_stored_in_a_bucket(
    ministack: Server, credentials: None, unique_name: Callable[[str], str]
) -> None:
    """Each letter is an object below the prefix, written through the endpoint of the settings."""
    bucket = unique_name("letters")
    s3: Any = boto3.client("s3", endpoint_url=ministack.url)
    s3.create_bucket(Bucket=bucket)
    letters = open_dead_letters(f"s3://{bucket}/of/billing", ConnectionSettings(s3_endpoint=ministack.url))
    assert letters is not None
    asyncio.run(letters.put(LETTER))
    stored = s3.get_object(Bucket=bucket, Key=f"of/billing/{object_name(LETTER)}")
    assert json.load(stored["Body"]) == dead_letter_to_json(LETTER)


def test_a_missing_bucket_makes_the_dead_letter_fail(
    ministack: Server, credentials: None, unique_name: Callable[[str], str]
) -> None:
    """The shard waits and retries. It does not continue without the letter."""
    place = f"s3://{unique_name('nowhere')}/letters"
    letters = open_dead_letters(place, ConnectionSettings(s3_endpoint=ministack.url))
    assert letters is not None
    with pytest.raises(UnavailableError, match="dead letters to s3://"):
        asyncio.run(letters.put(LETTER))


def test_a_role_is_assumed_with_the_available_credentials(
    ministack: Server, credentials: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The clients sign with the key of the role, not with the key that assumed it."""
    monkeypatch.setenv("AWS_ENDPOINT_URL_STS", ministack.url)
    access = AwsAccess(role_arn="arn:aws:iam::000000000000:role/reader", endpoint_url=ministack.url)
    found = aws_session(access).get_credentials().get_frozen_credentials()
    assert found.access_key != "test"
    assert found.token
    assert kinesis_client(access).list_streams()["ResponseMetadata"]["HTTPStatusCode"] == 200


def test_a_role_without_credentials_is_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The error is raised at the start."""
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_PROFILE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", "/nowhere")
    monkeypatch.setenv("AWS_CONFIG_FILE", "/nowhere")
    with pytest.raises(ConfigError, match="cannot create a client for kinesis"):
        kinesis_client(AwsAccess(role_arn="arn:aws:iam::000000000000:role/reader", region="us-east-1"))
