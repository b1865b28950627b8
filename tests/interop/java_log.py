"""Reads the logs of Java members: their warnings and errors, except those that have nothing to do with us."""

import re
from collections.abc import Iterator
from pathlib import Path

# Messages of the KCL outside AWS, or about its own internals. Each with its reason.
HARMLESS = (
    r"Did not find an operating range metadata provider",  # it is neither on EC2 nor on ECS
    # It caches its list of shards for half a minute, and the shard is newer than that.
    r"Cannot get the shard for this ProcessTask",
    # It assigns leases to a dead worker until the report is a minute old, ours or Java's.
    r"Not able to assign all expiredOrUnAssignedLeases",
    # While it stops it checks the leader once more, after it closed what it needs for that (modes beside 2.x).
    r"LeaderDecider uninitialized",
    # One parent of a merge waits for the lease of the other, which does not exist yet.
    r"has partial parent information in lease table",
    # The same, in one of fifty tries: KCL 1.x then gives the lease to any member, which tries again.
    r"Dropped lease for shutting down ShardConsumer",
    # KCL 1.x takes leases of finished shards too, and another member deleted one before it was read.
    r"Caught exception while fetching checkpoint for",
    r"Dropping metrics \[\] because CloudWatchPublisherRunnable is shutting down",  # there were none; KCL 3.1
    # It releases the lock in the old table this way, to take it in the new one.
    r"Table migration completed",
    # It takes over the lease of a shard that has ended. The leases of the children exist.
    r"Shutting down consumer with SHARD_END reason without creating leases for child shards",
    # KCL 1.x counts leases without an owner as those of a worker without a name, until they expire. Python members
    # release leases this way when they stop. The next run takes them.
    r'because "mostLoadedWorkerIdentifier" is null',
    # KCL 1.x says so at every start; nothing is customized.
    r"LeaderDecider cannot be customized",
    # The operator's rollback deletes the index. For a moment a member still queries it.
    r"does not have the specified index: LeaseOwnerToLeaseKeyIndex",
    # A Java daemon was stopped while it handed a lease over to another Java daemon: it waits for that lease until its
    # time is up.
    r"MultiLangDaemon - Encountered an error during shutdown\.\s+java\.util\.concurrent\.TimeoutException",
    # Fan-out: it gave a shard up, and the end of the subscription arrived after that.
    r"complete called on a cancelled subscription",
    r"Subscriber cancelled before all events were published",
    # The machine was busy.
    r"PING timer scheduled after \d+ms",
)
_HARMLESS = re.compile("|".join(HARMLESS))
_COMPLAINT = re.compile(r" (WARN|ERROR) ")


def complaints(folder: Path) -> list[str]:
    """Every warning and error in the Java logs, except the harmless ones."""
    return [f"{path.stem}: {line}" for path in sorted(folder.glob("*.kcl.log")) for line in _complaints(path)]


def _complaints(path: Path) -> Iterator[str]:
    lines = path.read_text(errors="replace").splitlines()
    for line, cause in zip(lines, [*lines[1:], ""], strict=True):
        if _COMPLAINT.search(line) and not _HARMLESS.search(f"{line}\n{cause}"):
            yield f"{line[:300]} {cause[:300]}"
