"""Which shards a ListShards call names: the six filters, and paging by a token that stands alone."""

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
    """A filter with what it needs: a shard id for AFTER_SHARD_ID, a time for the two timestamps."""

    type: FilterType = FilterType.FROM_TRIM_HORIZON
    shard_id: str | None = None
    timestamp_ms: int | None = None

    def __post_init__(self) -> None:
        wants_shard = self.type is FilterType.AFTER_SHARD_ID
        wants_time = self.type in {FilterType.AT_TIMESTAMP, FilterType.FROM_TIMESTAMP}
        if wants_shard != (self.shard_id is not None):
            raise invalid_argument_error(
                f"ShardFilter {self.type}: a ShardId goes with AFTER_SHARD_ID, and only with it."
            )
        if wants_time != (self.timestamp_ms is not None):
            raise invalid_argument_error(
                f"ShardFilter {self.type}: a Timestamp goes with AT_TIMESTAMP and FROM_TIMESTAMP, and only with them."
            )


@dataclass(frozen=True, slots=True)
class ListQuery:
    """What is left of a listing: the stream, the filter, and the last shard already named."""

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
    """The shards that pass the filter, in the order given. Times before the trim horizon count as the horizon."""
    # The service documents the end as inclusive. A shard's last open millisecond is the one before it closed.
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
    """The next shards of a listing, by id, and a token for the rest."""
    stream.trim()
    passing = select_shards(stream.shards.values(), query.filter, stream.horizon_ms)
    rest = [shard for shard in passing if query.after is None or shard.id > query.after]
    page = rest[:limit]
    token = None
    if len(rest) > limit:
        token = _token(ListQuery(query.stream_name, query.filter, page[-1].id), now_ms)
    return ShardsPage([shard.to_shard() for shard in page], token)


def query_from_token(text: str, now_ms: int, lifetime_ms: int) -> ListQuery:
    """What a token stands for: the same stream and the same filter, from where the last page ended."""
    fields = decode_token("shards", text)
    if fields is None:
        raise invalid_argument_error(
            "Invalid NextToken: it did not come from ListShards of this server, or is damaged."
        )
    issued_ms, name, filter_type, shard_id, timestamp_ms, after = fields
    require_fresh_token(int(issued_ms or 0), now_ms, lifetime_ms)
    shard_filter = ShardFilter(FilterType(str(filter_type)), _text(shard_id), _number(timestamp_ms))
    return ListQuery(str(name), shard_filter, _text(after))


def require_fresh_token(issued_ms: int, now_ms: int, lifetime_ms: int) -> None:
    if now_ms - issued_ms > lifetime_ms:
        raise KinesisApiError(
            ErrorType.TOKEN_EXPIRED,
            f"NextToken expired. It was issued {now_ms - issued_ms} ms ago and lives {lifetime_ms} ms: begin the "
            "listing anew.",
        )


def _token(query: ListQuery, now_ms: int) -> str:
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


def _text(field: str | int | None) -> str | None:
    return None if field is None else str(field)


def _number(field: str | int | None) -> int | None:
    return None if field is None else int(field)
