"""Lists the streams of an account by prefix and tag, and opens them with one client.

ListStreams returns 100 streams a call, with their creation times. Tags need one call a stream, and an account may make
only five of them a second. So tags are remembered: a listing reads those of new streams, and a few of the others again.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping
from datetime import UTC, datetime, timedelta
from typing import Any, Final

from botocore.exceptions import BotoCoreError, ClientError

from leasehold.adapters.aws.blocking import BlockingCalls
from leasehold.adapters.aws.call_counts import KinesisCalls
from leasehold.adapters.aws.error_translation import translate_error
from leasehold.adapters.aws.kinesis_stream import KinesisStream
from leasehold.config.connection import KinesisProtocol
from leasehold.core.model import StreamIdentifier, is_stream_identifier, stream_identifier
from leasehold.errors import NotFoundError, ServiceError, ThrottledError
from leasehold.ports import Stream, StreamDirectory, StreamFilter

# Of streams whose tags are known, this many are read again in each listing, the ones read longest ago first.
TAGS_REREAD_MAX: Final = 10
_READABLE: Final = frozenset({"ACTIVE", "UPDATING"})
_THROTTLED_PAUSES_S: Final = (1, 2, 4, 8)
_INCOMPLETE: Final = (
    "list of streams, list_streams: the response lacks the ARN, status or creation time of streams, which AWS returns; "
    "name the streams in `streams`, or let a function return their names"
)
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)


class KinesisDirectory(StreamDirectory):
    """The streams that a boto3 client reaches. The client belongs to the caller."""

    def __init__(
        self,
        client: Any,
        protocol: KinesisProtocol = KinesisProtocol.AUTO,
        calls: KinesisCalls | None = None,
    ) -> None:
        self._client = client
        self._protocol = protocol
        self._counted = calls or KinesisCalls()
        self._calls = BlockingCalls("kinesis-directory", threads=1)
        self._tags: dict[StreamIdentifier, Mapping[str, str]] = {}  # the ones read longest ago first

    async def list_streams(self, which: StreamFilter) -> Mapping[str, StreamIdentifier]:
        """All pages of the list, filtered by prefix and tag."""
        found = {
            name: identifier
            for name, identifier in (await self._list_all()).items()
            if name.startswith(which.prefix)
        }
        if not which.tag:
            return found
        await self._read_tags(found)
        return {
            name: identifier
            for name, identifier in found.items()
            if which.matches_tags(self._tags[identifier])
        }

    def open_stream(self, name: str, identifier: StreamIdentifier | None = None) -> Stream:
        """Open a stream. With an identifier, its creation time need not be read."""
        if is_stream_identifier(name):
            name, identifier = name.split(":")[1], StreamIdentifier(name)
        return KinesisStream(
            self._client, name, identifier=identifier, protocol=self._protocol, calls=self._counted
        )

    async def close(self) -> None:
        """Close our own thread."""
        self._calls.close()

    async def _list_all(self) -> dict[str, StreamIdentifier]:
        found: dict[str, StreamIdentifier] = {}
        request: dict[str, Any] = {}
        while True:
            response = await self._call(self._client.list_streams, **request)
            summaries = response.get("StreamSummaries", ())
            if len(summaries) < len(response.get("StreamNames", ())):
                # Otherwise a server without summaries would seem to have no streams, and all would be given back.
                raise ServiceError(_INCOMPLETE)
            found |= _readable_streams(summaries)
            if not response.get("HasMoreStreams") or not summaries:
                return found
            request = {"ExclusiveStartStreamName": summaries[-1]["StreamName"]}

    async def _read_tags(self, found: Mapping[str, StreamIdentifier]) -> None:
        """Read the tags of all streams that are new, and some of those that are known again."""
        names = {identifier: name for name, identifier in found.items()}
        self._tags = {each: tags for each, tags in self._tags.items() if each in names}
        again = list(self._tags)[:TAGS_REREAD_MAX]
        for identifier in [each for each in names if each not in self._tags] + again:
            try:
                tags = await self._tags_of(names[identifier])
            except NotFoundError:
                tags = {}  # deleted since it was listed
            self._tags.pop(identifier, None)
            self._tags[identifier] = tags  # now the last one

    async def _tags_of(self, name: str) -> Mapping[str, str]:
        tags: dict[str, str] = {}
        request: dict[str, Any] = {"StreamName": name}
        while True:
            response = await self._call_patiently(self._client.list_tags_for_stream, **request)
            page = {each["Key"]: each.get("Value", "") for each in response.get("Tags", ())}
            tags |= page
            if not response.get("HasMoreTags") or not page:
                return tags
            request["ExclusiveStartTagKey"] = list(page)[-1]

    async def _call_patiently(self, call: Callable[..., Any], **request: Any) -> Any:
        """Retry a call while the account makes too many. The tags of hundreds of new streams take minutes."""
        for pause_s in _THROTTLED_PAUSES_S:
            try:
                return await self._call(call, **request)
            except ThrottledError:
                await asyncio.sleep(pause_s)
        return await self._call(call, **request)

    async def _call(self, call: Callable[..., Any], **request: Any) -> Any:
        try:
            answer = await self._calls.run(call, **request)
        except (ClientError, BotoCoreError) as error:
            translated = translate_error(error, f"list of streams, {call.__name__}")
            self._counted.add(call.__name__, translated)
            raise translated from error
        self._counted.add(call.__name__)
        return answer


def _readable_streams(summaries: Iterable[Mapping[str, Any]]) -> dict[str, StreamIdentifier]:
    try:
        return {
            each["StreamName"]: _identifier(each) for each in summaries if each["StreamStatus"] in _READABLE
        }
    except (KeyError, IndexError, TypeError) as error:
        raise ServiceError(_INCOMPLETE) from error


def _identifier(summary: Mapping[str, Any]) -> StreamIdentifier:
    account = summary["StreamARN"].split(":")[4]
    created_s = (summary["StreamCreationTimestamp"] - _EPOCH) // timedelta(seconds=1)
    return stream_identifier(account, summary["StreamName"], created_s)
