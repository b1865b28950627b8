"""Without the native package, these tests are skipped."""

import importlib.util
from collections.abc import Iterator

import pytest

from leasehold.adapters import native_decoder

NOT_BUILT = "leasehold-native is not built: run `make setup` on a machine with a Rust toolchain"


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    if importlib.util.find_spec("leasehold_native") is not None:
        return
    for item in items:
        if "tests/native/" in item.path.as_posix():
            item.add_marker(pytest.mark.skip(reason=NOT_BUILT))


@pytest.fixture(autouse=True, scope="module")
def decode_in_python() -> Iterator[None]:
    """The decoder of leasehold itself would use the native one for long bodies."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(native_decoder.VARIABLE, "0")
        native_decoder.native_decoder.cache_clear()
        yield
    native_decoder.native_decoder.cache_clear()
