"""A running server as tests see it: an address, and clients for it."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import boto3
from botocore.config import Config

REGION = "us-east-1"


def aws_client(service: str, url: str, **config: Any) -> Any:
    """A boto3 client for a local server, with made-up credentials.

    It never retries, so a test sees every error. `config` goes to botocore's `Config`. Other processes create their
    own client from the same two strings.
    """
    settings = {"retries": {"total_max_attempts": 1}, "max_pool_connections": 32} | config
    return boto3.session.Session().client(
        service,
        endpoint_url=url,
        region_name=REGION,
        aws_access_key_id="test",
        aws_secret_access_key="test",
        config=Config(**settings),
    )


@dataclass(frozen=True, slots=True)
class Server:
    """A server on loopback, alive until the test run ends."""

    name: str
    url: str
    log: Path

    def client(self, service: str, **config: Any) -> Any:
        """A new boto3 client for one of the server's services."""
        return aws_client(service, self.url, **config)

    def log_tail(self, lines: int = 40) -> str:
        """The last lines that the server printed."""
        return "\n".join(self.log.read_text(errors="replace").splitlines()[-lines:])
