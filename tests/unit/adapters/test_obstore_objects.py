"""An S3 store whose server loses requests and responses, refuses, and breaks off."""

import asyncio
from collections.abc import Callable, Coroutine, Iterator
from pathlib import Path
from typing import Any

import pytest

from leasehold.adapters.aws.clients import AwsAccess
from leasehold.adapters.obstore_objects import open_object_store
from leasehold.archive.rows import PinnedRange
from leasehold.core.exactly_once.object_keys import key_from_text
from leasehold.errors import ConfigError, ServiceError, UnavailableError
from leasehold.ports import Created, Exists, ObjectStore
from tests.unit.adapters.scripted_s3 import PAGE_SIZE, ScriptedS3, Trouble, scripted_s3
from tests.unit.archive.archive_world import A, archive_on, records, table

MORE_THAN_OBSTORE_RETRIES = 4
BODY = b"body" * 1_000


@pytest.fixture
def s3(monkeypatch: pytest.MonkeyPatch) -> Iterator[ScriptedS3]:
    """A server."""
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    with scripted_s3() as server:
        yield server


@pytest.fixture
def store(s3: ScriptedS3) -> ObjectStore:
    """The store on this server."""
    access = AwsAccess(endpoint_url=s3.url, region="us-east-1")
    return open_object_store("s3://bucket/x", access, setting="url", extra="archive")


async def _list(store: ObjectStore) -> list[str]:
    return [each.key async for page in store.list_after("") for each in page]


CALLS: dict[str, Callable[[ObjectStore], Coroutine[Any, Any, object]]] = {
    "put": lambda store: store.put_if_absent("new", BODY),
    "get": lambda store: store.get("k0"),
    "head": lambda store: store.size("k0"),
    "list": _list,
}
RESULTS = {"put": Created(), "get": BODY, "head": len(BODY), "list": ["k0", "k1", "k2", "k3", "k4"]}


@pytest.mark.parametrize("call", CALLS)
@pytest.mark.parametrize("trouble", [Trouble.CUT, 500, 503])
def test_one_failure_is_retried(
    s3: ScriptedS3, store: ObjectStore, call: str, trouble: Trouble | int
) -> None:
    """Obstore retries, and the result is that of the retry."""
    s3.objects = {f"x/k{number}": BODY for number in range(5)}
    s3.troubles = [trouble]
    assert asyncio.run(CALLS[call](store)) == RESULTS[call]


@pytest.mark.parametrize("call", CALLS)
@pytest.mark.parametrize("trouble", [Trouble.CUT, 503])
def test_repeated_failures_are_an_error_that_can_be_retried(
    s3: ScriptedS3, store: ObjectStore, call: str, trouble: Trouble | int
) -> None:
    """The error names the operation and the location. The next call succeeds."""
    s3.objects = {f"x/k{number}": BODY for number in range(5)}
    s3.troubles = [trouble] * MORE_THAN_OBSTORE_RETRIES
    with pytest.raises(UnavailableError, match=rf"^{call} (.* in )?s3://bucket/x: "):
        asyncio.run(CALLS[call](store))
    assert asyncio.run(CALLS[call](store)) == RESULTS[call]


@pytest.mark.parametrize("call", CALLS)
@pytest.mark.parametrize("status", [401, 403])
def test_missing_permissions_are_not_retried(
    s3: ScriptedS3, store: ObjectStore, call: str, status: int
) -> None:
    """The error says what to check."""
    s3.objects = {"x/k0": BODY}
    s3.troubles = [status]
    with pytest.raises(ServiceError, match="check the credentials and the permissions") as caught:
        asyncio.run(CALLS[call](store))
    assert not isinstance(caught.value, UnavailableError)
    assert len(s3.requests) == 1


def test_a_put_whose_response_was_lost_is_reported_as_existing(s3: ScriptedS3, store: ObjectStore) -> None:
    """The client repeats the request, and S3 refuses it because of the first one."""
    s3.troubles = [Trouble.RESPONSE_LOST]
    assert asyncio.run(store.put_if_absent("new", BODY)) == Exists()
    assert s3.objects == {"x/new": BODY}


def test_a_large_object_is_one_request(s3: ScriptedS3, store: ObjectStore) -> None:
    """An upload in several parts would replace an existing object."""
    large = bytes(12 * 1024 * 1024)
    assert asyncio.run(store.put_if_absent("new", large)) == Created()
    assert s3.requests == ["PUT x/new"]


@pytest.mark.parametrize("status", [409, 412])
def test_a_put_that_lost_a_race_is_reported_as_existing(
    s3: ScriptedS3, store: ObjectStore, status: int
) -> None:
    """S3 may refuse it before another put has created the object. So the archive asks for the object's size."""
    s3.troubles = [status]
    assert asyncio.run(store.put_if_absent("new", BODY)) == Exists()
    assert asyncio.run(store.size("new")) is None


def test_a_store_that_cannot_create_objects_only_if_absent_is_refused(s3: ScriptedS3) -> None:
    """A plain HTTP server is such a store. Nothing is sent to it."""
    store = open_object_store(f"{s3.url}/bucket", AwsAccess(), setting="url", extra="archive")
    with pytest.raises(ServiceError, match="needs a store that creates objects only if absent") as caught:
        asyncio.run(store.put_if_absent("new", BODY))
    assert not isinstance(caught.value, UnavailableError)
    assert s3.requests == []


@pytest.mark.parametrize("call", ["get", "list"])
def test_a_response_that_breaks_off_is_an_error(s3: ScriptedS3, store: ObjectStore, call: str) -> None:
    """Half of an object or of a page is never returned."""
    s3.objects = {f"x/k{number}": BODY for number in range(5)}
    s3.troubles = [Trouble.HALF_BODY]
    with pytest.raises(UnavailableError, match=f"^{call} "):
        asyncio.run(CALLS[call](store))
    assert asyncio.run(CALLS[call](store)) == RESULTS[call]


def test_a_listing_that_fails_at_a_later_page_is_an_error(s3: ScriptedS3, store: ObjectStore) -> None:
    """A part of the objects is never returned as if it were all of them."""
    s3.objects = {f"x/k{number}": BODY for number in range(2 * PAGE_SIZE)}
    s3.troubles = [None, *[503] * MORE_THAN_OBSTORE_RETRIES]
    with pytest.raises(UnavailableError, match=r"^list "):
        asyncio.run(_list(store))


@pytest.mark.parametrize("trouble", [Trouble.CUT, Trouble.RESPONSE_LOST, Trouble.HALF_BODY, 409, 412, 503])
@pytest.mark.parametrize("before", range(5))
def test_an_archive_survives_trouble_at_any_request(
    s3: ScriptedS3, store: ObjectStore, trouble: Trouble | int, before: int
) -> None:
    """The requests of a first range: marker, listing and two objects. Every record is in one complete object."""
    s3.troubles = [*[None] * before, *[trouble] * MORE_THAN_OBSTORE_RETRIES]
    rows = table(records([1, 2, 3], minute=lambda number: 10 + number // 3))
    report = asyncio.run(archive_on(store).write([PinnedRange(A, "one", rows)]))
    assert report.rows + report.already_there_rows + report.dropped_rows == 3
    other = asyncio.run(archive_on(store).write([PinnedRange(A, "two", rows)]))
    assert (other.objects, other.dropped_rows) == (0, 3)
    assert len([key for key in s3.objects if key_from_text(key, "x")]) == 2


def test_credentials_that_no_header_can_hold_are_refused(
    s3: ScriptedS3, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The library would end the thread with a panic, which is no `Exception`."""
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "AKIDEXAMPLE")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "secret")
    monkeypatch.setenv("AWS_SESSION_TOKEN", "SECRET\r\n")
    access = AwsAccess(endpoint_url=s3.url, region="us-east-1")
    store = open_object_store("s3://bucket/x", access, setting="url", extra="archive")
    with pytest.raises(ServiceError, match="session token of the AWS credentials") as refused:
        asyncio.run(store.get("k0"))
    assert "SECRET" not in str(refused.value)


@pytest.mark.parametrize(("profile", "problem"), [("nobody", "nobody"), (None, "locate credentials")])
def test_a_missing_profile_or_credentials_are_config_errors(
    monkeypatch: pytest.MonkeyPatch, profile: str | None, problem: str
) -> None:
    """As for the clients of the streams and leases. The error names the remedy."""
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_PROFILE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    for name in ("AWS_CONFIG_FILE", "AWS_SHARED_CREDENTIALS_FILE"):
        monkeypatch.setenv(name, "/dev/null")
    access = AwsAccess(profile=profile, region="eu-west-1")
    with pytest.raises(ConfigError, match=rf"url='s3://bucket/x': .*{problem}.*as for any AWS tool"):
        open_object_store("s3://bucket/x", access, setting="url", extra="archive")


@pytest.mark.parametrize("url", ["ftp://host/x", "s3://", "s3:///x", "", " ", "bucket://x", "gs://"])
def test_a_url_that_names_no_store_is_refused(url: str) -> None:
    with pytest.raises(ConfigError, match="expected s3://bucket/prefix, gs://bucket/prefix"):
        open_object_store(url, AwsAccess(), setting="url", extra="archive", make_folder=False)


@pytest.mark.parametrize("make_folder", [True, False])
def test_a_file_is_not_taken_for_a_missing_folder(tmp_path: Path, make_folder: bool) -> None:
    """The rights of the user are not the cause."""
    file = tmp_path / "object"
    file.write_bytes(b"")
    with pytest.raises(ConfigError) as refused:
        open_object_store(str(file), AwsAccess(), setting="url", extra="archive", make_folder=make_folder)
    remedy = "check the path, or choose another one" if make_folder else "check the path"
    assert str(refused.value) == f"url={str(file)!r}: {file} is a file, not a folder; {remedy}"


def test_a_reader_is_not_told_to_create_the_folder(tmp_path: Path) -> None:
    missing = tmp_path / "typo"
    with pytest.raises(ConfigError) as refused:
        open_object_store(str(missing), AwsAccess(), setting="url", extra="archive", make_folder=False)
    assert str(refused.value) == f"url={str(missing)!r}: the folder {missing} does not exist; check the path"
