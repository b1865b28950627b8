"""Small changes of valid bytes: most of what they break lies just behind a check."""

from collections.abc import Iterator
from random import Random

TOKENS = [
    b'"', b"\\", b"{", b"}", b"[", b"]", b",", b":", b"0", b"-", b"e", b".", b"null", b"\\u", b"\\ud800",
    b"\xff", b"\x00",
    b"\x80", b"\x1a", b"\x0a", b"\x08", b"\xc1", b"\x9f", b"\xbf", b"\x5b", b"=", b"A", b" ", b"\n",
]  # fmt: skip


def mutants(body: bytes, seed: int, count: int = 8) -> Iterator[bytes]:
    """Variants of `body` with a few bytes removed, replaced, repeated or inserted."""
    random = Random(seed)
    for _ in range(count):
        changed = body
        for _ in range(random.randint(1, 3)):
            start = random.randint(0, len(changed))
            end = min(len(changed), start + random.randint(0, 8))
            changed = changed[:start] + _replacement(random, changed[start:end]) + changed[end:]
        yield changed


def _replacement(random: Random, old: bytes) -> bytes:
    kind = random.choice(["remove", "token", "bytes", "repeat", "flip", "flip"])
    if kind == "remove":
        return b""
    if kind == "token":
        return random.choice(TOKENS) + old
    if kind == "bytes":
        return random.randbytes(random.randint(0, 3)) + old[1:]
    if kind == "repeat":
        return old * random.randint(2, 3)
    return bytes([old[0] ^ 1 << random.randint(0, 7)]) + old[1:] if old else b""
