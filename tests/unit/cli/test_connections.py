"""How a command reaches AWS and the leases: by its options, otherwise as a worker does."""

from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from leasehold.cli.command import leasehold
from leasehold.cli.connections import Connection, resolve_connection
from leasehold.errors import ConfigError
from leasehold.worker.options import read_surroundings

ENVIRONMENT = {
    "LEASEHOLD_APPLICATION": "billing",
    "LEASEHOLD_STREAM": "orders",
    "LEASEHOLD_LEASES": "sqlite:///leases.sqlite",
    "LEASEHOLD_REGION": "eu-central-1",
    "LEASEHOLD_KINESIS_ENDPOINT": "http://127.0.0.1:4567",
    "LEASEHOLD_ROLE_ARN": "arn:aws:iam::1:role/reader",
    "LEASEHOLD_MAX_RECORDS": "10",
}


def resolve(environment: dict[str, str], **options: Any) -> Connection:
    return resolve_connection({"plain_http": False} | options, read_surroundings(environment))


def test_a_command_takes_the_settings_of_the_worker() -> None:
    """Also those for which it has no option, such as a role."""
    connection = resolve(ENVIRONMENT)
    assert (connection.application, connection.stream) == ("billing", "orders")
    assert connection.settings.lease_file == "leases.sqlite"
    assert connection.settings.region == "eu-central-1"
    assert connection.settings.kinesis_endpoint == "http://127.0.0.1:4567"
    assert connection.settings.role_arn == "arn:aws:iam::1:role/reader"
    assert connection.has_leases
    assert not connection.has_lease_option


def test_a_command_reads_the_file_of_the_worker(tmp_path: Path) -> None:
    file = tmp_path / "worker.toml"
    file.write_text('[leasehold]\napplication = "billing"\nlease_table = "t"\nregion = "eu-west-1"')
    connection = resolve({"LEASEHOLD_CONFIG": str(file), "LEASEHOLD_REGION": "us-east-1"})
    assert (connection.application, connection.settings.lease_table) == ("billing", "t")
    assert connection.settings.region == "us-east-1"


def test_an_option_takes_precedence() -> None:
    """An endpoint for all services replaces the endpoint of one service in the environment."""
    connection = resolve(
        ENVIRONMENT,
        leases="dynamodb",
        application="other",
        endpoint_url="http://127.0.0.1:1",
        dynamodb_endpoint_url="http://127.0.0.1:2",
    )
    assert connection.application == "other"
    assert connection.settings.lease_file is None
    assert connection.settings.kinesis_endpoint == "http://127.0.0.1:1"
    assert connection.settings.dynamodb_endpoint == "http://127.0.0.1:2"
    assert connection.has_lease_option


@pytest.mark.parametrize(
    ("options", "file"),
    [
        ({"sqlite": Path("a.sqlite")}, "a.sqlite"),
        ({"leases": "sqlite:///a.sqlite"}, "a.sqlite"),
        ({"leases": "sqlite:a.sqlite"}, "a.sqlite"),
        ({"leases": "sqlite:////var/a.sqlite"}, "/var/a.sqlite"),
    ],
)
def test_the_spellings_of_a_lease_file(options: dict[str, Any], file: str) -> None:
    assert resolve({}, **options).settings.lease_file == file


def test_an_unencrypted_endpoint_of_the_environment_is_refused() -> None:
    with pytest.raises(ConfigError, match="add --plain-http"):
        resolve({"LEASEHOLD_DYNAMODB_ENDPOINT": "http://example.org"})


def test_a_missing_lease_file_is_reported_and_not_created(tmp_path: Path) -> None:
    missing = tmp_path / "missing.sqlite"
    result = CliRunner().invoke(leasehold, ["leases"], env={"LEASEHOLD_LEASES": f"sqlite:///{missing}"})
    assert (result.exit_code, missing.exists()) == (1, False)
    assert f"there is no file {missing}" in result.output


def test_an_empty_lease_file_is_reported(tmp_path: Path) -> None:
    empty = tmp_path / "empty.sqlite"
    empty.touch()
    result = CliRunner().invoke(leasehold, ["leases", "--sqlite", str(empty)])
    assert result.exit_code == 1
    assert "holds no lease table" in result.output
