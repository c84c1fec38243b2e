"""The protobuf messages of the KPL aggregated record format, version "proto2".

Source: `aggregation-format.md` in awslabs/amazon-kinesis-producer. The classes have a separate
descriptor pool. Generated code (such as aws-kinesis-agg's, whose plain import also fails) would
register files called `messages.proto` and `config.proto` in the pool of the process, where they
clash with files of the same name in the user's code.

Importing this module imports protobuf: do so only once an aggregated record has been found.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, Protocol, cast

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from google.protobuf.message import DecodeError, Message

_PACKAGE: Final = "aws.kinesis.protobuf"
_Field = descriptor_pb2.FieldDescriptorProto


class Tag(Protocol):
    """A tag of a user record. The KPL writes none, and the KCL skips them."""

    key: str | bytes
    value: str | bytes


class Record(Protocol):
    """One user record. Its keys are indices into the tables of the aggregate."""

    partition_key_index: int
    explicit_hash_key_index: int
    data: bytes
    tags: Sequence[Tag]

    def HasField(self, field_name: str) -> bool:
        """Return whether an optional field is set."""
        ...


class AggregatedRecord(Protocol):
    """The message between the magic number and the checksum. Some protobuf versions return keys
    that are not UTF-8 as bytes."""

    partition_key_table: Sequence[str | bytes]
    explicit_hash_key_table: Sequence[str | bytes]
    records: Sequence[Record]
    """In the order in which they were put."""


def parse(message: bytes) -> AggregatedRecord | None:
    """Parse `message`; return None if it is malformed or a required field is missing."""
    try:
        parsed = _AGGREGATED_RECORD.FromString(message)
    # protobuf's pure Python implementation checks the encoding of strings while it parses, and its
    # older releases recurse into nested groups without a limit.
    except (DecodeError, UnicodeDecodeError, RecursionError):
        return None
    # Unlike other languages' parsers, Python's accepts a message without its required fields.
    return cast("AggregatedRecord", parsed) if parsed.IsInitialized() else None


def has_unknown_fields(message: AggregatedRecord) -> bool:
    """Return whether a message has fields that the format lacks."""
    known = _AGGREGATED_RECORD()
    known.CopyFrom(cast("Message", message))
    size = known.ByteSize()
    known.DiscardUnknownFields()
    return known.ByteSize() != size


def _describe() -> descriptor_pb2.FileDescriptorProto:
    file = descriptor_pb2.FileDescriptorProto(
        name="spark_ssp/kpl.proto", package=_PACKAGE, syntax="proto2"
    )
    tag = file.message_type.add(name="Tag")
    _add(tag, "key", 1, _Field.TYPE_STRING, _Field.LABEL_REQUIRED)
    _add(tag, "value", 2, _Field.TYPE_STRING, _Field.LABEL_OPTIONAL)

    record = file.message_type.add(name="Record")
    _add(record, "partition_key_index", 1, _Field.TYPE_UINT64, _Field.LABEL_REQUIRED)
    _add(record, "explicit_hash_key_index", 2, _Field.TYPE_UINT64, _Field.LABEL_OPTIONAL)
    _add(record, "data", 3, _Field.TYPE_BYTES, _Field.LABEL_REQUIRED)
    _add(record, "tags", 4, _Field.TYPE_MESSAGE, _Field.LABEL_REPEATED, of="Tag")

    aggregate = file.message_type.add(name="AggregatedRecord")
    _add(aggregate, "partition_key_table", 1, _Field.TYPE_STRING, _Field.LABEL_REPEATED)
    _add(aggregate, "explicit_hash_key_table", 2, _Field.TYPE_STRING, _Field.LABEL_REPEATED)
    _add(aggregate, "records", 3, _Field.TYPE_MESSAGE, _Field.LABEL_REPEATED, of="Record")
    return file


def _add(
    message: descriptor_pb2.DescriptorProto,
    name: str,
    number: int,
    kind: descriptor_pb2.FieldDescriptorProto.Type.ValueType,
    label: descriptor_pb2.FieldDescriptorProto.Label.ValueType,
    *,
    of: str | None = None,
) -> None:
    field = message.field.add(name=name, number=number, type=kind, label=label)
    if of is not None:
        field.type_name = f".{_PACKAGE}.{of}"


_POOL: Final = descriptor_pool.DescriptorPool()
_POOL.AddSerializedFile(_describe().SerializeToString())
_AGGREGATED_RECORD: Final = message_factory.GetMessageClass(
    _POOL.FindMessageTypeByName(f"{_PACKAGE}.AggregatedRecord")
)
