"""Finds the native decoder: the package leasehold-native, which decodes records to Arrow columns.

It is used if it and pyarrow are installed, unless the environment variable LEASEHOLD_NATIVE is 0. The results are the
same with and without it. pyarrow is imported for the first large page, because it needs as much memory as all the rest
of an idle worker.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from typing import Any, Final

from leasehold.core.record import Record

VARIABLE: Final = "LEASEHOLD_NATIVE"
_LOGGER: Final = logging.getLogger("leasehold.native")


@dataclass(frozen=True, slots=True)
class NativeDecoder:
    """The functions of the package. Both raise a ValueError for invalid content."""

    decode_page: Callable[..., Any]
    decode_event: Callable[..., Any]

    def to_sequence(self, page: Any) -> Sequence[Record]:
        """The records of a decoded page, as Arrow columns."""
        import pyarrow as pa  # noqa: PLC0415 - see above

        from leasehold.adapters.arrow_records import ArrowRecords  # noqa: PLC0415 - needs pyarrow

        return ArrowRecords(pa.record_batch(page.records))


@lru_cache(maxsize=1)
def native_decoder() -> NativeDecoder | None:
    """The native decoder of this process, or None if there is none."""
    if os.environ.get(VARIABLE) == "0" or find_spec("pyarrow") is None:
        return None
    try:
        import leasehold_native  # noqa: PLC0415 - optional
    except ImportError:
        return None
    if not hasattr(leasehold_native.NativePage, "to_columns"):
        _LOGGER.warning("leasehold-native is too old and is not used: build it again, or update it")
        return None
    _LOGGER.info("records are decoded by leasehold-native %s", leasehold_native.__version__)
    return NativeDecoder(leasehold_native.decode_page, leasehold_native.decode_event)


def native_version() -> str | None:
    """The version of the native decoder that this process would use, or None. Imports nothing of it."""
    if (
        os.environ.get(VARIABLE) == "0"
        or find_spec("pyarrow") is None
        or find_spec("leasehold_native") is None
    ):
        return None
    try:
        return version("leasehold-native")
    except PackageNotFoundError:
        return None
