"""`leasehold iam-policy` and `leasehold completion`."""

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from leasehold.cli.command import leasehold
from leasehold.config.iam_policy import IamRole, PolicyScope, iam_policy
from leasehold.errors import ConfigError


def run(*arguments: str) -> str:
    result = CliRunner().invoke(leasehold, list(arguments), prog_name="leasehold")
    assert result.exit_code == 0, result.output
    return result.output


def statements(*arguments: str) -> dict[str, Any]:
    policy = json.loads(run("iam-policy", *arguments, "--application", "billing", "--stream", "orders"))
    assert policy["Version"] == "2012-10-17"
    return {statement["Sid"]: statement for statement in policy["Statement"]}


def test_a_viewer_may_not_write() -> None:
    actions = [action for each in statements("viewer").values() for action in each["Action"]]
    assert not [action for action in actions if "Put" in action or "Update" in action or "Delete" in action]


def test_resources_are_those_of_the_application() -> None:
    found = statements("worker", "--region", "eu-central-1", "--account", "123456789012")
    assert found["Leases"]["Resource"] == [
        "arn:aws:dynamodb:eu-central-1:123456789012:table/billing",
        "arn:aws:dynamodb:eu-central-1:123456789012:table/billing-CoordinatorState",
        "arn:aws:dynamodb:eu-central-1:123456789012:table/billing-WorkerMetricStats",
        "arn:aws:dynamodb:eu-central-1:123456789012:table/billing/index/*",
    ]
    assert found["ReadStreams"]["Resource"] == ["arn:aws:kinesis:eu-central-1:123456789012:stream/orders"]


def test_the_environment_names_what_the_options_leave_out(tmp_path: Path) -> None:
    """As for the other commands: LEASEHOLD_* variables, and the file of LEASEHOLD_CONFIG. Options take precedence."""
    file = tmp_path / "worker.toml"
    file.write_text('[leasehold]\napplication = "billing"\nstream = "orders"\n')

    def resources(environment: dict[str, str], *options: str) -> tuple[str, list[str]]:
        result = CliRunner().invoke(leasehold, ["iam-policy", "worker", *options], env=environment)
        assert result.exit_code == 0, result.output
        found = {each["Sid"]: each["Resource"] for each in json.loads(result.output)["Statement"]}
        return found["Leases"][0], found["ReadStreams"]

    named = {"LEASEHOLD_APPLICATION": "billing", "LEASEHOLD_STREAM": "orders"}
    expected = ("arn:aws:dynamodb:*:*:table/billing", ["arn:aws:kinesis:*:*:stream/orders"])
    assert resources(named) == expected
    assert resources({"LEASEHOLD_CONFIG": str(file)}) == expected
    table, streams = resources(named, "--stream", "returns", "--application", "audit")
    assert (table, streams) == ("arn:aws:dynamodb:*:*:table/audit", ["arn:aws:kinesis:*:*:stream/returns"])
    assert resources(named, "--stream", "returns")[0] == expected[0]


@pytest.mark.parametrize("missing", ["LEASEHOLD_APPLICATION", "LEASEHOLD_STREAM"])
def test_a_missing_name_is_refused(missing: str) -> None:
    named = {"LEASEHOLD_APPLICATION": "billing", "LEASEHOLD_STREAM": "orders"}
    result = CliRunner().invoke(leasehold, ["iam-policy", "worker"], env={**named, missing: None})
    assert result.exit_code == 2
    assert missing in result.output


def test_options_add_statements() -> None:
    found = statements(
        "spark", "--fan-out", "--discover", "--cloudwatch", "--archive", "s3://archive-bucket/orders/"
    )
    assert "kinesis:SubscribeToShard" in found["UseConsumers"]["Action"]
    assert found["Archive"]["Resource"] == ["arn:aws:s3:::archive-bucket/orders/*"]
    assert found["Metrics"]["Condition"] == {"StringEquals": {"cloudwatch:namespace": "billing"}}
    assert found["FindStreams"]["Resource"] == ["*"]
    assert "RegisterConsumers" in statements("bootstrap", "--fan-out")


def test_an_archive_that_is_not_in_s3_is_refused() -> None:
    result = CliRunner().invoke(
        leasehold,
        ["iam-policy", "worker", "--application", "billing", "--stream", "s", "--archive", "gs://b"],
    )
    assert result.exit_code == 2
    assert "expected s3://bucket/prefix" in result.output


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_prints_a_script(shell: str) -> None:
    assert "_LEASEHOLD_COMPLETE" in run("completion", shell)


@pytest.mark.parametrize(
    "wrong",
    [
        {"application": "*"},
        {"application": "bill?ng"},
        {"application": "${aws:username}"},
        {"application": "a/b"},
        {"streams": ("*",)},
        {"streams": ("or*ders",)},
        {"streams": ("orders/consumer/x",)},
        {"streams": ("arn:aws:s3:::bucket",)},
        {"streams": ("arn:aws:kinesis:*:*:stream/orders",)},
        {"region": "eu-*"},
        {"region": "everywhere"},
        {"account": "1:table/x"},
        {"account": "12"},
        {"partition": "foo"},
        {"partition": "*"},
        {"archive": "s3://bucket/*"},
        {"archive": "s3://bucket/${aws:username}"},
    ],
    ids=str,
)
def test_a_name_that_would_allow_more_is_refused(wrong: dict[str, Any]) -> None:
    """A wildcard or a variable in a name is a mistake, not a wish for the rights to all tables."""
    with pytest.raises(ConfigError):
        iam_policy(IamRole.WORKER, PolicyScope(**{"application": "billing", "streams": ("orders",), **wrong}))


def test_streams_that_are_found_by_their_prefix_may_end_in_a_star() -> None:
    """Such a member cannot name its streams."""
    arn = "arn:aws:kinesis:eu-west-1:123456789012:stream/orders-*"
    scope = PolicyScope(application="billing", streams=("orders-*", arn), discover=True)
    assert scope.stream_arns == ["arn:aws:kinesis:*:*:stream/orders-*", arn]
