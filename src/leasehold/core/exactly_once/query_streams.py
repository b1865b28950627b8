"""Decides whether a query may continue its log with the streams that its options name now.

The log and the leases of each stream are independent of those of all others, so a query may read one more stream: the
log says nothing about it, and it begins like a stream of a new query. A query may not drop a stream. The log would
forget how far the stream was read, and a batch that is logged and not committed could not be repeated; a pin of it
would later count as delivered.
"""

from __future__ import annotations

from collections.abc import Set as AbstractSet

from leasehold.core.exactly_once.query_offset import QueryOffset
from leasehold.core.model import StreamIdentifier, have_same_stream_name
from leasehold.errors import ConfigError, RecreatedStreamError

_NEW_LOCATION = (
    "give the query a new checkpoint location: it then continues where the lease table says, and the last batch may be "
    "delivered again (the archive drops it)"
)


def require_same_streams(
    logged: QueryOffset, now: AbstractSet[StreamIdentifier], *, starts_over: bool
) -> frozenset[StreamIdentifier]:
    """Raise an error that names the remedy if the query may not continue with the streams `now`.

    `now` is empty for a query of one stream, whose keys do not name it. With `starts_over`, a stream that was deleted
    and created again replaces the earlier one. Returns these new streams: whatever the options say, the query reads
    them from their oldest record.
    """
    if bool(logged.streams) != bool(now):
        raise ConfigError(_other_kind(now))
    removed = sorted(logged.streams - now)
    recreated = [name for name in removed if any(have_same_stream_name(name, each) for each in now)]
    gone = [name for name in removed if name not in recreated]
    if gone:
        raise ConfigError(
            f"the checkpoint location is that of a query that also reads {', '.join(gone)}, and the options do not "
            "name this stream: name it again; or, to read it no longer, stop the query and " + _NEW_LOCATION
        )
    if recreated and not starts_over:
        raise RecreatedStreamError(
            f"the checkpoint location knows {', '.join(recreated)}, and this stream was deleted and created again. "
            "Nothing was changed. To read the new stream from its oldest record, set onRecreatedStream=start_over and "
            "start the query again; or use another application name and a new checkpoint location"
        )
    return frozenset(each for each in now if any(have_same_stream_name(each, name) for name in recreated))


def _other_kind(now: AbstractSet[StreamIdentifier]) -> str:
    before, given = ("one stream", "several") if now else ("several streams", "a single one")
    # A list of one stream has the keys of several.
    keep_leases = (
        ""
        if now
        else f"or, to read only this one, give it as streams instead of streamName, and {_NEW_LOCATION}; "
    )
    return (
        f"the checkpoint location is that of a query of {before}, and the options name {given}. Their leases have "
        f"different keys, so nothing would be continued: name the streams as before; {keep_leases}or use another "
        "application name and a new checkpoint location, and a startingPosition at which the new query shall begin"
    )
