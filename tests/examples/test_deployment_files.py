"""The files for containers and Kubernetes are valid, and name commands and settings that exist."""

import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
import kubernetes_validate  # type: ignore[import-untyped]
import pytest
import yaml  # type: ignore[import-untyped]

from leasehold.cli.command import leasehold
from leasehold.spark.options import source_options
from leasehold.spark.pipeline.pipeline_file import parse_pipeline
from leasehold.worker.options import OPTIONS, PREFIX

EXAMPLES = Path(__file__).parents[2] / "examples"
MANIFESTS = ["kubernetes/worker.yaml", "kubernetes/pipeline.yaml"]


def documents(file: str) -> list[Any]:
    """The documents of a YAML file."""
    return list(yaml.safe_load_all((EXAMPLES / file).read_text(encoding="utf-8")))


def containers() -> Iterator[tuple[list[str], dict[str, Any]]]:
    """The arguments and variables of every container in the manifests and in the compose file."""
    for document in (each for file in MANIFESTS for each in documents(file)):
        for container in document.get("spec", {}).get("template", {}).get("spec", {}).get("containers", []):
            yield container["args"], {each["name"]: each.get("value") for each in container.get("env", [])}
    for service in documents("compose.yaml")[0]["services"].values():
        yield service["command"], service.get("environment", {})


@pytest.mark.parametrize("file", MANIFESTS)
def test_manifests_match_the_schemas_of_kubernetes(file: str) -> None:
    """Unknown and misspelt fields are errors."""
    for document in documents(file):
        kubernetes_validate.validate(document, "1.30", strict=True)


def test_the_scaled_object_names_the_deployment() -> None:
    """KEDA's own schema is not part of Kubernetes; the names must fit the other file."""
    (scaled,) = documents("kubernetes/autoscale.yaml")
    deployments = [
        each["metadata"]["name"] for each in documents(MANIFESTS[0]) if each["kind"] == "Deployment"
    ]
    assert [scaled["spec"]["scaleTargetRef"]["name"]] == deployments
    assert "leasehold_shard_lag_seconds" in scaled["spec"]["triggers"][0]["metadata"]["query"]


def test_containers_name_existing_commands_and_settings() -> None:
    """The first argument is a command, and each variable with our prefix is a setting."""
    found = list(containers())
    assert len(found) == 4
    for arguments, variables in found:
        assert leasehold.get_command(click.Context(leasehold), arguments[0]) is not None
        names = {name.removeprefix(PREFIX).lower() for name in variables if name.startswith(PREFIX)}
        assert names <= set(OPTIONS)


def test_the_pipeline_of_the_manifest_is_valid() -> None:
    """The file in the ConfigMap is one that `leasehold pipeline` accepts."""
    content = documents("kubernetes/pipeline.yaml")[0]["data"]["pipeline.toml"]
    pipeline = parse_pipeline(tomllib.loads(content), name="orders")
    assert source_options(pipeline.source).application == "orders-archive"
