"""Properties files mean what they mean in Java."""

import pytest

from leasehold.config.java_properties import parse_properties
from leasehold.errors import ConfigError


def parsed(text: str) -> dict[str, str]:
    return {each.key: each.value for each in parse_properties(text.encode())}


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("a=1", {"a": "1"}),
        ("a = 1 ", {"a": "1 "}),
        ("  a:1", {"a": "1"}),
        ("a 1", {"a": "1"}),
        ("a\t=\t= b", {"a": "= b"}),
        ("a", {"a": ""}),
        ("# a=1\n! b=2\n\n \t\nc=3", {"c": "3"}),
        ("a=1 \\\n   2\\\r\n\t3", {"a": "1 23"}),
        ("a=1\\\\\nb=2", {"a": "1\\", "b": "2"}),
        ("a=1\\\n# no comment", {"a": "1# no comment"}),
        ("a=1\\", {"a": "1"}),
        (r"a\=b\:c\ d=e", {"a=b:c d": "e"}),
        (r"a=C:\temp\new\x", {"a": "C:\temp\newx"}),
        (r"a=\u0041\u00e4\\u0041", {"a": "Aä\\u0041"}),
        ('a="quoted" ${HOME}', {"a": '"quoted" ${HOME}'}),
        ("a=1\ra=2", {"a": "2"}),
    ],
)
def test_a_file_is_read_as_java_reads_it(text: str, expected: dict[str, str]) -> None:
    """Separators, blanks, comments, continued lines and escapes."""
    assert parsed(text) == expected


def test_bytes_that_are_not_utf_8_are_latin_1() -> None:
    """As in Java."""
    assert parse_properties(b"a=\xe4")[0].value == "ä"


def test_a_broken_escape_is_an_error_with_its_line() -> None:
    """Java refuses such a file, too."""
    with pytest.raises(ConfigError, match=r"line 2: \\u needs four hexadecimal digits"):
        parsed("a=1\nb=C:\\users")
