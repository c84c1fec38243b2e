"""Requests of PutRecords, whose entries are encoded already, and their answers, of which only the
needed results are decoded."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, overload

import msgspec
import orjson

from spark_ssp.common.aws.botocore_bypass import SEND_SECONDS
from spark_ssp.grouping.identifiers import ShardId
from spark_ssp.kinesis_source.model.shard import PutEntries, PutOutcome

_OUTCOME: Final = "SparkSspOutcome"


class _PutResult(msgspec.Struct, gc=False):
    ShardId: ShardId | None = None
    ErrorCode: str | None = None


class _PutResults(msgspec.Struct):
    Records: list[_PutResult]


_PUT_DECODER: Final = msgspec.json.Decoder(_PutResults)
_ALL_STORED: Final = re.compile(
    rb'\{(?:"EncryptionType":"[A-Z]+",)?"FailedRecordCount":0,"Records":\[(?=\{)'
)
"""The beginning of an answer without refusals, in the form in which the service writes it. Answers
in any other form are decoded as a whole."""
_SHARD: Final = b'"ShardId":"'


@dataclass(frozen=True, slots=True)
class _EvenShards(Sequence[ShardId]):
    """The shards of an answer whose results all have the same length; only those that are accessed
    are decoded. Sequence numbers and shard IDs have a fixed length (56 and 20 characters in AWS),
    and of a request only a few shards are needed."""

    body: bytes
    first: int
    """The index of the first shard ID in `body`."""
    length: int
    width: int
    """The distance from one shard ID to the next."""
    entries: int

    @classmethod
    def of(cls, body: bytes, start: int) -> _EvenShards | None:
        """Return the shards, or None if the results differ in length or form, or have escapes.

        `start` is the index of the first result; `]}` follows the last.
        """
        width = body.find(b"}", start) + 2 - start
        count, rest = divmod(len(body) - 1 - start, width)
        first = body.find(_SHARD, start, start + width) + len(_SHARD)
        last = body.find(b'"', first)
        if rest or not start + len(_SHARD) <= first < last or not body.endswith(b"}]}"):
            return None
        if b"\\" in body:  # an escaped character
            return None
        expected = ((start, b"{"), (start + width - 2, b"}"), (first - 2, b":"), (first - 1, b'"'))
        for place, character in (*expected, (last, b'"')):
            if body[place : len(body) - 1 : width] != character * count:
                return None
        return cls(body, first, last - first, width, count)

    def __len__(self) -> int:
        return self.entries

    @overload
    def __getitem__(self, index: int) -> ShardId: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[ShardId]: ...
    def __getitem__(self, index: int | slice) -> ShardId | Sequence[ShardId]:
        if isinstance(index, slice):
            return [self[each] for each in range(self.entries)[index]]
        begin = self.first + range(self.entries)[index] * self.width
        return ShardId(self.body[begin : begin + self.length].decode())


def decode_put(body: bytes) -> Mapping[str, Any] | None:
    """Return an answer of PutRecords for `parse_outcome`, or None if it is not one."""
    beginning = _ALL_STORED.match(body)
    if beginning is not None and (shards := _EvenShards.of(body, beginning.end())) is not None:
        return {_OUTCOME: PutOutcome(shards=shards)}
    try:
        results = _PUT_DECODER.decode(body).Records
    except ValueError:
        return None
    return {
        _OUTCOME: PutOutcome(
            shards=[result.ShardId for result in results],
            codes=[result.ErrorCode for result in results],
        )
    }


def encode_put(request: Mapping[str, Any]) -> bytes:
    """Encode a request whose `Records` are encoded already."""
    entries: PutEntries = request["Records"]
    stream = orjson.dumps({name: request[name] for name in request if name != "Records"})
    *others, last = entries.text
    return b"".join((stream[:-1], b',"Records":[', *others, last[:-1], b"]}"))


class _Entry(msgspec.Struct, rename="pascal", omit_defaults=True):
    data: bytes
    partition_key: str | None = None
    explicit_hash_key: str | None = None


def to_parameters(entries: PutEntries) -> Any:
    """Return entries as the parameter `Records` of boto3's `put_records`."""
    decoded = msgspec.json.decode(b"[%b]" % b"".join(entries.text)[:-1], type=list[_Entry])
    return msgspec.to_builtins(decoded, builtin_types=(bytes,))


def allow_missing_keys(service_model: Any) -> None:
    """Let botocore send entries without a partition key, which a version older than the record
    distribution strategy AUTO refuses."""
    records = service_model.operation_model("PutRecords").input_shape.members["Records"]
    required = records.member.required_members
    if "PartitionKey" in required:
        required.remove("PartitionKey")


def parse_outcome(answer: Mapping[str, Any], entries: int) -> PutOutcome:
    """Convert an answer of PutRecords to a request with this number of entries. Raises ValueError
    if an entry has no result."""
    outcome = answer.get(_OUTCOME)
    if not isinstance(outcome, PutOutcome):
        results = answer["Records"]
        outcome = PutOutcome(
            shards=[result.get("ShardId") for result in results],
            codes=[result.get("ErrorCode") for result in results],
        )
    shards, codes = outcome.shards, outcome.codes
    if len(shards) != entries:
        raise ValueError("an answer whose results are not those of the entries")
    if codes and any(not a and not b for a, b in zip(shards, codes, strict=True)):
        raise ValueError("a result with neither a shard nor an error code")
    seconds = answer.get("ResponseMetadata", {}).get(SEND_SECONDS)
    return PutOutcome(shards=shards, codes=codes, send_seconds=seconds)
