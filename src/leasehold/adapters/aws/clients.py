"""Creates boto3 clients with the timeouts and retries that each adapter needs.

Credentials, regions, profiles and roles are found as in any AWS tool. A profile with `role_arn` assumes that role,
and so does `AwsAccess` with a role.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Final
from urllib.parse import urlsplit

import boto3
import botocore.session
from botocore.config import Config
from botocore.credentials import AssumeRoleCredentialFetcher, DeferredRefreshableCredentials
from botocore.exceptions import BotoCoreError, NoCredentialsError, NoRegionError

from leasehold.adapters.aws.blocking import THREADS_DEFAULT
from leasehold.adapters.aws.checked_credentials import CheckedCredentials
from leasehold.adapters.aws.final_responses import skip_interim_responses
from leasehold.adapters.aws.service_models import share_models
from leasehold.errors import ConfigError

_LOOPBACK_HOSTS: Final = frozenset({"127.0.0.1", "localhost", "::1"})
_LOCAL_REGION: Final = "us-east-1"
# Nothing is signed with these. They keep boto3 from looking for credentials.
_UNUSED_CREDENTIALS: Final = {"aws_access_key_id": "unused", "aws_secret_access_key": "unused"}


@dataclass(frozen=True, slots=True, kw_only=True)
class AwsAccess:
    """How to reach AWS. None means: as the environment says.

    A server on loopback accepts any credentials. If there are none, the clients use made-up ones for it.
    """

    region: str | None = None
    profile: str | None = None
    endpoint_url: str | None = None
    role_arn: str | None = None  # assumed with the found credentials, and renewed
    role_external_id: str | None = None
    role_session_name: str | None = None


_DEFAULT_ACCESS: Final = AwsAccess()


def kinesis_client(
    access: AwsAccess = _DEFAULT_ACCESS, *, threads: int = THREADS_DEFAULT, response_s: float = 30
) -> Any:
    """A client for `KinesisStream`. It never retries: the shard reader retries with its own backoff and reports it."""
    return _client("kinesis", access, threads, connect_s=5, read_s=response_s, attempts=1)


def dynamodb_client(
    access: AwsAccess = _DEFAULT_ACCESS, *, threads: int = THREADS_DEFAULT, response_s: float = 2
) -> Any:
    """A client for `DynamoDbRows`. Its timeouts are short, because a slow heartbeat is as bad as a lost one."""
    return _client("dynamodb", access, threads, connect_s=1, read_s=response_s, attempts=2)


def cloudwatch_client(access: AwsAccess = _DEFAULT_ACCESS) -> Any:
    """A client for metrics, which may arrive late."""
    return _client("cloudwatch", access, 2, connect_s=5, read_s=10, attempts=4)


def aws_session(access: AwsAccess) -> boto3.Session:
    """Credentials and region, with the role of `access`. Searches for credentials; see `has_credentials`."""
    session = boto3.Session(profile_name=access.profile, region_name=access.region)
    share_models(session._session)  # noqa: SLF001 - boto3 has no public access to the botocore session
    source = _check_credentials(session)
    if access.role_arn is None:
        return session
    # boto3 assumes roles only for profiles. This does the same for a role in the settings, with renewed credentials.
    if source is None:
        raise NoCredentialsError
    fetcher = AssumeRoleCredentialFetcher(
        session._session.create_client,  # noqa: SLF001 - boto3 has no public access to the botocore session
        source,
        access.role_arn,
        extra_args=_role_arguments(access),
    )
    assumed = botocore.session.get_session()
    share_models(assumed)
    assumed._credentials = DeferredRefreshableCredentials(fetcher.fetch_credentials, "assume-role")  # noqa: SLF001
    assuming = boto3.Session(botocore_session=assumed, region_name=session.region_name)
    _check_credentials(assuming)
    return assuming


def has_credentials(session: boto3.Session) -> bool:
    """Whether `aws_session` found credentials. botocore would search again, which may take seconds on any machine."""
    return session._session._credentials is not None  # noqa: SLF001 - boto3 has no public access to it


def _check_credentials(session: boto3.Session) -> CheckedCredentials | None:
    """Make a session check its credentials whenever they are used. None: it has no credentials."""
    found = session.get_credentials()
    if found is None:
        return None
    checked = CheckedCredentials(found)
    session._session._credentials = checked  # noqa: SLF001 - boto3 has no public access to the botocore session
    return checked


def resolve_s3_endpoint(access: AwsAccess, bucket: str) -> str:
    """The URL of a bucket as boto3 resolves it: by region, partition, FIPS, dual stack and variables of endpoints."""
    variables = tuple(sorted(item for item in os.environ.items() if item[0].startswith("AWS_")))
    return _resolve_s3_endpoint(access, bucket, variables)


@lru_cache(maxsize=64)
def _resolve_s3_endpoint(access: AwsAccess, bucket: str, _variables: tuple[tuple[str, str], ...]) -> str:
    """Remembered, because a client of S3 takes a tenth of a second, and each Spark task opens the archive."""
    session = boto3.Session(profile_name=access.profile, region_name=access.region)
    client = session.client("s3", **_UNUSED_CREDENTIALS)
    model = client.meta.service_model.operation_model("HeadBucket")
    url: str = client._resolve_endpoint_ruleset(model, {"Bucket": bucket}, {})[0]  # noqa: SLF001 - the only access
    return url


def _role_arguments(access: AwsAccess) -> dict[str, str]:
    external = {"ExternalId": access.role_external_id} if access.role_external_id else {}
    return {"RoleSessionName": access.role_session_name or "leasehold", **external}


def _client(
    service: str, access: AwsAccess, threads: int, *, connect_s: int, read_s: float, attempts: int
) -> Any:
    config = Config(
        connect_timeout=connect_s,
        read_timeout=read_s,
        retries={"mode": "standard", "total_max_attempts": attempts},
        max_pool_connections=threads,
        tcp_keepalive=True,
    )
    try:
        session = aws_session(access)
        options = _local_options(session, access.endpoint_url)
        client = session.client(service, endpoint_url=access.endpoint_url, config=config, **options)
    except NoRegionError as error:
        raise ConfigError(
            f"no region is set for {service}: set AWS_DEFAULT_REGION, the setting region, or a profile that has one; "
            "for a server on this machine, set its endpoint"
        ) from error
    except BotoCoreError as error:
        raise ConfigError(
            f"cannot create a client for {service}: {error}; check region, profile and endpoint"
        ) from error
    skip_interim_responses(client)
    return client


def _local_options(session: boto3.Session, endpoint_url: str | None) -> dict[str, str]:
    """A region and credentials for a server on this machine, if the environment has none."""
    if endpoint_url is None or urlsplit(endpoint_url).hostname not in _LOOPBACK_HOSTS:
        return {}
    options = {} if session.region_name else {"region_name": _LOCAL_REGION}
    if not has_credentials(session):
        options |= {"aws_access_key_id": "local", "aws_secret_access_key": "local"}
    return options
