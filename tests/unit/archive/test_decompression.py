"""How large an object may be when it is decompressed."""

import pytest

from leasehold.archive.decompression import decoded_limit


@pytest.mark.parametrize(
    ("stored", "decoded"),
    [(0, 1024**3), (16 * 1024**2, 1024**3), (16 * 1024**2 + 1, 1024**3 + 64), (128 * 1024**2, 8 * 1024**3)],
)
def test_an_object_has_a_gibibyte_or_64_times_its_own_size(stored: int, decoded: int) -> None:
    """Whichever is more, as the documentation of archives says."""
    assert decoded_limit(stored) == decoded
