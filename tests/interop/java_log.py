"""Reads the logs of Java members: what they complain of, except for what has nothing to do with us."""

import re
from collections.abc import Iterator
from pathlib import Path

# What a KCL says on a machine that is not on AWS, or of its own doings. Each with its reason.
HARMLESS = (
    r"Did not find an operating range metadata provider",  # it is neither on EC2 nor on ECS
    # Its list of shards is cached for half a minute, and the shard is younger than that.
    r"Cannot get the shard for this ProcessTask",
    # A worker that died is taken for a receiver of leases until its report is a minute old, ours or Java's.
    r"Not able to assign all expiredOrUnAssignedLeases",
    # It asks who leads once more while it stops, after it has let go of the answer (modes that live beside 2.x).
    r"LeaderDecider uninitialized",
    # One parent of a merge waits for the lease of the other, which that one's parent has yet to make.
    r"has partial parent information in lease table",
    r"Dropping metrics \[\] because CloudWatchPublisherRunnable is shutting down",  # there were none; KCL 3.1
    # By this it lets go of the lock in the old table, to take it in the new one.
    r"Table migration completed",
)
_HARMLESS = re.compile("|".join(HARMLESS))
_COMPLAINT = re.compile(r" (WARN|ERROR) ")


def complaints(folder: Path) -> list[str]:
    """Every line of every Java log that is a warning or an error, but for the harmless ones."""
    return [f"{path.stem}: {line}" for path in sorted(folder.glob("*.kcl.log")) for line in _complaints(path)]


def _complaints(path: Path) -> Iterator[str]:
    lines = path.read_text(errors="replace").splitlines()
    for line, cause in zip(lines, [*lines[1:], ""], strict=True):
        if _COMPLAINT.search(line) and not _HARMLESS.search(f"{line}\n{cause}"):
            yield f"{line[:300]} {cause[:300]}"
