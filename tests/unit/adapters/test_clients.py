"""boto3 clients with the settings of the adapters."""

import json
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, ClassVar

import pytest
from botocore.credentials import CredentialResolver
from botocore.exceptions import BotoCoreError, ClientError, EndpointConnectionError

from leasehold.adapters.aws.clients import AwsAccess, cloudwatch_client, dynamodb_client, kinesis_client
from leasehold.adapters.aws.error_translation import translate_error
from leasehold.errors import ConfigError, NotFoundError, UnavailableError

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


def test_credentials_are_searched_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a machine without any, the search waits for a metadata service that does not exist."""
    searches: list[object] = []
    load = CredentialResolver.load_credentials

    def count(resolver: Any) -> Any:
        searches.append(resolver)
        return load(resolver)

    monkeypatch.setattr(CredentialResolver, "load_credentials", count)
    kinesis_client(LOCAL)
    assert len(searches) == 1


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


class EchoHandler(BaseHTTPRequestHandler):
    """Returns the row whose key is requested, after two interim responses."""

    protocol_version = "HTTP/1.1"
    interim: ClassVar[bytes]

    def do_POST(self) -> None:
        request = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        body = json.dumps({"Item": request["Key"]}).encode()
        self.wfile.write(self.interim)
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *args: object) -> None:
        pass


@pytest.fixture
def echo_url() -> Iterator[str]:
    with ThreadingHTTPServer(("127.0.0.1", 0), EchoHandler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join()


@pytest.mark.parametrize("status", [100, 102, 103, 199])
def test_interim_responses_are_skipped(echo_url: str, monkeypatch: pytest.MonkeyPatch, status: int) -> None:
    """Each request gets its own row, on one connection."""
    interim = b"HTTP/1.1 %d Wait\r\nLink: </a>\r\n\r\n" % status
    monkeypatch.setattr(EchoHandler, "interim", interim * 2, raising=False)
    client = dynamodb_client(AwsAccess(region="eu-west-1", endpoint_url=echo_url))
    for key in "abcdefgh":
        row = {"leaseKey": {"S": key}}
        assert client.get_item(TableName="leases", Key=row)["Item"] == row
    client.close()


@pytest.mark.parametrize(
    "interim", [b"HTTP/1.1 101 Switching Protocols\r\n\r\n", b"HTTP/1.1 103 Hints\r\n\r\n" * 101]
)
def test_a_response_that_is_never_final_is_an_error(
    echo_url: str, monkeypatch: pytest.MonkeyPatch, interim: bytes
) -> None:
    """It is not an empty response, which would mean that the row does not exist."""
    monkeypatch.setattr(EchoHandler, "interim", interim, raising=False)
    client = dynamodb_client(AwsAccess(region="eu-west-1", endpoint_url=echo_url))
    with pytest.raises(BotoCoreError):
        client.get_item(TableName="leases", Key={"leaseKey": {"S": "a"}})
    client.close()


def test_a_server_that_does_not_run_is_an_error_with_a_remedy() -> None:
    error = translate_error(
        EndpointConnectionError(endpoint_url="http://127.0.0.1:4999/"), "PutRecords into orders"
    )
    assert isinstance(error, UnavailableError)
    assert str(error).startswith("PutRecords into orders: no response (Could not connect")
    assert (
        "check the endpoint, the region and the network and, for a server on this machine, whether it runs"
        in str(error)
    )


@pytest.mark.parametrize(
    ("message", "remedy"),
    [
        ("Stream orders under account 123456789012 not found.", "create the stream, or check its name"),
        ("Consumer app, account 123456789012 not found.", "`leasehold consumers list` shows the consumers"),
        ("Shard shardId-1 in stream orders under account 1 does not exist", "check the stream, the region"),
        ("Requested resource not found", "check the name, the account, the region and the endpoint"),
    ],
)
def test_something_that_does_not_exist_is_an_error_with_a_remedy(message: str, remedy: str) -> None:
    """The messages are those of AWS, which name no remedy."""
    response = {"Error": {"Code": "ResourceNotFoundException", "Message": message}}
    error = translate_error(ClientError(response, "PutRecords"), "PutRecords into orders")
    assert isinstance(error, NotFoundError)
    cause = message.removesuffix(".")
    assert str(error).startswith(f"PutRecords into orders: ResourceNotFoundException: {cause}; {remedy}")
