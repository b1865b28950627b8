"""boto3 clients with the settings of the adapters."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from leasehold.adapters.aws.clients import AwsAccess, cloudwatch_client, dynamodb_client, kinesis_client
from leasehold.errors import ConfigError

LOCAL = AwsAccess(endpoint_url="http://127.0.0.1:4567")


@pytest.fixture(autouse=True)
def bare_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Remove credentials and region of the machine that runs the tests."""
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN", "AWS_PROFILE"):
        monkeypatch.delenv(name, raising=False)
    for name in ("AWS_REGION", "AWS_DEFAULT_REGION"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "config"))
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "credentials"))


def credentials_of(client: Any) -> Any:
    return client._request_signer._credentials


@pytest.mark.parametrize("make", [kinesis_client, dynamodb_client, cloudwatch_client])
def test_a_server_on_loopback_needs_no_credentials(make: Callable[[AwsAccess], Any]) -> None:
    """It needs no region either: `leasehold local` works on a machine without AWS configuration."""
    client = make(LOCAL)
    assert client.meta.region_name == "us-east-1"
    assert credentials_of(client).access_key == "local"


def test_real_credentials_are_used_on_loopback_too(monkeypatch: pytest.MonkeyPatch) -> None:
    """A tunnel to AWS also ends on loopback."""
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "real")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "real")
    monkeypatch.setenv("AWS_DEFAULT_REGION", "eu-central-1")
    client = kinesis_client(LOCAL)
    assert credentials_of(client).access_key == "real"
    assert client.meta.region_name == "eu-central-1"


@pytest.mark.parametrize("url", [None, "https://kinesis.example.com", "http://127.0.0.1.example.com"])
def test_made_up_credentials_are_for_loopback_only(url: str | None) -> None:
    """Elsewhere, a call without credentials fails with the usual error, not with an error about an unknown key."""
    client = kinesis_client(AwsAccess(region="eu-central-1", endpoint_url=url))
    assert credentials_of(client) is None


def test_an_invalid_configuration_is_an_error() -> None:
    """A missing region, an unknown profile."""
    with pytest.raises(ConfigError, match="region"):
        kinesis_client()
    with pytest.raises(ConfigError, match="nobody"):
        kinesis_client(AwsAccess(region="eu-central-1", profile="nobody"))


def test_the_kinesis_client_never_retries() -> None:
    """The shard reader retries with its own backoff. The client has as many connections as threads."""
    config = kinesis_client(LOCAL, threads=40).meta.config
    assert config.retries["total_max_attempts"] == 1
    assert config.max_pool_connections == 40


def test_a_heartbeat_has_short_timeouts() -> None:
    """All attempts of a write to the lease table end well within the failover time."""
    config = dynamodb_client(LOCAL).meta.config
    longest_s = config.retries["total_max_attempts"] * (config.connect_timeout + config.read_timeout)
    assert longest_s < 9
