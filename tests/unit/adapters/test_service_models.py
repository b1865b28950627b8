"""The common descriptions of services: smaller than botocore's, with the same effect."""

from typing import Any

import boto3
import pytest

from leasehold.adapters.aws.clients import AwsAccess, aws_session
from leasehold.adapters.aws.service_models import share_models

SERVICES = ("kinesis", "dynamodb", "cloudwatch", "sts", "s3")


@pytest.fixture(autouse=True)
def credentials(monkeypatch: pytest.MonkeyPatch) -> None:
    """Set credentials, so that nothing is searched."""
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "key")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "secret")


def describe(client: Any) -> tuple[Any, ...]:
    """What calls depend on: the endpoint, the region of signatures, and the shapes of all operations."""
    model = client.meta.service_model
    shapes = {
        name: (model.operation_model(name).http, _names(model.operation_model(name).input_shape))
        for name in model.operation_names
    }
    return client.meta.endpoint_url, client.meta.region_name, model.signing_name, model.metadata, shapes


def _names(shape: Any) -> list[str]:
    return [] if shape is None else [f"{name}:{each.type_name}" for name, each in shape.members.items()]


@pytest.mark.parametrize("region", ["eu-central-1", "cn-north-1", "us-gov-west-1"])
def test_clients_are_those_of_botocore(region: str) -> None:
    """Endpoints of all partitions, and all operations."""
    ours, theirs = aws_session(AwsAccess(region=region)), boto3.Session(region_name=region)
    for service in SERVICES if region == "eu-central-1" else ("kinesis", "dynamodb"):
        assert describe(ours.client(service)) == describe(theirs.client(service))


def test_descriptions_are_loaded_once_without_documentation() -> None:
    """Two sessions share one object."""
    sessions = [boto3.Session()._session for _ in range(2)]
    for each in sessions:
        share_models(each)
    first, second = (each.get_component("data_loader") for each in sessions)
    model = first.load_service_model("dynamodb", "service-2")
    assert model is second.load_service_model("dynamodb", "service-2")
    assert "documentation" not in model["operations"]["GetItem"]
