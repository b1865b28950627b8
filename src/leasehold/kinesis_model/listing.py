"""ListShards: the six filters, and pages. The token of a page contains the stream and the filter."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from leasehold.core.model import Shard
from leasehold.kinesis_model.api_errors import ErrorType, KinesisApiError, invalid_argument_error
from leasehold.kinesis_model.shard import ShardState
from leasehold.kinesis_model.stream import StreamState
from leasehold.kinesis_model.tokens import decode_token, encode_token

PAGE_DEFAULT: Final = 1_000
PAGE_MAX: Final = 10_000


class FilterType(StrEnum):
    AFTER_SHARD_ID = "AFTER_SHARD_ID"
    AT_TRIM_HORIZON = "AT_TRIM_HORIZON"
    FROM_TRIM_HORIZON = "FROM_TRIM_HORIZON"
    AT_LATEST = "AT_LATEST"
    AT_TIMESTAMP = "AT_TIMESTAMP"
    FROM_TIMESTAMP = "FROM_TIMESTAMP"


@dataclass(frozen=True, slots=True)
class ShardFilter:
    """A filter: AFTER_SHARD_ID needs a shard id, AT_TIMESTAMP and FROM_TIMESTAMP need a time."""

    type: FilterType = FilterType.FROM_TRIM_HORIZON
    shard_id: str | None = None
    timestamp_ms: int | None = None

    def __post_init__(self) -> None:
        needs_shard = self.type is FilterType.AFTER_SHARD_ID
        needs_time = self.type in {FilterType.AT_TIMESTAMP, FilterType.FROM_TIMESTAMP}
        if needs_shard != (self.shard_id is not None):
            raise invalid_argument_error(
                f"ShardFilter {self.type}: AFTER_SHARD_ID needs a ShardId, and no other type takes one."
            )
        if needs_time != (self.timestamp_ms is not None):
            raise invalid_argument_error(
                f"ShardFilter {self.type}: AT_TIMESTAMP and FROM_TIMESTAMP need a Timestamp, and no other type takes "
                "one."
            )


@dataclass(frozen=True, slots=True)
class ListQuery:
    """The rest of a listing: the stream, the filter, and the last shard of the page before."""

    stream_name: str
    filter: ShardFilter = ShardFilter()
    after: str | None = None


@dataclass(frozen=True, slots=True)
class ShardsPage:
    shards: Sequence[Shard]
    next_token: str | None


def select_shards(
    shards: Iterable[ShardState], shard_filter: ShardFilter, horizon_ms: int
) -> list[ShardState]:
    """Return the shards that pass the filter, in the given order. A time before the trim horizon means the horizon."""
    # AWS documents the end as inclusive. The last open millisecond of a shard is the one before `closed_ms`.
    at_ms = max(horizon_ms, shard_filter.timestamp_ms or 0)
    match shard_filter.type:
        case FilterType.AT_LATEST:
            return [shard for shard in shards if shard.is_open]
        case FilterType.AFTER_SHARD_ID:
            return [shard for shard in shards if shard.id > (shard_filter.shard_id or "")]
        case FilterType.AT_TRIM_HORIZON | FilterType.AT_TIMESTAMP:
            return [shard for shard in shards if shard.was_open_at(at_ms)]
        case FilterType.FROM_TRIM_HORIZON | FilterType.FROM_TIMESTAMP:
            return [shard for shard in shards if shard.is_open_after(at_ms)]


def list_shards(stream: StreamState, query: ListQuery, limit: int, now_ms: int) -> ShardsPage:
    """Return the next page of a listing, sorted by shard id, and a token for the rest."""
    stream.trim()
    passing = select_shards(stream.shards.values(), query.filter, stream.horizon_ms)
    rest = [shard for shard in passing if query.after is None or shard.id > query.after]
    page = rest[:limit]
    token = None
    if len(rest) > limit:
        token = _encode_query(ListQuery(query.stream_name, query.filter, page[-1].id), now_ms)
    return ShardsPage([shard.to_shard() for shard in page], token)


def query_from_token(text: str, now_ms: int, lifetime_ms: int) -> ListQuery:
    """Return the rest of a listing: the same stream and filter, after the page that returned the token."""
    fields = decode_token("shards", text)
    if fields is None:
        raise invalid_argument_error(
            "Invalid NextToken: it is damaged, or it does not come from ListShards of this server."
        )
    issued_ms, name, filter_type, shard_id, timestamp_ms, after = fields
    require_fresh_token(int(issued_ms or 0), now_ms, lifetime_ms)
    shard_filter = ShardFilter(
        FilterType(str(filter_type)), _optional_text(shard_id), _optional_number(timestamp_ms)
    )
    return ListQuery(str(name), shard_filter, _optional_text(after))


def require_fresh_token(issued_ms: int, now_ms: int, lifetime_ms: int) -> None:
    if now_ms - issued_ms > lifetime_ms:
        raise KinesisApiError(
            ErrorType.TOKEN_EXPIRED,
            f"NextToken expired. It was issued {now_ms - issued_ms} ms ago and is valid for {lifetime_ms} ms: start "
            "the listing again.",
        )


def _encode_query(query: ListQuery, now_ms: int) -> str:
    shard_filter = query.filter
    return encode_token(
        "shards",
        now_ms,
        query.stream_name,
        shard_filter.type,
        shard_filter.shard_id,
        shard_filter.timestamp_ms,
        query.after,
    )


def _optional_text(field: str | int | None) -> str | None:
    return None if field is None else str(field)


def _optional_number(field: str | int | None) -> int | None:
    return None if field is None else int(field)
