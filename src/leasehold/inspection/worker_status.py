"""Reads `/health` of running workers. The response is untrusted until parsed."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterable, Mapping
from typing import Any, Final
from urllib.error import HTTPError, URLError
from urllib.parse import urlsplit
from urllib.request import Request, urlopen

from leasehold.errors import ConfigError

TIMEOUT_S: Final = 5
BODY_BYTES_MAX: Final = 4_000_000


def read_worker_problems(addresses: Iterable[str]) -> Mapping[str, tuple[str, ...]]:
    """The problems that these workers report: by lease key, or by address if they are about the whole worker."""
    problems: defaultdict[str, list[str]] = defaultdict(list)
    for address in addresses:
        for key, problem in _problems(address):
            problems[key].append(problem)
    return {key: tuple(found) for key, found in problems.items()}


def _problems(address: str) -> Iterable[tuple[str, str]]:
    parts = urlsplit(address if "://" in address else f"http://{address}")
    if parts.scheme not in {"http", "https"} or not parts.hostname:
        raise ConfigError(f"--status {address}: expected http://host:port, the status address of a worker")
    try:
        report = json.loads(_get_body(f"{parts.scheme}://{parts.netloc}/health"))
    except (URLError, OSError, ValueError) as error:
        return [(address, f"the worker does not answer: {error}")]
    return list(_by_shard(address, report))


def _get_body(url: str) -> bytes:
    request = Request(url, headers={"accept": "application/json"})  # noqa: S310 - the scheme was checked
    try:
        with urlopen(request, timeout=TIMEOUT_S) as response:  # noqa: S310
            body: bytes = response.read(BODY_BYTES_MAX)
    except HTTPError as error:
        if error.code != 503:  # an unhealthy worker answers 503, with its report
            raise
        body = error.read(BODY_BYTES_MAX)
    return body


def _by_shard(address: str, report: Any) -> Iterable[tuple[str, str]]:
    if not isinstance(report, dict) or not isinstance(report.get("problems", []), list):
        yield address, "the response of /health is not that of a Leasehold worker"
        return
    shards = report.get("shards")
    keys = shards if isinstance(shards, dict) else {}
    for problem in report.get("problems", []):
        first, _, rest = str(problem).partition(" ")
        yield (first, rest) if first in keys else (address, str(problem))
