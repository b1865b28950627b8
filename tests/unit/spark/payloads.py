"""Schemas and payloads for tests of decoding."""

import json
from io import BytesIO
from typing import Any

import fastavro
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory, timestamp_pb2

ORDER_AVSC = json.dumps(
    {
        "type": "record",
        "name": "shop.Order",
        "fields": [
            {"name": "customer", "type": "string"},
            {"name": "amount", "type": ["null", "int"], "default": None},
            {"name": "at", "type": ["null", {"type": "long", "logicalType": "timestamp-millis"}]},
            {"name": "state", "type": {"type": "enum", "name": "State", "symbols": ["OPEN", "PAID"]}},
            {"name": "before", "type": ["null", "shop.State"]},
            {
                "name": "price",
                "type": {"type": "bytes", "logicalType": "decimal", "precision": 6, "scale": 2},
            },
            {"name": "id", "type": {"type": "string", "logicalType": "uuid"}},
            {"name": "tags", "type": {"type": "map", "values": {"type": "array", "items": "string"}}},
            {
                "name": "items",
                "type": {
                    "type": "array",
                    "items": {
                        "type": "record",
                        "name": "Item",
                        "fields": [{"name": "sku", "type": {"type": "fixed", "name": "Sku", "size": 2}}],
                    },
                },
            },
        ],
    }
)


def to_avro(value: Any, schema: str = ORDER_AVSC) -> bytes:
    """One record in Avro's binary encoding."""
    target = BytesIO()
    fastavro.schemaless_writer(target, fastavro.parse_schema(json.loads(schema)), value)
    return target.getvalue()


_F = descriptor_pb2.FieldDescriptorProto


def _make_descriptors() -> bytes:
    """What `protoc --include_imports` writes for a file with the messages Order, Item and Node."""
    file = descriptor_pb2.FileDescriptorProto(name="orders.proto", package="shop", syntax="proto3")
    file.dependency.append("google/protobuf/timestamp.proto")
    state = file.enum_type.add(name="State")
    state.value.add(name="OPEN", number=0)
    state.value.add(name="PAID", number=1)
    item = file.message_type.add(name="Item")
    item.field.add(name="sku", number=1, type=_F.TYPE_BYTES, label=_F.LABEL_OPTIONAL)
    order = file.message_type.add(name="Order")
    entry = order.nested_type.add(name="TagsEntry")
    entry.options.map_entry = True
    entry.field.add(name="key", number=1, type=_F.TYPE_STRING, label=_F.LABEL_OPTIONAL)
    entry.field.add(name="value", number=2, type=_F.TYPE_UINT32, label=_F.LABEL_OPTIONAL)
    order.oneof_decl.add(name="_note")
    plain = (("customer", _F.TYPE_STRING), ("amount", _F.TYPE_INT32), ("total", _F.TYPE_UINT64))
    for number, (name, kind) in enumerate(plain, 1):
        order.field.add(name=name, number=number, type=kind, label=_F.LABEL_OPTIONAL)
    note = order.field.add(name="note", number=4, type=_F.TYPE_STRING, label=_F.LABEL_OPTIONAL)
    note.proto3_optional, note.oneof_index = True, 0
    typed = (
        ("at", _F.TYPE_MESSAGE, ".google.protobuf.Timestamp", _F.LABEL_OPTIONAL),
        ("state", _F.TYPE_ENUM, ".shop.State", _F.LABEL_OPTIONAL),
        ("items", _F.TYPE_MESSAGE, ".shop.Item", _F.LABEL_REPEATED),
        ("tags", _F.TYPE_MESSAGE, ".shop.Order.TagsEntry", _F.LABEL_REPEATED),
        ("first", _F.TYPE_MESSAGE, ".shop.Item", _F.LABEL_OPTIONAL),
    )
    for number, (name, kind, type_name, label) in enumerate(typed, 5):
        order.field.add(name=name, number=number, type=kind, type_name=type_name, label=label)
    node = file.message_type.add(name="Node")
    node.field.add(
        name="next", number=1, type=_F.TYPE_MESSAGE, type_name=".shop.Node", label=_F.LABEL_OPTIONAL
    )
    file.message_type.add(name="Nothing")
    timestamp = descriptor_pb2.FileDescriptorProto()
    timestamp_pb2.DESCRIPTOR.CopyToProto(timestamp)
    return bytes(descriptor_pb2.FileDescriptorSet(file=[timestamp, file]).SerializeToString())


DESCRIPTORS = _make_descriptors()


def to_protobuf(**fields: Any) -> bytes:
    """One message shop.Order."""
    pool = descriptor_pool.DescriptorPool()
    for each in descriptor_pb2.FileDescriptorSet.FromString(DESCRIPTORS).file:
        pool.Add(each)
    found: Any = message_factory.GetMessageClass(pool.FindMessageTypeByName("shop.Order"))
    made: bytes = found(**fields).SerializeToString()
    return made
