"""New seeds for every commit: each run of the tests also explores what no run has explored before.

The seeds follow from the commit, so a run can be repeated, and all processes of a run draw the same ones.
"""

import hashlib
import subprocess
from pathlib import Path

from leasehold.config.settings import Mode

FRESH_SEEDS = 20  # in each mode
_FIRST_FRESH_SEED = 1_000_000  # the fixed seeds are lower
_UNKNOWN_COMMIT = "unknown"


def current_commit() -> str:
    """The id of the commit that is checked out; the same text for all copies without a repository."""
    command = ["git", "rev-parse", "--verify", "HEAD"]
    try:
        shown = subprocess.run(
            command, cwd=Path(__file__).parent, capture_output=True, text=True, timeout=30, check=False
        )
    except OSError:  # git is not installed
        return _UNKNOWN_COMMIT
    return shown.stdout.strip() if shown.returncode == 0 else _UNKNOWN_COMMIT


def draw_fresh_seeds(commit: str, mode: Mode) -> range:
    """The seeds of a commit in one mode: consecutive, so that one command runs them all."""
    digest = hashlib.sha256(f"{commit} {mode.value}".encode()).digest()
    first = _FIRST_FRESH_SEED + int.from_bytes(digest[:3], "big") * FRESH_SEEDS
    return range(first, first + FRESH_SEEDS)


def repeat_fresh_seeds(commit: str) -> list[str]:
    """The commands that repeat the fresh seeds of a commit."""
    return [
        f"leasehold simulate --seed {draw_fresh_seeds(commit, mode).start} --seeds {FRESH_SEEDS} --mode {mode.value}"
        for mode in (Mode.PEER, Mode.LEADER)
    ]
