"""Bodies that a broken server or proxy, or an attacker, may send: in JSON as text, in CBOR as bytes."""

from collections.abc import Iterator
from typing import Any

import cbor2
import orjson

# Raw JSON, because no library would write some of these.
ODD_VALUES = [
    "null", "true", "false", "0", "-0", "1", "-1", "0.0", "1.5", "-1.5", "1e3", "1E+2", "2.5e-3", "1e-400",
    "0.0005",
    "0.0015", "1700000000.1235", "1700000000", "9223372036854775.807", "9223372036854775807",
    "-9223372036854775809",
    "9223372036854775808", "18446744073709551615", "18446744073709551616", "1e15", "1e16", "9.3e15",
    "-9.3e15", "1e300",
    "123456789012345678901234567890", '""', '"x"', '"0"', '"12"', '"-1"', '"+1"', '" 1"', '"1_0"', '"1.0"',
    '"0x1"',
    '"\u0661"', f'"{"9" * 129}"', f'"{"9" * 130}"', '"AAAA"', '"AB=="', '"AA="', '"AA"', '"A"', '"===="',
    '"AA=A"',
    '"AAAA===="', '"AAA\\u0041"', '"AA\\/A"', '"AA\\nAA"', '"AA A"', '"AA-_"', '"\\u00e9AAA"', '"éAAA"', "[]",
    "{}",
    "[[]]", '[""]', '["a"]', "[1]", "[null]", '{"a":1}', '{"":[{}]}', '"\\ud83d\\ude00"', '"\\u0000"',
    '"\\u007f"',
]  # fmt: skip
NOT_JSON = [
    b"", b" ", b"{", b"}", b"[", b"{}x", b"{} {}", b"{}\x00", b"\xef\xbb\xbf{}", b"{'a':1}", b'{"a":1,}',
    b'{"a" 1}',
    b'{"a":}', b'{"a":1 "b":2}', b'{,"a":1}', b"{1:2}", b'{"a":[1,]}', b'{"a":[,1]}', b'{"a":[1 2]}',
    b'{"a":NaN}',
    b'{"a":Infinity}', b'{"a":-}', b'{"a":+1}', b'{"a":01}', b'{"a":1.}', b'{"a":.5}', b'{"a":1e}',
    b'{"a":1e+}',
    b'{"a":1e400}', b'{"a":-1e400}', b'{"a":0x10}', b'{"a":1_0}', b'{"a":tru}', b'{"a":nul', b'{"a":True}',
    b'{"a":"\\x41"}', b'{"a":"\\u12"}', b'{"a":"\\u12g4"}', b'{"a":"\\ud800"}', b'{"a":"\\udc00"}',
    b'{"a":"\\ud800\\u0041"}', b'{"a":"\\ud800x"}', b'{"a":"\\ud800\\ud800"}', b'{"a":"\t"}', b'{"a":"\n"}',
    b'{"a":"\x00"}', b'{"a":"\x1f"}', b'{"a":"\xff"}', b'{"a":"\xc3"}', b'{"a":"\xed\xa0\x80"}',
    b'{"a":"\xc0\x80"}',
    b'{"a":"\xf4\x90\x80\x80"}', b'{"\xff":1}', b'{"a":"', b'{"a":"\\', b'{"a":"\\u', b'{"a\\', b"\x0c{}",
    b"{}\x0b",
    b"//\n{}", b'{"a":1/**/}', b"null", b"1", b'"x"', b"[]", b"[{}]", b"true", b" \t\r\n{} \t\r\n", b"\xa0{}",
    b"\x80",
    b"[" * 1023 + b"]" * 1023, b"[" * 1024 + b"]" * 1024, b"[" * 1025 + b"]" * 1025, b"[" * 100_000,
    b'{"a":' * 2_000,
]  # fmt: skip
RECORD_FIELDS = {
    "Data": '"aGVsbG8="',
    "PartitionKey": '"key"',
    "SequenceNumber": '"4711"',
    "ApproximateArrivalTimestamp": "1700000000.123",
    "EncryptionType": '"KMS"',
}
CHILD_FIELDS = {
    "ShardId": '"shardId-1"',
    "ParentShards": '["shardId-0"]',
    "HashKeyRange": '{"StartingHashKey":"0","EndingHashKey":"340282366920938463463374607431768211455"}',
}


def object_text(fields: dict[str, str]) -> str:
    return "{" + ",".join(f'"{name}":{value}' for name, value in fields.items()) + "}"


def page_text(**changed: str) -> str:
    """A page in JSON that can be continued as a page and as an event."""
    fields = {
        "NextShardIterator": '"AAAA"',
        "ContinuationSequenceNumber": '"4712"',
        "MillisBehindLatest": "0",
        "Records": f"[{object_text(RECORD_FIELDS)}]",
    }
    return object_text(fields | changed)


def end_text(**changed: str) -> str:
    """The last page of a shard."""
    return object_text({"Records": "[]", "ChildShards": f"[{object_text(CHILD_FIELDS | changed)}]"})


def json_bodies() -> Iterator[bytes]:
    yield from NOT_JSON
    # What is no JSON is no JSON wherever it stands, also in a field that is skipped.
    for body in NOT_JSON:
        for name in ("Unknown", "NextShardIterator", "ContinuationSequenceNumber"):
            yield page_text(**{name: body.decode("latin-1")}).encode("latin-1")
    yield from (text.encode() for text in _odd_texts())
    yield from (page_text(Unknown="[" * depth + "]" * depth).encode() for depth in (500, 1_100))


def _odd_texts() -> Iterator[str]:
    names = [
        "NextShardIterator",
        "ContinuationSequenceNumber",
        "MillisBehindLatest",
        "Records",
        "ChildShards",
        "X",
    ]
    for value in ODD_VALUES:
        yield from (page_text(**{name: value}) for name in names)
        yield from (
            page_text(Records=f"[{object_text(RECORD_FIELDS | {name: value})}]") for name in RECORD_FIELDS
        )
        yield page_text(Records=f"[{object_text(RECORD_FIELDS)},{value}]")
        yield from (end_text(**{name: value}) for name in CHILD_FIELDS)
        yield end_text(HashKeyRange=f'{{"StartingHashKey":{value},"EndingHashKey":"99"}}')
        yield end_text(HashKeyRange=f'{{"StartingHashKey":"0","EndingHashKey":{value}}}')
        yield end_text(ParentShards=f'["shardId-0",{value}]')
        yield object_text({"Records": "[]", "ChildShards": value})
    for name in RECORD_FIELDS:
        rest = {each: value for each, value in RECORD_FIELDS.items() if each != name}
        yield page_text(Records=f"[{object_text(RECORD_FIELDS)},{object_text(rest)},7]")
    yield from _repeated_keys()


def _repeated_keys() -> Iterator[str]:
    """The last one counts, also if the earlier ones are of a wrong type."""
    good, bad = object_text(RECORD_FIELDS), '{"Data":"?"}'
    yield page_text()[:-1] + f',"Records":[{bad}]}}'
    yield page_text(Records=f"[{good}]")[:-1] + f',"Records":[{good},{good}]}}'
    yield page_text()[:-1] + ',"NextShardIterator":null,"NextShardIterator":"B"}'
    yield page_text()[:-1] + ',"NextShardIterator":7}'
    yield page_text(Records=f'7,"Records":[{good}]')
    yield page_text(MillisBehindLatest='"x","MillisBehindLatest":3')
    yield page_text(Records='[{"Data":7,"Data":"AAAA","PartitionKey":"a","SequenceNumber":"1"}]')
    yield page_text(Records='[{"Data":"BBBB","Data":"AAAA","PartitionKey":"a","SequenceNumber":"1"}]')
    yield page_text(Records='[{"Data":"AAAA","Data":"?","PartitionKey":"a","SequenceNumber":"1"}]')
    yield page_text(Records='[{"D\\u0061ta":"AAAA","PartitionKe\\u0079":"\\u00e9\\n","SequenceNumber":"1"}]')
    yield end_text()[:-1] + ',"ChildShards":[]}'
    yield end_text(ShardId='7,"ShardId":"shardId-2"')
    yield end_text(HashKeyRange='7,"HashKeyRange":{"StartingHashKey":"1","EndingHashKey":"2"}')
    yield f" {page_text()} ".replace(":", " :\t").replace(",", "\n,\r")


def cbor_value(text: str) -> Any:
    """The CBOR counterpart of a value in JSON."""
    return orjson.loads(text)


def cbor_page(**changed: Any) -> dict[str, Any]:
    record = {
        "Data": b"hello",
        "PartitionKey": "key",
        "SequenceNumber": "4711",
        "ApproximateArrivalTimestamp": cbor2.CBORTag(1, 1_700_000_000_123),
    }
    fields = {
        "NextShardIterator": "AAAA",
        "ContinuationSequenceNumber": "4712",
        "MillisBehindLatest": 0,
        "Records": [record | changed.pop("record", {})],
    }
    return fields | changed


RAW_CBOR = [
    b"", b"\x00", b"\x80", b"\xf6", b"\xa0\x00", b"\xbf\xff", b"\xff", b"\xa1", b"\xa1\x61", b"\xa1\x61a",
    b"\xbf\x61a\xff",
    b"\x1c", b"\x1f", b"\xdf\x01\xff", b"\xf8\x14", b"\xf8\x20", b"\xa1\x61a\xf8\x1f", b"\xa1\x61a\xf8\x20",
    b"\xa1\x61\xff\x00", b"\xa1\x7f\x61a\xff\x00", b"\xa1\x7f\x61\xc3\x61\xa9\xff\x00",
    b"\xa1\x7f\x41a\xff\x00",
    b"\xa1\x7f\x7f\x61a\xff\xff\x00", b"\xbb" + b"\xff" * 8, b"\xba\x7f\xff\xff\xff",
    b"\xa1\x61a\x9b" + b"\xff" * 8,
    b"\xa1\x61a\x5b" + b"\xff" * 8, b"\xa1\x61a\x7b\x00\x00\x00\x00\xff\xff\xff\xff",
    b"\xa1\x61a\x5a\x7f\xff\xff\xff",
    b"\xa1\x61a" + b"\x81" * 15 + b"\x00", b"\xa1\x61a" + b"\x81" * 16 + b"\x00",
    b"\xa1\x61a" + b"\x81" * 15 + b"\x80",
    b"\xa1\x61a" + b"\x81" * 15 + b"\xc1\x00", b"\xa1\x61a" + b"\xc1" * 15 + b"\x00",
    b"\xa1\x61a" + b"\xc1" * 16 + b"\x00",
    b"\xa1\x61a" + b"\x9f" * 100_000, b"\xa1\x61a" + b"\xc1" * 100_000, b"\x9f" * 16 + b"\xff" * 16,
    b"\xa1\x61a\xc2\x41\x01", b"\xa1\x61a\xd8\x1d\x00", b"\xc1\xa0", b"\xa1\xc1\x61a\x00", b"\xa1\x01\x02",
    b"\xa1\x81\x01\x02", b"\xa1\xa1\x01\x02\x03", b"\xa1\xf6\x02", b"\xa1\xa1\x61a\x81\x05\x00",
    b"\xa1\x61a\xff",
    b"\x5f\x41a\x42bc\xff", b"\x5f\x61a\xff", b"\x5f\x5f\x41a\xff\xff", b"\xa1\x61a\x5f\xff",
    b"\xa1\x61a\x3b" + b"\xff" * 8,
]  # fmt: skip
ODD_CBOR_VALUES = [
    None, True, False, 0, 1, -1, 2**63 - 1, 2**63, 2**64 - 1, -(2**63), -(2**63) - 1, -(2**64), 0.0, 1.5,
    1e300,
    float("nan"), float("inf"), 1_700_000_000.1235, "", "x", "4711", "aGVsbG8=", "AB==", "?", b"", b"x", [],
    {}, [1],
    {"a": 1}, cbor2.undefined, cbor2.CBORSimpleValue(99), cbor2.CBORTag(1, 7), cbor2.CBORTag(1, 7.5),
    cbor2.CBORTag(1, "x"),
    cbor2.CBORTag(1, b"xyz"), cbor2.CBORTag(1, None), cbor2.CBORTag(2, b"\x01"),
    cbor2.CBORTag(1, cbor2.CBORTag(1, 7)),
    cbor2.CBORTag(28, []), cbor2.CBORTag(37, b""),
]  # fmt: skip


def cbor_bodies() -> Iterator[bytes]:
    yield from RAW_CBOR
    names = [
        "NextShardIterator",
        "ContinuationSequenceNumber",
        "MillisBehindLatest",
        "Records",
        "ChildShards",
        "X",
    ]
    for value in ODD_CBOR_VALUES:
        yield from (cbor2.dumps(cbor_page(**{name: value})) for name in names)
        yield from (cbor2.dumps(cbor_page(record={name: value})) for name in RECORD_FIELDS)
        yield cbor2.dumps({"Records": [], "ChildShards": value})
    whole = cbor2.dumps(cbor_page())
    yield from (whole[:length] for length in range(len(whole)))
    yield cbor2.dumps({"Records": [], "ChildShards": orjson.loads(end_text())["ChildShards"]})
    yield whole + b"\x00"
    yield cbor2.dumps(cbor_page(), canonical=True)
    # As the Java SDK writes it: without lengths.
    yield whole.replace(b"\xa4", b"\xbf", 1) + b"\xff"
    yield whole.replace(b"\x45hello", b"\x5f\x42he\x40\x43llo\xff")
    yield whole.replace(b"\x63key", b"\x7f\x62ke\x60\x61y\xff")
