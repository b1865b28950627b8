"""Wrong values of options end a command with exit code 2 and a sentence that names the option."""

from pathlib import Path

import pytest
from click.testing import CliRunner

from leasehold.cli.command import leasehold

LEASES = ("--application", "billing", "--stream", "orders")
POLICY = ("iam-policy", "worker", "--stream", "orders")


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (("reset", *LEASES, "--to", "now"), "--to 'now': it is not a time with its zone"),
        (("reset", *LEASES, "--to", "2026-11-15T12:00:00"), "has no zone: add Z for UTC"),
        (("reset", *LEASES, "--to", "latest", "--timeout", "nan"), "'--timeout': nan: expected a number"),
        (("reset", *LEASES, "--to", "latest", "--failover-after", "1e300"), "'--failover-after': 1e300"),
        (("explain", *LEASES, "--watch", "inf"), "'--watch': inf: expected a number"),
        (
            ("replay", "billing:consumer", "--from", "latest"),
            "--from latest: expected trim-horizon, or a time",
        ),
        (("replay", "billing:consumer", "--from", "now"), "--from 'now': it is not a time"),
        (
            ("replay", "billing:consumer", "--from", "trim-horizon", "--to", "2199-01-01T00:00:00Z"),
            "in the future",
        ),
        (("replay", "billing", "--from", "trim-horizon"), "'billing': expected MODULE:NAME"),
        (("run", "billing"), "'billing': expected MODULE:NAME"),
        (("run", "--kclpy", "billing.py:X"), "billing.py is not the name of a module"),
        ((*POLICY, "--application", "x*"), "--application 'x*': expected the name of a table"),
        ((*POLICY, "--application", "billing", "--region", "a b"), "--region 'a b': expected"),
        (("leases", "--leases", "mysql://x"), "--leases='mysql://x': expected 'dynamodb'"),
        (("leases", *LEASES, "--endpoint-url", "localhost"), "--endpoint-url 'localhost': expected http://"),
        (
            ("lag", *LEASES, "--kinesis-endpoint-url", "http://example.org"),
            "--kinesis-endpoint-url http://example.org",
        ),
        (("dashboard", *LEASES, "--status", "ftp://x"), "--status ftp://x: expected http://host:port"),
        (("local", "--stream", "orders"), "Error: --stream 'orders': expected NAME:SHARDS"),
        (("local", "--host", "0.0.0.0"), "--host='0.0.0.0' is not a loopback address"),
        (("simulate", "--minutes", "nan"), "--minutes nan: expected at least 0.02"),
        (("archive", "list", "s4://bucket"), "URL='s4://bucket': expected"),
        (("archive", "list", "folder", "--prefix", "a b"), "--prefix 'a b': part 'a b' cannot be part"),
        (("archive", "read", "folder", "--start", "today"), "--start='today': it is not a time"),
        (
            ("archive", "compact", "folder", "--older-than", "1s"),
            "--older-than: expected at least one minute",
        ),
    ],
)
def test_a_wrong_value_is_wrong_usage(
    arguments: tuple[str, ...], sentence: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing is requested: there is neither a region nor a server."""
    monkeypatch.chdir(tmp_path)
    result = CliRunner().invoke(leasehold, arguments)
    assert (result.exit_code, sentence in result.stderr) == (2, True), result.output


def test_a_wrong_value_of_the_surroundings_is_a_failure() -> None:
    """No option is wrong."""
    result = CliRunner().invoke(
        leasehold, ["leases", *LEASES], env={"LEASEHOLD_DYNAMODB_ENDPOINT": "http://example.org"}
    )
    assert (result.exit_code, "add --plain-http" in result.stderr) == (1, True), result.output


def test_a_folder_that_is_not_empty_is_not_used_for_a_demo(tmp_path: Path) -> None:
    """The sentence says what to give instead."""
    pytest.importorskip("pyspark")
    (tmp_path / "file").touch()
    result = CliRunner().invoke(leasehold, ["demo", "--folder", str(tmp_path)])
    assert (result.exit_code, "give a new or empty folder" in result.stderr) == (2, True), result.output
