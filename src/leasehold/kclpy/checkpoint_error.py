"""The error of a checkpoint."""

from __future__ import annotations


class CheckpointError(Exception):
    """A checkpoint was not stored. `value` is the name of the KCL's exception, such as ThrottlingException."""

    def __init__(self, value: str) -> None:
        super().__init__(value)
        self.value = value

    def __str__(self) -> str:
        return repr(self.value)
