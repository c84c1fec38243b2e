"""Operations on records: putting them, and reading them back through iterators."""

from __future__ import annotations

import binascii
from dataclasses import dataclass, replace
from typing import Any

from spark_ssp.grouping.identifiers import MAX_HASH_KEY
from spark_ssp.testing.kinesis.state import page_reads
from spark_ssp.testing.kinesis.state.errors import (
    KinesisError,
    dry_run,
    invalid_argument,
    not_found,
    serialization,
)
from spark_ssp.testing.kinesis.state.faults import (
    DelayVisibility,
    EmptyPage,
    LateShardEnd,
    RejectRecords,
    ShiftArrival,
)
from spark_ssp.testing.kinesis.state.page_reads import RecordsPage
from spark_ssp.testing.kinesis.state.request import (
    Json,
    Request,
    decimal_value,
    invalid_value,
    missing,
    required,
)
from spark_ssp.testing.kinesis.state.service_state import ServiceState
from spark_ssp.testing.kinesis.state.stream import Distribution, Record, Shard, Stream, StreamStatus
from spark_ssp.testing.kinesis.streams import stream_of

_MAX_BATCH_RECORDS = 500
_MAX_BATCH_BYTES = 10 * 1024 * 1024
_MAX_DATA_BYTES = 10 * 1024 * 1024
_MAX_KEY_CHARACTERS = 256
ITERATOR_TYPES = (
    "AT_SEQUENCE_NUMBER",
    "AFTER_SEQUENCE_NUMBER",
    "TRIM_HORIZON",
    "LATEST",
    "AT_TIMESTAMP",
)


# --- Putting --------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class _Entry:
    """One record to put, validated."""

    partition_key: str | None
    data: bytes
    hash_key: int | None

    @property
    def size(self) -> int:
        return len(self.data) + len((self.partition_key or "").encode())


def put_record(state: ServiceState, request: Request) -> Json:
    stream = _writable(state, request)
    request.decimal("SequenceNumberForOrdering", 129)  # has no effect: puts are always ordered
    entry = _entry(request.body, stream, "")
    _refuse_dry_run(request)
    record, shard = _store(state, request, stream, entry)
    return {
        "ShardId": shard.shard_id,
        "SequenceNumber": record.sequence_number,
        "EncryptionType": "NONE",
    }


def put_records(state: ServiceState, request: Request) -> Json:
    stream = _writable(state, request)
    raw = required("Records", request.body.get("Records"))
    if not isinstance(raw, list):
        raise serialization("Records: expected a list.")
    if not 1 <= len(raw) <= _MAX_BATCH_RECORDS:
        raise invalid_value("records", f"must have length from 1 to {_MAX_BATCH_RECORDS}")
    entries = [_entry(body, stream, f"records.{i + 1}.member.") for i, body in enumerate(raw)]
    if sum(entry.size for entry in entries) > _MAX_BATCH_BYTES:
        raise invalid_argument("Records size exceeds 10 MiB limit")
    _refuse_dry_run(request)
    reject = next((e for e in request.effects if isinstance(e, RejectRecords)), None)
    results: list[Json] = []
    for number, entry in enumerate(entries, start=1):
        if reject is not None and number % reject.every == 0:
            results.append({"ErrorCode": reject.code, "ErrorMessage": "Injected fault."})
            continue
        try:
            record, shard = _store(state, request, stream, entry)
        except KinesisError as error:
            results.append({"ErrorCode": error.code, "ErrorMessage": error.message})
        else:
            results.append({"ShardId": shard.shard_id, "SequenceNumber": record.sequence_number})
    refused = [result["ErrorCode"] for result in results if "ErrorCode" in result]
    state.calls.refused.update(refused)
    return {"FailedRecordCount": len(refused), "Records": results, "EncryptionType": "NONE"}


def _writable(state: ServiceState, request: Request) -> Stream:
    stream = stream_of(state, request)
    if stream.status in (StreamStatus.CREATING, StreamStatus.DELETING):
        stream.require_active()
    return stream


def _entry(body: Any, stream: Stream, prefix: str) -> _Entry:
    if not isinstance(body, dict):
        raise serialization("A record must be an object.")
    key = body.get("PartitionKey")
    if key is None and stream.distribution is Distribution.USER_PARTITION_KEY:
        raise missing(f"{prefix}partitionKey")
    if key is not None and not isinstance(key, str):
        raise serialization(f"{prefix}partitionKey: expected a string.")
    if key is not None and not 1 <= len(key) <= _MAX_KEY_CHARACTERS:
        raise invalid_value(
            f"{prefix}partitionKey", f"must have length from 1 to {_MAX_KEY_CHARACTERS}"
        )
    data = _blob(body.get("Data"), f"{prefix}data")
    if len(data) > _MAX_DATA_BYTES:
        raise invalid_value(f"{prefix}data", f"must have length of at most {_MAX_DATA_BYTES}")
    hash_key = decimal_value(f"{prefix}explicitHashKey", body.get("ExplicitHashKey"), 39)
    if hash_key is not None and hash_key > MAX_HASH_KEY:
        raise invalid_argument(
            f"Invalid ExplicitHashKey. ExplicitHashKey must be in the range: [0, 2^128-1]. "
            f"Specified value was {hash_key}"
        )
    entry = _Entry(partition_key=key, data=data, hash_key=hash_key)
    if entry.size > stream.max_record_bytes:
        raise invalid_argument(
            f"The record, data and partition key, has {entry.size} bytes; the stream takes at "
            f"most {stream.max_record_bytes}."
        )
    return entry


def _blob(value: object, field: str) -> bytes:
    if value is None:
        raise missing(field)
    if isinstance(value, bytes):
        return value
    if not isinstance(value, str):
        raise serialization(f"{field}: expected base64 text.")
    try:
        return binascii.a2b_base64(value, strict_mode=True)
    except ValueError as error:  # binascii.Error, or text that is not ASCII
        raise serialization(f"{field}: not base64.") from error


def _store(
    state: ServiceState, request: Request, stream: Stream, entry: _Entry
) -> tuple[Record, Shard]:
    shard = stream.route(entry.partition_key, entry.hash_key)
    state.rate_limiter.write(stream.name, shard.shard_id, entry.size, request.now_ms)
    arrival, visible_from = request.now_ms, None
    for effect in request.effects:
        match effect:
            case ShiftArrival(shift_ms=shift_ms):
                arrival += shift_ms
            case DelayVisibility(delay_ms=delay_ms):
                visible_from = request.now_ms + delay_ms
    return shard.put(entry.partition_key, entry.data, arrival, visible_from), shard


def _refuse_dry_run(request: Request) -> None:
    """Answer a request with DryRun, after all checks except the rate limits."""
    if request.flag("DryRun"):
        raise dry_run()


# --- Reading --------------------------------------------------------------------------------------


def get_shard_iterator(state: ServiceState, request: Request) -> Json:
    stream = stream_of(state, request)
    shard_id = request.required_name("ShardId")
    kind = request.required_text("ShardIteratorType")
    if kind not in ITERATOR_TYPES:
        raise invalid_value("shardIteratorType", f"must be one of {', '.join(ITERATOR_TYPES)}")
    number = request.decimal("StartingSequenceNumber", 129)
    at_ms = request.time_ms("Timestamp")
    if number is not None and "SEQUENCE" not in kind:
        raise invalid_argument(f"StartingSequenceNumber does not go with iterator type {kind}.")
    if at_ms is not None and kind != "AT_TIMESTAMP":
        raise invalid_argument(f"Timestamp does not go with iterator type {kind}.")
    shard = stream.shard(shard_id, request.now_ms)
    state.rate_limiter.call("GetShardIterator", request.now_ms, stream=stream.name, shard=shard_id)
    cursor = page_reads.open_cursor(
        stream, shard, kind, request.now_ms, sequence_number=number, at_ms=at_ms
    )
    _refuse_dry_run(request)
    cursor = replace(cursor, empty_pages=state.answers.empty_pages)
    return {"ShardIterator": cursor.to_token(state.next_serial())}


def get_records(state: ServiceState, request: Request) -> RecordsPage:
    limit = request.integer("Limit")
    if limit is None:
        limit = page_reads.MAX_PAGE_RECORDS
    if not 1 <= limit <= page_reads.MAX_PAGE_RECORDS:
        raise invalid_argument(f"Limit must be from 1 to {page_reads.MAX_PAGE_RECORDS}.")
    cursor = page_reads.parse_cursor(request.required_text("ShardIterator"))
    stream = state.stream(cursor.stream)
    if stream.created_ms != cursor.created_ms:
        raise not_found(f"The stream {cursor.stream} of this iterator was deleted.")
    if request.text("StreamARN") not in (None, stream.arn):
        raise invalid_argument("StreamARN and ShardIterator are of different streams.")
    page_reads.check_cursor_age(cursor, request.now_ms)
    shard = stream.shard(cursor.shard, request.now_ms)
    _refuse_dry_run(request)
    state.rate_limiter.get_records(stream.name, shard.shard_id, request.now_ms)
    serial = state.next_serial()
    for effect in request.effects:
        if isinstance(effect, EmptyPage):
            behind, now_ms = effect.millis_behind_latest, request.now_ms
            return page_reads.empty_page(
                shard, cursor, millis_behind=behind, now_ms=now_ms, serial=serial
            )
    answers = state.answers
    if any(isinstance(effect, LateShardEnd) for effect in request.effects):
        answers = replace(answers, late_shard_end=True)
    page = page_reads.read_page(
        stream, cursor, limit=limit, now_ms=request.now_ms, serial=serial, answers=answers
    )
    state.rate_limiter.record_bytes_read(stream.name, shard.shard_id, page.size, request.now_ms)
    return page
