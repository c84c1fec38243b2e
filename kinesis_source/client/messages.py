"""Writes the requests and reads the answers of Kinesis that botocore handles slowly or loses a part
of, and converts all answers into this project's values.

GetRecords is the hot path. botocore's parser walks its model once for every field of every record;
here msgspec parses the body instead, which also checks types and decodes base64, and its records
are converted into columns by `parse_page`. The hook is botocore's event `before-
parse.kinesis.GetRecords`, emitted with `operation_model`, `response_dict` (`status_code`,
`headers`, `body`: the parser's input) and `customized_response_dict` (merged into the parsed
answer). The records are passed in the latter, and the body is replaced by one without records. Any
unusual answer (an error, another protocol than JSON, a field that is missing or of another type) is
left to botocore's parser, and `parse_page` converts its result. By the same hook
DescribeStreamSummary returns the members that an older botocore drops, because its model lacks
them.

The entries of PutRecords are encoded already, and of its answers only the needed results are
decoded.

Before September 2026 botocore cuts the time of AT_TIMESTAMP to whole seconds, which would move the
point at which a query starts by up to a second. The service accepts fractions (API reference of
GetShardIterator), so they are restored in the request.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from email.utils import parsedate_to_datetime
from functools import lru_cache
from typing import Annotated, Any, Final, NotRequired, TypedDict, cast, overload

import msgspec
import orjson

from spark_ssp.common.aws.botocore_bypass import SEND_SECONDS, protocol_of
from spark_ssp.common.aws.error_translation import MalformedAnswerError as MalformedAnswerError
from spark_ssp.grouping.identifiers import HashRange, ShardId, StreamName
from spark_ssp.kinesis_source.model.shard import (
    EpochMillis,
    PutEntries,
    PutOutcome,
    RecordPage,
    SequenceNumber,
    Shard,
    ShardIterator,
    StreamDescription,
)

_ANSWER: Final = "SparkSspAnswer"
_SUMMARY: Final = "SparkSspSummary"
_NO_RECORDS: Final = b'{"Records":[]}'
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_MILLISECOND: Final = timedelta(milliseconds=1)
_HOUR_MS: Final = 3_600_000
_DEFAULT_RECORD_KIB: Final = 1024


# --- The fast parser ------------------------------------------------------------------------------

_FARTHEST_SECONDS: Final = 1e12
"""Times farther from the epoch, which do not occur, might not be exact to the millisecond: floats
have 53 bits."""
_Seconds = Annotated[float, msgspec.Meta(ge=-_FARTHEST_SECONDS, le=_FARTHEST_SECONDS)]


class _Record(msgspec.Struct, gc=False, rename="pascal"):
    """The fields of a record. Not tracked by the garbage collector, since it has no cycles."""

    sequence_number: str
    approximate_arrival_timestamp: _Seconds
    data: bytes
    partition_key: str | None = None


class _Answer(msgspec.Struct, rename="pascal"):
    records: list[_Record]
    next_shard_iterator: str | None = None
    millis_behind_latest: int | None = None


class _Event(msgspec.Struct, rename="pascal"):
    records: list[_Record]
    continuation_sequence_number: str | None = None
    millis_behind_latest: int | None = None
    child_shards: list[msgspec.Raw] | None = None


_DECODER: Final = msgspec.json.Decoder(_Answer)

_EVENT_DECODER: Final = msgspec.json.Decoder(_Event)


def register_parser(events: Any) -> None:
    """Register the fast parser of GetRecords, and the one of the members of DescribeStreamSummary
    that are newer than the lowest version of botocore, in a client's events (`meta.events`)."""
    events.register("before-parse.kinesis.GetRecords", _before_parse)
    events.register("before-parse.kinesis.DescribeStreamSummary", _before_parse_summary)


def _decode_page(body: bytes) -> Mapping[str, Any] | None:
    try:
        return {_ANSWER: _DECODER.decode(body)}
    except ValueError:  # base class of msgspec's errors
        return None


class _Iterator(msgspec.Struct, rename="pascal"):
    shard_iterator: str


_ITERATOR_DECODER: Final = msgspec.json.Decoder(_Iterator)


def _decode_iterator(body: bytes) -> Mapping[str, Any] | None:
    try:
        return {"ShardIterator": _ITERATOR_DECODER.decode(body).shard_iterator}
    except ValueError:
        return None


class _HashKeys(TypedDict):
    StartingHashKey: str
    EndingHashKey: str


class _SequenceNumbers(TypedDict):
    StartingSequenceNumber: str
    EndingSequenceNumber: NotRequired[str]


class _ListedShard(TypedDict):
    ShardId: str
    ParentShardId: NotRequired[str]
    AdjacentParentShardId: NotRequired[str]
    HashKeyRange: _HashKeys
    SequenceNumberRange: _SequenceNumbers


class _Listing(TypedDict):
    Shards: list[msgspec.Raw]
    NextToken: NotRequired[str]


_LISTING_DECODER: Final = msgspec.json.Decoder(_Listing)
_SHARD_DECODER: Final = msgspec.json.Decoder(_ListedShard)
_SHARDS_KEPT: Final = 1 << 17
"""Above the number of shards that drivers are planned for: a listing of more than this would find
none of them again."""


def _decode_listing(body: bytes) -> Mapping[str, Any] | None:
    try:
        listing = _LISTING_DECODER.decode(body)
        return {**listing, "Shards": [_decode_shard(bytes(shard)) for shard in listing["Shards"]]}
    except ValueError:
        return None


@lru_cache(maxsize=_SHARDS_KEPT)  # hardly any shard is new in a listing
def _decode_shard(text: bytes) -> Shard:
    return _shard(_SHARD_DECODER.decode(text))


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
        `start` is the index of the first result; `]}` follows the last."""
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


DECODERS: Final[Mapping[str, Callable[[bytes], Mapping[str, Any] | None]]] = {
    "GetRecords": _decode_page,
    "GetShardIterator": _decode_iterator,
    "ListShards": _decode_listing,
    "PutRecords": decode_put,
}
"""The decoders of the most frequent calls, for `spark_ssp.common.aws.botocore_bypass`."""


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


ENCODERS: Final[Mapping[str, Callable[[Mapping[str, Any]], bytes]]] = {
    "PutRecords": encode_put,
}
"""The encoders of calls whose parameters are encoded already."""


class _NewMembers(TypedDict):
    MaxRecordSizeInKiB: NotRequired[int | None]
    RecordDistributionStrategy: NotRequired[str | None]


class _Summary(msgspec.Struct, rename="pascal"):
    stream_description_summary: _NewMembers


_SUMMARY_DECODER: Final = msgspec.json.Decoder(_Summary)


def _before_parse_summary(
    response_dict: dict[str, Any], customized_response_dict: dict[str, Any], **_: object
) -> None:
    try:
        found = _SUMMARY_DECODER.decode(response_dict["body"])
    except ValueError:  # an error, or another protocol than JSON
        return
    customized_response_dict[_SUMMARY] = found.stream_description_summary


def _before_parse(
    operation_model: Any,
    response_dict: dict[str, Any],
    customized_response_dict: dict[str, Any],
    **_: object,
) -> None:
    if response_dict["status_code"] != 200:
        return
    if protocol_of(operation_model.service_model) != "json":
        return
    page = _decode_page(response_dict["body"])
    if page is not None:
        customized_response_dict.update(page)
        response_dict["body"] = _NO_RECORDS


def parse_event(body: bytes, service_time: EpochMillis) -> RecordPage:
    """Parse the JSON body of a SubscribeToShardEvent. Raises ValueError if it deviates from the API
    reference: only the last event of a closed shard has no continuation, and it has the children.
    """
    event = _EVENT_DECODER.decode(body)
    if not (event.continuation_sequence_number or event.child_shards):
        raise ValueError("neither a continuation nor child shards")
    following, behind = event.continuation_sequence_number, event.millis_behind_latest
    return _page(event.records, following, behind, service_time)


def _page(
    records: Sequence[_Record],
    following: str | None,
    behind: int | None,
    service_time: EpochMillis,
) -> RecordPage:
    return RecordPage(
        # Bare text and numbers where types are only names: a call for each would cost as much.
        sequence_numbers=cast(
            "list[SequenceNumber]", [record.sequence_number for record in records]
        ),
        partition_keys=[record.partition_key for record in records],
        # Seconds with a fraction, as binary floating point: cutting would lose a millisecond.
        arrival_ms=cast(
            "list[EpochMillis]",
            [round(record.approximate_arrival_timestamp * 1000) for record in records],
        ),
        data=[record.data for record in records],
        next_iterator=ShardIterator(following) if following else None,
        millis_behind_latest=_behind(behind, records),
        service_time=service_time,
    )


def _behind(behind: int | None, records: Sequence[object]) -> int:
    return (1 if records else 0) if behind is None else behind


# --- Answers parsed by botocore -------------------------------------------------------------------


def parse_page(answer: Mapping[str, Any], service_time: EpochMillis) -> RecordPage:
    """Convert an answer of GetRecords as boto3 returns it, parsed above or by botocore.

    A record without an arrival time (optional in the API reference, but always present) gets the
    time of the answer. Without `MillisBehindLatest` (likewise) more records are assumed after a
    page with records and none after an empty page, since following empty pages until a 0 comes
    might never end.
    """
    parsed = answer.get(_ANSWER)
    if isinstance(parsed, _Answer):
        following, behind = parsed.next_shard_iterator, parsed.millis_behind_latest
        return _page(parsed.records, following, behind, service_time)
    records = answer["Records"]
    next_iterator = answer.get("NextShardIterator")
    arrivals = [record.get("ApproximateArrivalTimestamp") for record in records]
    return RecordPage(
        sequence_numbers=[SequenceNumber(record["SequenceNumber"]) for record in records],
        partition_keys=[
            None if key is None else _valid_text(key)
            for key in (record.get("PartitionKey") for record in records)
        ],
        arrival_ms=[
            service_time if arrival is None else to_epoch_ms(arrival) for arrival in arrivals
        ],
        data=[record["Data"] for record in records],
        next_iterator=ShardIterator(next_iterator) if next_iterator else None,
        millis_behind_latest=_behind(answer.get("MillisBehindLatest"), records),
        service_time=service_time,
    )


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


def parse_shards(answer: Mapping[str, Any]) -> tuple[Shard, ...]:
    """Convert the shards of one page of ListShards, in the order of the answer. Those of an answer
    that botocore has not parsed are converted already."""
    return tuple(entry if isinstance(entry, Shard) else _shard(entry) for entry in answer["Shards"])


def parse_description(answer: Mapping[str, Any]) -> StreamDescription:
    """Convert an answer of DescribeStreamSummary."""
    summary = {**answer.get(_SUMMARY, {}), **answer["StreamDescriptionSummary"]}
    return StreamDescription(
        name=StreamName(summary["StreamName"]),
        arn=summary["StreamARN"],
        created=to_epoch_ms(summary["StreamCreationTimestamp"]),
        retention_ms=int(summary["RetentionPeriodHours"]) * _HOUR_MS,
        max_record_bytes=int(summary.get("MaxRecordSizeInKiB") or _DEFAULT_RECORD_KIB) << 10,
        placed_by_key=_is_placed_by_key(summary),
    )


def _is_placed_by_key(summary: Mapping[str, Any]) -> bool | None:
    """Return whether the stream's keys choose the shard of a record.

    A provisioned stream has no record distribution strategy. That of an on-demand stream is always
    present (API reference, StreamDescriptionSummary); without it, it is unknown."""
    strategy = summary.get("RecordDistributionStrategy")
    if strategy is None:
        is_on_demand = (summary.get("StreamModeDetails") or {}).get("StreamMode") == "ON_DEMAND"
        return None if is_on_demand else True
    return bool(strategy == "USER_PARTITION_KEY")


def parse_iterator(answer: Mapping[str, Any]) -> ShardIterator:
    """Return the iterator of an answer of GetShardIterator."""
    return ShardIterator(answer["ShardIterator"])


def parse_status(answer: Mapping[str, Any]) -> str:
    """Return the stream's status in an answer of DescribeStreamSummary."""
    return str(answer["StreamDescriptionSummary"]["StreamStatus"])


def parse_date(answer: Mapping[str, Any]) -> EpochMillis | None:
    """Return the `Date` of an answer or error of boto3: the service's clock in whole seconds."""
    text = answer.get("ResponseMetadata", {}).get("HTTPHeaders", {}).get("date")
    return _parse_http_date(text) if text else None


@lru_cache(maxsize=8)  # all answers within a second have the same
def _parse_http_date(text: str) -> EpochMillis | None:
    try:
        return to_epoch_ms(parsedate_to_datetime(text))
    except ValueError:
        return None


def to_epoch_ms(moment: datetime) -> EpochMillis:
    """Return milliseconds since the epoch, rounded to the nearest."""
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=UTC)
    return EpochMillis(round((moment - _EPOCH) / _MILLISECOND))


def to_datetime(millis: EpochMillis) -> datetime:
    """Return a timestamp for boto3, exact to the millisecond."""
    return _EPOCH + millis * _MILLISECOND


def _shard(entry: Mapping[str, Any]) -> Shard:
    parents = (entry.get("ParentShardId"), entry.get("AdjacentParentShardId"))
    sequence_numbers = entry["SequenceNumberRange"]
    ending = sequence_numbers.get("EndingSequenceNumber")
    return Shard(
        shard_id=ShardId(entry["ShardId"]),
        parents=tuple(sorted({ShardId(parent) for parent in parents if parent is not None})),
        hash_range=_hash_range(entry["HashKeyRange"]),
        first_sequence_number=SequenceNumber(sequence_numbers["StartingSequenceNumber"]),
        closed=ending is not None,
        ending_sequence_number=None if ending is None else SequenceNumber(ending),
    )


def _hash_range(entry: Mapping[str, Any]) -> HashRange:
    return HashRange(first=int(entry["StartingHashKey"]), last=int(entry["EndingHashKey"]))


def _valid_text(text: str) -> str:
    """Replace lone surrogates, which JSON can escape but neither UTF-8 nor Arrow can contain."""
    return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")


_JSON: Final = "application/x-amz-json"

_WANTED: Final = "spark_ssp_timestamp"
"""The key of the time in the context of a request, which botocore passes to all its handlers."""


def register_exact_times(events: Any) -> None:
    """Register the handlers that restore the milliseconds of AT_TIMESTAMP."""
    events.register("before-parameter-build.kinesis.GetShardIterator", _remember)
    events.register("before-call.kinesis.GetShardIterator", _restore)


def _remember(params: dict[str, Any], context: dict[str, Any], **_: object) -> None:
    if isinstance(params.get("Timestamp"), datetime):
        context[_WANTED] = params["Timestamp"].timestamp()


def _restore(params: dict[str, Any], context: dict[str, Any], **_: object) -> None:
    """Replace the time in the body of a request, before it is signed."""
    wanted = context.get(_WANTED)
    if wanted is None or not str(params["headers"].get("Content-Type")).startswith(_JSON):
        return
    body = json.loads(params["body"])
    if body["Timestamp"] != wanted:
        params["body"] = json.dumps(body | {"Timestamp": wanted}).encode()
