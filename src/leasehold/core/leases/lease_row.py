"""Converts a lease to a row of the lease table and back, with exactly the attribute names and types of the Java KCL.

Rows are untrusted until parsed. A malformed lease row gives a `MalformedRowError` that names the wrong attribute. No
value is guessed: a wrong guess about a parent or a checkpoint loses records. Rows of other kinds (leader lock,
migration state, worker metrics in the single-table layout) are recognised and skipped.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from decimal import Decimal, InvalidOperation
from typing import Final, NoReturn

from leasehold.core.leases.row_writes import Attribute, Row, number, text, text_set
from leasehold.core.model import (
    Generations,
    HashRange,
    Lease,
    LeaseKey,
    LeaseSessionId,
    Pin,
    ShardId,
    StreamIdentifier,
    WorkerId,
    is_stream_identifier,
    lease_key,
    parse_lease_key,
)
from leasehold.core.position import SUB_SEQUENCE_MAX, Position
from leasehold.core.shards.shard_graph import format_shard_ids
from leasehold.errors import ConfigError, InvalidPositionError, MalformedRowError

KEY: Final = "leaseKey"
ENTITY_TYPE: Final = "entityType"
OWNER: Final = "leaseOwner"
COUNTER: Final = "leaseCounter"
OWNER_SWITCHES: Final = "ownerSwitchesSinceCheckpoint"
CHECKPOINT: Final = "checkpoint"
CHECKPOINT_SUB: Final = "checkpointSubSequenceNumber"
PENDING: Final = "pendingCheckpoint"
PENDING_SUB: Final = "pendingCheckpointSubSequenceNumber"
PENDING_STATE: Final = "pendingCheckpointState"
PARENTS: Final = "parentShardId"  # a set, although the KCL's name is singular
CHILDREN: Final = "childShardIds"
HASH_START: Final = "startingHashKey"
HASH_END: Final = "endingHashKey"
THROUGHPUT: Final = "throughputKBps"
CHECKPOINT_OWNER: Final = "checkpointOwner"
STREAM: Final = "streamName"  # account:stream:epoch, not the name
SHARD: Final = "shardId"
# Our own attributes. Java members never change attributes that they do not know.
GENERATIONS: Final = "leaseholdGenerations"
LATEST_AT: Final = "leaseholdLatestAt"
NUDGE: Final = "leaseholdNudge"
SESSION: Final = "leaseholdSession"

LEASE_ENTITY: Final = "LEASE"
_LEASE_ATTRIBUTES: Final = frozenset(
    {
        *(OWNER, COUNTER, OWNER_SWITCHES, CHECKPOINT, CHECKPOINT_SUB, CHECKPOINT_OWNER, THROUGHPUT),
        *(PENDING, PENDING_SUB, PENDING_STATE, PARENTS, CHILDREN, HASH_START, HASH_END, STREAM, SHARD),
        *(LATEST_AT, NUDGE, SESSION),
    }
)

# Java stores numbers in 64 bits.
NUMBER_MAX: Final = 2**63 - 1
# A lease whose counter has reached this is not written any more. So a row that can be parsed can be parsed after each
# of our writes. The distance to NUMBER_MAX is for writes that increment a counter without knowing its value. No
# fleet comes here: with a heartbeat a second, it takes a hundred billion years.
COUNTER_LIMIT: Final = 2**62
TEXT_LENGTH_MAX: Final = 2048  # DynamoDB's limit for a partition key
CHILDREN_MAX: Final = 2
# A shard has at most two parents. But a lease may also wait for all archived shards that ended before it, as many as
# the stream had. Their ids fit into a row of DynamoDB.
PARENTS_MAX: Final = 10_000

_SHARD_ID: Final = re.compile(r"[A-Za-z0-9_.-]{1,128}")
_INTEGER: Final = re.compile(r"-?[0-9]{1,40}")
_HASH_KEY: Final = re.compile(r"[0-9]{1,39}")
_GENERATION: Final = re.compile(r"([0-9a-f]{1,64}):([0-9]{1,18})")
# Kinesis and all known emulators name shards so. A shard of another name is recognised by the attributes of its row.
_LEASE_KEY: Final = re.compile(r"(?s:.*:)?shardId-[A-Za-z0-9_.-]+")
_CONTROL: Final = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029\ud800-\udfff]")


def is_lease_row(row: Row) -> bool:
    """Whether the row claims to be a lease: `entityType` is LEASE, or missing as before KCL 3.5."""
    return ENTITY_TYPE not in row or row[ENTITY_TYPE].get("S") == LEASE_ENTITY


def may_be_lease(row: Row) -> bool:
    """Whether a row that cannot be parsed may be a damaged lease, and not a row of another program.

    It may be one if it claims to be one (`entityType`), if its key ends in a shard id, or if it has an attribute of a
    lease. A row of any other kind in the table, such as a note of an operator, is left alone.

    >>> may_be_lease({"leaseKey": {"S": "note"}, "text": {"S": "do not delete"}})
    False
    >>> may_be_lease({"leaseKey": {"S": "shardId-000000000003"}})
    True
    """
    key = row.get(KEY, {}).get("S", "")
    names_shard = isinstance(key, str) and _LEASE_KEY.fullmatch(key) is not None
    return ENTITY_TYPE in row or names_shard or not _LEASE_ATTRIBUTES.isdisjoint(row)


def lease_from_row(row: Row) -> Lease:
    """Parses the row of a lease. Raises MalformedRowError with the name of the wrong attribute."""
    cells = _Cells(row)
    stream, shard_id = _stream_and_shard(cells)
    return Lease(
        key=LeaseKey(cells.key),
        shard_id=shard_id,
        checkpoint=cells.position(CHECKPOINT, CHECKPOINT_SUB),
        counter=cells.integer(COUNTER, at_most=NUMBER_MAX),
        owner=cells.worker(OWNER),
        checkpoint_owner=cells.worker(CHECKPOINT_OWNER),
        owner_switches=cells.integer(OWNER_SWITCHES, at_most=NUMBER_MAX),
        pin=_pin(cells),
        parents=_parents(cells, shard_id),
        children=cells.shard_ids(CHILDREN, CHILDREN_MAX),
        hash_range=_hash_range(cells),
        throughput_kbps=cells.decimal(THROUGHPUT),
        stream=stream,
        session=LeaseSessionId(cells.text(SESSION)) if SESSION in row else None,
        latest_at_ms=cells.integer(LATEST_AT, at_most=NUMBER_MAX) if LATEST_AT in row else None,
        nudge=_nudge(row),
        generations=_generations(row),
    )


def lease_to_row(lease: Lease) -> Row:
    """The row of a new lease. A missing value is a missing attribute, never NULL or an empty string."""
    row: dict[str, Attribute] = {
        KEY: text(lease.key),
        ENTITY_TYPE: text(LEASE_ENTITY),
        COUNTER: number(lease.counter),
        OWNER_SWITCHES: number(lease.owner_switches),
        CHECKPOINT: text(lease.checkpoint.sequence_number),
        CHECKPOINT_SUB: number(lease.checkpoint.sub_sequence_number),
    }
    if lease.parents:
        row[PARENTS] = text_set(lease.parents)
    if lease.children:
        row[CHILDREN] = text_set(lease.children)
    if lease.hash_range:
        row[HASH_START] = text(str(lease.hash_range.start))
        row[HASH_END] = text(str(lease.hash_range.end))
    if lease.stream:
        row[STREAM] = text(lease.stream)
        row[SHARD] = text(lease.shard_id)
    if lease.latest_at_ms is not None:
        row[LATEST_AT] = number(lease.latest_at_ms)
    assert lease.owner is None, "a lease is created without an owner"
    assert lease.pin is None, "a lease is created without a pin"
    return row


def is_valid_text(value: str) -> bool:
    """Whether a row with this text can be parsed. An owner that writes another text could not read its own lease.

    >>> is_valid_text("host-1:4711"), is_valid_text(""), is_valid_text("host" + chr(10))
    (True, False, False)
    """
    return 0 < len(value) <= TEXT_LENGTH_MAX and not _CONTROL.search(value)


def require_room_in_counter(lease: Lease) -> None:
    """Raise an error if the counter of the lease must not be incremented any more."""
    if lease.counter >= COUNTER_LIMIT:
        raise MalformedRowError(
            lease.key,
            f"{COUNTER}: {lease.counter} is too large to be incremented; set it to 0 while no member runs, "
            "or repair or delete the row",
        )


@dataclass(frozen=True, slots=True)
class LeaseListing:
    """The result of a scan: the leases, an error for each malformed lease row, and one for each row that is no lease.

    A row in `ignored` has no `entityType` either, but nothing else of a lease. `rejected_generations` are those of the
    rejected rows: they show which batches of a query were delivered, although nothing else of the row is known.
    """

    leases: tuple[Lease, ...]
    rejected: tuple[MalformedRowError, ...] = ()
    ignored: tuple[MalformedRowError, ...] = ()
    rejected_generations: tuple[tuple[LeaseKey, Generations], ...] = ()

    def of_stream(self, stream: StreamIdentifier | None) -> tuple[Lease, ...]:
        """The leases of one stream; None: of the only stream of its table."""
        return tuple(lease for lease in self.leases if lease.stream == stream)

    def unreadable_shards(self, stream: StreamIdentifier | None) -> frozenset[ShardId]:
        """The shards of a stream whose rows cannot be read.

        The key of a row is the key of its lease, so a malformed row can be the lease of one shard only.
        """
        keys = (parse_lease_key(LeaseKey(error.key)) for error in self.rejected)
        return frozenset(shard for named, shard in keys if named == stream)


def leases_from_rows(rows: Iterable[Row]) -> LeaseListing:
    """Parses every lease row. A row that is malformed or cannot be written is rejected with an error; the other rows
    are still read.
    """
    leases: dict[LeaseKey, Lease] = {}
    rejected: list[MalformedRowError] = []
    ignored: list[MalformedRowError] = []
    generations: dict[LeaseKey, Generations] = {}
    for row in rows:
        if not is_lease_row(row):
            continue
        try:
            lease = lease_from_row(row)
            require_room_in_counter(lease)
        except MalformedRowError as error:
            (rejected if may_be_lease(row) else ignored).append(error)
            if may_be_lease(row):
                generations[LeaseKey(error.key)] = _generations(row)
        else:
            leases[lease.key] = lease
            generations[lease.key] = lease.generations
    rejected += _remove_cycles(leases)
    of_rejected = ((key, each) for key, each in generations.items() if each and key not in leases)
    return LeaseListing(tuple(leases.values()), tuple(rejected), tuple(ignored), tuple(of_rejected))


def _remove_cycles(leases: dict[LeaseKey, Lease]) -> list[MalformedRowError]:
    """Removes leases that are their own ancestors. They would wait for each other for ever."""
    cyclic = _find_cycles(leases)
    if not cyclic:
        return []
    shards = format_shard_ids(sorted(leases[key].shard_id for key in cyclic))
    problem = f"{PARENTS}: {shards} are their own ancestors"
    for key in cyclic:
        del leases[key]
    return [MalformedRowError(key, f"{problem}; repair or delete the row") for key in sorted(cyclic)]


def _find_cycles(leases: dict[LeaseKey, Lease]) -> set[LeaseKey]:
    """The leases between which parents form a cycle.

    Repeatedly removes leases without a parent, then repeatedly those without a child. Only cycles, and the paths
    between them, remain.
    """
    parents = {
        key: {parent for shard in lease.parents if (parent := lease_key(shard, lease.stream)) in leases}
        for key, lease in leases.items()
    }
    children: dict[LeaseKey, set[LeaseKey]] = {key: set() for key in leases}
    for key, its_parents in parents.items():
        for parent in its_parents:
            children[parent].add(key)
    for up, down in ((parents, children), (children, parents)):
        removable = [key for key in up if not up[key]]
        while removable:
            key = removable.pop()
            for other in down.pop(key):
                up[other].discard(key)
                if not up[other]:
                    removable.append(other)
            del up[key]
    return set(parents)


def _stream_and_shard(cells: _Cells) -> tuple[StreamIdentifier | None, ShardId]:
    """The stream and shard of a lease. The key must agree with the attributes."""
    if STREAM not in cells.row and SHARD not in cells.row:
        return None, cells.shard_id(KEY, cells.key)
    stream = cells.text(STREAM)
    if not is_stream_identifier(stream):
        cells.fail(STREAM, f"{stream!r} is not account:stream:epoch")
    identifier = StreamIdentifier(stream)
    shard_id = cells.shard_id(SHARD, cells.text(SHARD))
    if lease_key(shard_id, identifier) != cells.key:
        cells.fail(KEY, f"the attributes say {lease_key(shard_id, identifier)!r}")
    return identifier, shard_id


def _pin(cells: _Cells) -> Pin | None:
    if PENDING not in cells.row:
        return None
    # A known bug of Java may leave a number here. It contains no state, see docs/algorithm.md.
    state = cells.row.get(PENDING_STATE, {})
    if state and "B" not in state and "N" not in state:
        cells.fail(PENDING_STATE, "expected type B")
    return Pin(cells.position(PENDING, PENDING_SUB), bytes(state["B"]) if "B" in state else None)


def _nudge(row: Row) -> str | None:
    """The last nudge. It is only compared with the one before, so every text is valid."""
    nudge = row.get(NUDGE, {}).get("S")
    return nudge if isinstance(nudge, str) else None


def generations_to_text(generations: Iterable[tuple[str, int]]) -> str:
    """The text of `leaseholdGenerations`.

    >>> generations_to_text([("00c0ffee", 7), ("0badcafe", 12)])
    '00c0ffee:7 0badcafe:12'
    """
    return " ".join(f"{query_id}:{number}" for query_id, number in generations)


def _generations(row: Row) -> Generations:
    """The generations in the row. A text in another form has none: it must not stop a fleet that has no query."""
    value = row.get(GENERATIONS, {}).get("S")
    if not isinstance(value, str) or len(value) > TEXT_LENGTH_MAX:
        return ()
    found = [_GENERATION.fullmatch(each) for each in value.split(" ")]
    return tuple((each[1], int(each[2])) for each in found if each is not None)


def _parents(cells: _Cells, shard_id: ShardId) -> frozenset[ShardId]:
    parents = cells.shard_ids(PARENTS, PARENTS_MAX)
    if shard_id in parents:
        cells.fail(PARENTS, "the shard is its own parent")
    return parents


def _hash_range(cells: _Cells) -> HashRange | None:
    """The hash range; None if an end is missing or empty, as in Java."""
    ends = [cells.row.get(name, {}).get("S", "") for name in (HASH_START, HASH_END)]
    if not all(ends):
        return None
    for name, end in zip((HASH_START, HASH_END), ends, strict=True):
        if not _HASH_KEY.fullmatch(end):
            cells.fail(name, f"{end[:48]!r} is not a hash key")
    try:
        return HashRange(int(ends[0]), int(ends[1]))
    except ConfigError as error:
        cells.fail(HASH_START, str(error))


class _Cells:
    """Typed access to the attributes of a row. Errors name the row and the attribute."""

    def __init__(self, row: Row) -> None:
        self.row = row
        # Also a malformed key names its row in errors and events. Everything that shows it escapes it.
        key = row.get(KEY, {}).get("S")
        self.key = key[:TEXT_LENGTH_MAX] if isinstance(key, str) else ""
        self.text(KEY)

    def fail(self, name: str, problem: str) -> NoReturn:
        raise MalformedRowError(self.key, f"{name}: {problem}; repair or delete the row")

    def text(self, name: str) -> str:
        value = self.row.get(name, {}).get("S")
        if not isinstance(value, str) or not value:
            self.fail(name, "expected text (type S, not empty)")
        if len(value) > TEXT_LENGTH_MAX:
            self.fail(name, f"{len(value)} characters are more than {TEXT_LENGTH_MAX}")
        if _CONTROL.search(value):
            self.fail(name, "contains control characters")
        return value

    def worker(self, name: str) -> WorkerId | None:
        # A NULL or "" is malformed: for conditional writes the attribute exists, so the lease is not free.
        return WorkerId(self.text(name)) if name in self.row else None

    def integer(self, name: str, *, at_most: int, default: int | None = None) -> int:
        if name not in self.row and default is not None:
            return default
        digits = self.row.get(name, {}).get("N")
        if not isinstance(digits, str) or not _INTEGER.fullmatch(digits):
            self.fail(name, "expected an integer (type N)")
        if not 0 <= int(digits) <= at_most:
            self.fail(name, f"{digits} is outside 0..{at_most}")
        return int(digits)

    def decimal(self, name: str) -> Decimal | None:
        if name not in self.row:
            return None
        digits = self.row[name].get("N")
        try:
            value = Decimal(digits) if isinstance(digits, str) else Decimal("NaN")
        except InvalidOperation:
            value = Decimal("NaN")
        if not value.is_finite() or value < 0:
            self.fail(name, "expected a number that is not negative (type N)")
        return value

    def position(self, name: str, sub_name: str) -> Position:
        sub = self.integer(sub_name, at_most=SUB_SEQUENCE_MAX, default=0)
        try:
            return Position(self.text(name), sub)
        except InvalidPositionError as error:
            self.fail(name, str(error))

    def shard_id(self, name: str, value: str) -> ShardId:
        if not _SHARD_ID.fullmatch(value):
            self.fail(name, f"{value[:140]!r} is not a shard id")
        return ShardId(value)

    def shard_ids(self, name: str, count_max: int) -> frozenset[ShardId]:
        """A set of shard ids. Java reads a list or a text as an empty set, and so starts a child too early."""
        if name not in self.row:
            return frozenset()
        values = self.row[name].get("SS")
        if not isinstance(values, list | tuple | set | frozenset) or not values:
            self.fail(name, "expected a set of shard ids (type SS)")
        if len(values) > count_max:
            self.fail(name, f"has {len(values)} shards; expected at most {count_max}")
        return frozenset(self.shard_id(name, value) for value in values)
