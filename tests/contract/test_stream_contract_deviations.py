"""The table of known deviations is checked itself."""

from pathlib import Path

from tests.contract.streams import KNOWN_DEVIATIONS


def test_every_declared_deviation_is_used() -> None:
    """An unused deviation would hide that a server was fixed."""
    tests = "".join(path.read_text() for path in Path(__file__).parent.glob("test_stream_contract_*.py"))
    declared = {behaviour for deviations in KNOWN_DEVIATIONS.values() for behaviour in deviations}
    assert {behaviour for behaviour in declared if f'"{behaviour}"' not in tests} == set()


def test_every_declared_deviation_has_a_reason() -> None:
    """A reader learns why it exists."""
    assert all(deviation.because for kinds in KNOWN_DEVIATIONS.values() for deviation in kinds.values())
