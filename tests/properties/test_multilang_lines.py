"""Whatever a child prints, the daemon goes on, keeps little of it, and stores no checkpoint that it must not store."""

import json
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from leasehold.core.multilang.checkpoint_rules import StoreAt, StoreShardEnd, decide_checkpoint
from leasehold.core.multilang.dialogue import Answer, Broken, Dialogue, Finished
from leasehold.core.multilang.line_splitter import LineSplitter
from leasehold.core.multilang.messages import ActionName, Junk, decode_line, encode_checkpoint_reply
from leasehold.core.position import SHARD_END, Position

LINE_MAX = 300
STORED, DELIVERED = Position("1000"), Position("2000", 3)

SCALARS = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.floats(),
    st.text(max_size=20),
    st.integers(900, 2100).map(str),
    st.sampled_from(["SHARD_END", "LATEST", "TRIM_HORIZON", "AT_TIMESTAMP", "00001500", "1_500", "१५००", ""]),
)
VALUES = st.recursive(
    SCALARS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
)
MEMBERS = st.fixed_dictionaries(
    {},
    optional={
        "action": st.sampled_from(["checkpoint", "status", "record", "processRecords", None, 1]),
        "responseFor": st.sampled_from([*(name.value for name in ActionName), "shutdown", None, 5]),
        "sequenceNumber": VALUES,
        "checkpoint": VALUES,
        "subSequenceNumber": VALUES,
        "x": VALUES,
    },
)
LINES = st.one_of(
    st.binary(max_size=LINE_MAX * 2),
    MEMBERS.map(lambda members: json.dumps(members).encode()),
    VALUES.map(lambda value: json.dumps(value).encode()),
    st.integers(0, 400).map(lambda depth: b'{"a":' * depth),
)
ENDS = st.sampled_from([b"\n", b"\r\n", b"\r", b""])
OUTPUT = st.lists(st.tuples(LINES, ENDS), max_size=12).map(
    lambda parts: b"".join(line + end for line, end in parts)
)


@settings(max_examples=60)
@given(
    output=OUTPUT, cuts=st.lists(st.integers(1, 40), max_size=20), during=st.sampled_from(list(ActionName))
)
def test_no_output_of_a_child_crashes_the_daemon_or_moves_the_checkpoint_too_far(
    output: bytes, cuts: list[int], during: ActionName
) -> None:
    """The checkpoint never moves back, nor past what was delivered, nor to the end of a shard that has not ended."""
    splitter, dialogue, stored = LineSplitter(LINE_MAX), Dialogue(), STORED
    dialogue.begin(during)
    for line in _lines(splitter, output, cuts):
        message = decode_line(line) if len(line) <= LINE_MAX else Junk("")
        match dialogue.react(message):
            case Answer(request):
                decision = decide_checkpoint(request, during, stored=stored, delivered=DELIVERED)
                match decision:
                    case StoreAt(position):
                        assert stored < position <= DELIVERED
                        assert position.is_record
                        assert position.sequence_number == str(int(position.sequence_number))
                        stored = position
                    case StoreShardEnd():
                        assert during is ActionName.SHARD_ENDED
                        stored = SHARD_END
                    case _:
                        pass
                _check_reply(encode_checkpoint_reply(request, "Any"))
                if stored == SHARD_END:
                    return
            case Finished() | Broken():
                return
            case _:
                pass


@settings(max_examples=40)
@given(output=OUTPUT, cuts=st.lists(st.integers(1, 40), max_size=20))
def test_lines_are_the_same_however_the_output_is_cut(output: bytes, cuts: list[int]) -> None:
    """And none is longer than the limit."""
    in_one_piece = LineSplitter(LINE_MAX)
    expected = [line.content for line in (*in_one_piece.add(output), *in_one_piece.flush())]
    assert _lines(LineSplitter(LINE_MAX), output, cuts) == expected
    assert all(0 < len(line) <= LINE_MAX for line in expected)


def _lines(splitter: LineSplitter, output: bytes, cuts: list[int]) -> list[bytes]:
    lines = []
    for cut in cuts:
        lines += splitter.add(output[:cut])
        output = output[cut:]
    lines += splitter.add(output)
    return [line.content for line in (*lines, *splitter.flush())]


def _check_reply(reply: bytes) -> None:
    """A client reads one line of ASCII with both numbers."""
    assert reply.isascii()
    assert reply.count(b"\n") == 1
    members: dict[str, Any] = json.loads(reply)
    assert list(members) == ["action", "sequenceNumber", "subSequenceNumber", "error"]
    assert members["sequenceNumber"] is None or isinstance(members["sequenceNumber"], str)
