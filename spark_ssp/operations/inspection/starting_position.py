"""Options of another query that starts exactly after a position: no record twice, none left out.

A query on Kinesis needs the listing of the stream for that. The JSON by shard has to name every
shard that is still listed: one that is read already starts at its end (`latest`, for a closed
shard), one that is unread at its beginning. Shards that appear later begin at `trim_horizon`.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, TypeVar

from spark_ssp.common.errors import (
    IncompatibleStateError,
    InvalidOptionsError,
    OptionProblem,
    StreamNotFoundError,
    UnsupportedError,
)
from spark_ssp.common.logs import abbreviate
from spark_ssp.common.options.values import MAX_LONG
from spark_ssp.common.times import time_text
from spark_ssp.grouping.identifiers import ShardId, ShardKey, StreamName, SystemStreamPartition
from spark_ssp.kafka_source.client.api import TopicDescription
from spark_ssp.kafka_source.model.offset import Offset as KafkaOffset
from spark_ssp.kafka_source.model.topic import kafka_name, partition_of
from spark_ssp.kafka_source.planning.spark_checkpoint import SparkOffset
from spark_ssp.kinesis_source.model.offset import Offset
from spark_ssp.kinesis_source.model.shard import (
    CLOCK_UNCERTAINTY_MS,
    AfterRecord,
    AtTimestamp,
    EpochMillis,
    Position,
    Retention,
    SequenceNumber,
    ShardEnd,
    StreamDescription,
    TrimHorizon,
    is_behind,
)
from spark_ssp.kinesis_source.planning.active_shards import ancestors
from spark_ssp.kinesis_source.planning.data_loss import Evidence, Verdict, judge
from spark_ssp.operations.inspection.checkpoint_folder import CheckpointFolderError, Folder, damaged
from spark_ssp.operations.inspection.positions import RecordId, has_whole_topics
from spark_ssp.operations.inspection.spark_checkpoint import (
    Checkpoint,
    parse_offset,
)
from spark_ssp.operations.inspection.streams import ListedStream, References
from spark_ssp.operations.snapshot import short_name

_DEFAULT: Final = StreamName("default")
_METADATA: Final = "metadata"
_LONG: Final = 18
_MILLIS: Final = 14
_SEQUENCE: Final = 129
"""The digits of a number of 64 bits, of a time and of a sequence number, at most."""
T = TypeVar("T")
StreamPositions = Mapping[ShardId, Position]


@dataclass(frozen=True, slots=True, kw_only=True)
class StartOptions:
    """Options of a query, and remarks for the user."""

    options: Mapping[str, str]
    notes: tuple[str, ...] = ()


def without_dropped(names: Iterable[StreamName], dropped: Collection[str]) -> list[StreamName]:
    """Return the streams or topics of a checkpoint that are not dropped, sorted. Raises
    InvalidOptionsError if it lacks one of `dropped`, or has no others."""
    names = sorted(names)
    kept = [name for name in names if name not in dropped]
    wrong = sorted(set(dropped) - set(names))
    if wrong or not kept:
        problem = OptionProblem(
            option="--drop",
            found=", ".join(wrong) or "every name of the checkpoint",
            expected=f"some of the names in the checkpoint: {', '.join(names)}",
            next_step="correct the name" if wrong else "start the other query at the beginning",
        )
        raise InvalidOptionsError("spark-ssp checkpoint", [problem])
    return kept


def _drop(names: Iterable[str]) -> str:
    return " ".join(f"--drop {name}" for name in names)


# --- After a record of a shard or partition ----------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Skip:
    """A shard or partition, as the user names it, and the record after which it starts."""

    part: str
    record: RecordId

    def problem(self, found: str, expected: str, next_step: str) -> InvalidOptionsError:
        """Return the error for this value of --after."""
        problem = OptionProblem(
            option="--after",
            found=f"{self.part}:{self.record}, {found}",
            expected=expected,
            next_step=next_step,
        )
        return InvalidOptionsError("spark-ssp checkpoint", [problem])

    def note(self, part: str, before: str) -> str:
        """Return the remark on what is left out."""
        return (
            f"{part} starts after {self.record}: its records from {before} up to this one are left "
            "out, not only this one"
        )

    def found_in(self, known: Mapping[str, T]) -> T:
        """Return the shard or partition with this name. Raises InvalidOptionsError."""
        if self.part in known:
            return known[self.part]
        raise self.problem(
            "which the checkpoint does not have",
            f"one of {abbreviate(sorted(known))}",
            "correct the name; with several streams or topics, write STREAM/SHARD or "
            "TOPIC-PARTITION",
        )

    def behind(self, position: str) -> InvalidOptionsError:
        """Return the error for a record that was read already."""
        return self.problem(
            f"which is not after the last committed batch, at {position}",
            "a record that is not read yet",
            "leave it out: this query has read it",
        )


def after_in_shards(
    positions: Mapping[StreamName, StreamPositions],
    streams: Mapping[StreamName, ListedStream],
    skips: Sequence[Skip],
) -> tuple[dict[StreamName, StreamPositions], tuple[str, ...]]:
    """Return the positions with those of `skips` instead, also of listed shards that the query has
    not begun, and remarks. Raises InvalidOptionsError."""
    if not skips:
        return dict(positions), ()
    found: dict[StreamName, dict[ShardId, Position]] = {}
    for name, shards in positions.items():
        listed = {shard.shard_id: shard for shard in streams[name].shards}
        unread = dict.fromkeys(listed.keys() - ancestors(listed, shards.keys()), TrimHorizon())
        found[name] = {**unread, **shards}
    known: dict[str, ShardKey] = {}
    for name, shards in sorted(found.items()):
        for shard in sorted(shards):
            key = ShardKey(stream=name, shard=shard)
            names = (str(key), shard, short_name(shard)) if len(found) == 1 else (str(key),)
            known |= dict.fromkeys(names, key)
    notes = []
    for skip in skips:
        key = skip.found_in(known)
        before = found[key.stream][key.shard]
        if not is_behind(before, skip.record.after):
            raise skip.behind(_position_text(before))
        notes.append(skip.note(str(key), f"after {_position_text(before)}"))
        found[key.stream][key.shard] = skip.record.after
    return dict(found), tuple(notes)


def _position_text(position: Position) -> str:
    match position:
        case AfterRecord(sequence_number=number, sub=sub):
            return str(RecordId(number=int(number), sub=max(0, sub)))
        case AtTimestamp(millis=millis):
            return time_text(millis)
        case ShardEnd():
            return "the end of the shard"
    return "TRIM_HORIZON"


def after_in_partitions(
    positions: Mapping[SystemStreamPartition, int], skips: Sequence[Skip]
) -> tuple[dict[SystemStreamPartition, int], tuple[str, ...]]:
    """Return the positions with those of `skips` instead, and remarks. Raises
    InvalidOptionsError."""
    for skip in skips:
        if skip.record.sub or skip.record.number >= MAX_LONG:
            raise skip.problem(
                "which is no offset of Kafka",
                f"an offset below {MAX_LONG}, without /n",
                "copy the offset of the record as tail shows it",
            )
    found = dict(positions)
    is_one = len({ssp.stream for ssp in found}) == 1
    known: dict[str, SystemStreamPartition] = {}
    for ssp in sorted(found):
        names = (kafka_name(ssp), str(ssp.partition)) if is_one else (kafka_name(ssp),)
        known |= dict.fromkeys(names, ssp)
    notes = []
    for skip in skips:
        ssp = skip.found_in(known)
        if skip.record.number < found[ssp]:
            raise skip.behind(str(found[ssp]))
        notes.append(skip.note(kafka_name(ssp), str(found[ssp])))
        found[ssp] = skip.record.number + 1
    return found, tuple(notes)


# --- Kinesis --------------------------------------------------------------------------------------


def deleted_stream(error: StreamNotFoundError, name: StreamName) -> StreamNotFoundError:
    """Return the error for a stream of the checkpoint that does not exist."""
    return StreamNotFoundError(
        error.subject,
        found=error.found,
        expected=error.expected,
        next_step=f"{error.next_step}; if the stream was deleted, leave it out by {_drop([name])}",
    )


def check_not_younger(stream: StreamDescription, last_batch_ms: int | None) -> tuple[str, ...]:
    """Return remarks on a stream whose creation time the checkpoint lacks. Raises
    IncompatibleStateError if it was created after the last batch was planned."""
    if last_batch_ms is not None and stream.created > last_batch_ms:
        raise _recreated([stream.name])
    remark = (
        f"the checkpoint has no creation time of stream {stream.name}: if it was deleted and "
        "created again since, these positions are wrong"
    )
    return (remark,)


def _recreated(names: Sequence[StreamName]) -> IncompatibleStateError:
    return IncompatibleStateError(
        f"stream {', '.join(names)}",
        found="deleted and created again since the checkpoint",
        expected="the streams that the query read",
        next_step=f"start another query on them at trim_horizon, since all their records are new; "
        f"{_drop(names)} leaves them out here",
    )


def kinesis_positions(
    offset: Offset, streams: Mapping[StreamName, StreamDescription]
) -> dict[StreamName, StreamPositions]:
    """Return the positions of a checkpoint by stream, for those of `streams`. Raises
    IncompatibleStateError for a stream that was created again, UnsupportedError if other workers
    read some of the shards."""
    recreated = []
    for name, stream in sorted(streams.items()):
        entry = offset.streams[name]
        if entry.leases is not None:
            raise UnsupportedError(
                f"stream {name}",
                found=f"a query that shares its shards by the lease table {entry.leases}, so that "
                "the checkpoint has only some of them",
                expected="the checkpoint of a query that reads every shard",
                next_step="start the other query with the same applicationName: it continues from "
                "the lease table",
            )
        if stream.created != entry.created:
            recreated.append(name)
    if recreated:
        raise _recreated(recreated)
    return {
        name: {
            key.shard: state.position
            for key, state in sorted((*offset.states.items(), *offset.waiting.items()))
            if key.stream == name
        }
        for name in sorted(streams)
    }


@dataclass(frozen=True, slots=True, kw_only=True)
class Proof:
    """The proof that all records of a shard after `position` are there: it was read to its latest
    record at `time`. It holds for a query that starts before `until`."""

    position: AfterRecord
    time: EpochMillis
    until: EpochMillis


def proofs_of(
    offset: Offset,
    positions: Mapping[StreamName, StreamPositions],
    streams: Mapping[StreamName, StreamDescription],
    now: EpochMillis,
) -> dict[ShardKey, Proof]:
    """Return the proofs of a checkpoint that hold at `now` for `positions` after a record. A query
    that starts there does not have them: it reports lost data if the record has expired."""
    found: dict[ShardKey, Proof] = {}
    for key, state in (*offset.states.items(), *offset.waiting.items()):
        position, caught_up_ms = state.position, state.last_caught_up_ms
        if (
            isinstance(position, AfterRecord)
            and caught_up_ms is not None
            and positions.get(key.stream, {}).get(key.shard) == position
        ):
            retention = Retention.described(
                streams[key.stream].retention_ms,
                now=now,
                before=offset.streams[key.stream].retention,
            )
            kept_ms = retention.kept_ms(now)
            evidence = Evidence(found=None, time=now, kept_ms=kept_ms)
            if judge(state, evidence) is Verdict.WHOLE:
                until = EpochMillis(caught_up_ms + kept_ms - CLOCK_UNCERTAINTY_MS)
                found[key] = Proof(position=position, time=caught_up_ms, until=until)
    return found


def without_expired_records(
    positions: Mapping[StreamName, StreamPositions],
    proofs: Mapping[ShardKey, Proof],
    first: Mapping[ShardKey, SequenceNumber | None],
) -> tuple[dict[StreamName, StreamPositions], tuple[str, ...]]:
    """Return the positions, those after a record that has expired as times, and remarks. `first`
    has the first records at the positions or after them, of shards of which it is known.

    Once the record has expired, so have all before it, and all that is left is to be read: a time
    that is too early reads nothing twice.
    """
    found = {name: dict(shards) for name, shards in positions.items()}
    replaced = {
        key: proofs[key]
        for key, record in first.items()
        if record is None or int(record) != int(proofs[key].position.sequence_number)
    }
    for key, proof in replaced.items():
        time = EpochMillis(proof.time - CLOCK_UNCERTAINTY_MS)
        found[key.stream][key.shard] = AtTimestamp(millis=time)
    if not replaced:
        return dict(found), ()
    until = min(proof.until for proof in replaced.values())
    remark = (
        "the last records that were read have expired, and none of the later ones, in "
        f"{abbreviate(sorted(map(str, replaced)))}: these shards start at a time. Start the other "
        f"query before {time_text(until)}, or later records may expire without a report"
    )
    return dict(found), (remark,)


def kinesis_start(
    positions: Mapping[StreamName, StreamPositions],
    streams: Mapping[StreamName, ListedStream],
    references: References,
) -> StartOptions:
    """Return `startingPosition`, and `streamName`, or `streamARN` if `references` have the ARN of a
    stream. The listings are those of now. Raises UnsupportedError for several streams of which one
    is named as the start of all others in that option."""
    if len(positions) > 1 and _DEFAULT in positions:
        raise UnsupportedError(
            f"stream {_DEFAULT}",
            found=f"a stream named {_DEFAULT} beside others: in startingPosition that is the start "
            "of shards without their own",
            expected="streams of other names, or this one alone",
            next_step=f"leave it out by {_drop([_DEFAULT])}, and read it in a separate query: "
            "--drop of the other streams gives its options",
        )
    notes: list[str] = []
    by_stream: dict[str, dict[str, Any]] = {}
    for stream, known in positions.items():
        by_id = {shard.shard_id: shard for shard in streams[stream].shards}
        finished = ancestors(by_id, known.keys())
        by_stream[stream] = {
            shard: _point(known[shard])
            if shard in known
            else ("latest" if shard in finished else "trim_horizon")
            for shard in sorted(by_id)
        }
        notes += [
            f"{stream}/{shard} has expired with records that were not read: it is left out"
            for shard in sorted(known.keys() - by_id.keys())
            if not isinstance(known[shard], ShardEnd)
        ]
    names = sorted(positions)
    document: dict[str, Any] = by_stream[names[0]] if len(names) == 1 else by_stream
    selection = {"streamName": ",".join(names)}
    if any(name in references and references[name].arn is not None for name in names):
        selection = {"streamARN": ",".join(streams[name].description.arn for name in names)}
    return StartOptions(
        options={
            **selection,
            "startingPosition": json.dumps({**document, _DEFAULT: "trim_horizon"}),
        },
        notes=tuple(notes),
    )


def _point(position: Position) -> Any:
    match position:
        case AfterRecord(sequence_number=number, sub=sub):
            return {"after_sequence_number": number, "sub_sequence_number": sub}
        case AtTimestamp(millis=millis):
            return {"at_timestamp": millis}
        case TrimHorizon():
            return "trim_horizon"
        case ShardEnd():
            return "latest"


# --- Kafka ----------------------------------------------------------------------------------------


def kafka_positions(
    offset: KafkaOffset | SparkOffset,
    topics: Collection[StreamName],
    found: Mapping[StreamName, TopicDescription],
    ends: Mapping[SystemStreamPartition, int],
) -> tuple[str, ...]:
    """Check the positions of a checkpoint in `topics` against those that the brokers have now, and
    return remarks on what cannot be compared. `ends` are the offsets after the newest records.

    Raises IncompatibleStateError for topics that were deleted, or created again, and for positions
    after the end of a partition: a query that starts there skips records.
    """
    ids = offset.topics if isinstance(offset, KafkaOffset) else dict.fromkeys(topics)
    faults: dict[StreamName, str] = {}
    unknown: list[StreamName] = []
    for ssp, position in sorted(offset.positions.items()):
        end = ends.get(ssp)
        if ssp.stream in found and end is not None and position > end:
            faults[ssp.stream] = f"{kafka_name(ssp)} ends at {end}, before the position {position}"
    for topic in topics:
        known, now = ids.get(topic), found.get(topic)
        if now is None:
            faults[topic] = f"topic {topic} does not exist, or is hidden from this user"
        elif known is None or now.topic_id is None:
            unknown.append(topic)
        elif known != now.topic_id:
            faults[topic] = (
                f"topic {topic} was deleted and created again (id {now.topic_id}, {known} in the "
                "checkpoint)"
            )
    if faults:
        raise IncompatibleStateError(
            f"topics {', '.join(sorted(faults))}",
            found="; ".join(faults[topic] for topic in sorted(faults)),
            expected="the topics that the query read",
            next_step="start another query on topics that were created again from earliest, since "
            f"all their records are new; {_drop(sorted(faults))} leaves them out here",
        )
    if not unknown:
        return ()
    names = ", ".join(unknown)
    remark = (
        f"the ids of these topics are unknown, here or in the checkpoint: {names}. If one was "
        "deleted and created again since, the query skips records of it"
    )
    return (remark,)


def kafka_start(
    offset: KafkaOffset | SparkOffset,
    topics: Collection[StreamName],
    found: Mapping[StreamName, TopicDescription] | None = None,
) -> StartOptions:
    """Return `subscribe` and `startingOffsets` for `topics`, or `assign` if the query reads only
    some of their partitions. `found`: the topics as they are now; partitions that were added start
    at their oldest record."""
    starts: dict[str, dict[str, int]] = {topic: {} for topic in sorted(topics)}
    for ssp, position in sorted(offset.positions.items()):
        if ssp.stream in starts:
            starts[ssp.stream][str(ssp.partition)] = position
    is_whole = has_whole_topics(offset.positions)
    options = {"subscribe": ",".join(starts)}
    if not is_whole:
        assigned = {topic: [int(number) for number in own] for topic, own in starts.items()}
        options = {"assign": json.dumps(assigned)}
    notes: list[str] = []
    if found is None:
        notes.append(
            "no broker was asked whether these are still the topics that the query read: if one "
            "was deleted and created again, the other query skips records. Give "
            "--bootstrap-servers, which checks it"
        )
        if is_whole:
            notes.append(
                "a partition that was added since is not in startingOffsets: add it with -2, its "
                "oldest record. --bootstrap-servers does it"
            )
    elif is_whole:
        added = [
            partition_of(StreamName(topic), number)
            for topic, own in starts.items()
            for number in range(found[StreamName(topic)].partition_count)
            if str(number) not in own
        ]
        for ssp in added:
            starts[ssp.stream][str(ssp.partition)] = -2
        if added:
            names = ", ".join(map(kafka_name, added))
            notes.append(
                f"added since, and started at their oldest record: {names}. If the query has the "
                "option assign, leave them out and write assign instead of subscribe"
            )
    return StartOptions(
        options={**options, "startingOffsets": json.dumps(starts)}, notes=tuple(notes)
    )


# --- Checkpoints of awslabs' spark-sql-kinesis-connector ------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class AwslabsPositions:
    """The positions after the last committed batch of one source."""

    stream: StreamName
    positions: StreamPositions
    notes: tuple[str, ...]


def read_awslabs(folder: Folder, checkpoint: Checkpoint, source: int) -> AwslabsPositions:
    """Return the positions of a source. Raises CheckpointFolderError, UnsupportedError. Others may
    have written the checkpoint: the id of a batch is part of a path."""
    last = checkpoint.last
    name = f"source {source} of {checkpoint.location}"
    if last is None:
        raise CheckpointFolderError(
            name,
            found="no committed batch",
            expected="a batch that ended",
            next_step="start the other query with the same startingPosition as this one",
        )
    document = _parse(last.offsets[source] if source < len(last.offsets) else None)
    if document is None:
        raise CheckpointFolderError(
            name,
            found="an offset of another format, or one that was changed",
            expected="an offset of awslabs' connector",
            next_step="leave --from out, or name the source by --source",
        )
    metadata = document.pop(_METADATA)
    starts = {ShardId(shard): entry for shard, entry in document.items()}
    path = f"sources/{source}/shard-source/{metadata['batchId']}"
    files = [name for name in folder.listing(path).files if not name.startswith(".")]
    if starts and not files:
        raise UnsupportedError(
            name,
            found=f"no {path}: the connector's metadataCommitterType may be DYNAMODB",
            expected="the ends of the last batch in the checkpoint (metadataCommitterType HDFS)",
            next_step="stop the query and start the other one at_timestamp shortly before its last "
            "batch: some records come twice",
        )
    ends: dict[ShardId, Mapping[str, Any]] = {}
    for file in files:
        try:
            end = json.loads(folder.read(f"{path}/{file}"))
        except (ValueError, RecursionError):
            end = None
        if not isinstance(end, dict):
            raise damaged(checkpoint.location, f"{path}/{file}", "no JSON object", "a position")
        ends[ShardId(file)] = end
    stream = StreamName(str(metadata["streamName"]))
    entries = {
        shard: {**starts.get(shard, {}), **ends.get(shard, {})}
        for shard in sorted(starts.keys() | ends.keys())
    }
    at_latest = [shard for shard, entry in entries.items() if entry.get("iteratorType") == "LATEST"]
    return AwslabsPositions(
        stream=stream,
        positions={
            shard: _position(name, shard, entry, last.planned_ms)
            for shard, entry in entries.items()
        },
        notes=_at_latest(stream, at_latest, last.planned_ms),
    )


def _at_latest(
    stream: StreamName, shards: Sequence[ShardId], planned_ms: int | None
) -> tuple[str, ...]:
    if not shards or planned_ms is None:
        return ()
    remark = (
        f"LATEST in {stream}/{', '.join(shards)} names no record: these shards start at the "
        f"planning of the last batch, {time_text(planned_ms)} by the driver's clock, and some "
        "records may come twice"
    )
    return (remark,)


def without_records(
    positions: Mapping[ShardKey, AfterRecord],
    first: Mapping[ShardKey, SequenceNumber | None],
    planned_ms: int | None,
) -> tuple[str, ...]:
    """Return remarks on positions whose record is not there. `first` has the first records at the
    positions or after them, except where the service refuses the number.

    With enhanced fan-out the connector stores the ContinuationSequenceNumber of an event without
    records, which is the number of no record.
    """
    absent = [
        key
        for key, position in sorted(positions.items())
        if (found := first.get(key)) is None or int(found) != int(position.sequence_number)
    ]
    if not absent:
        return ()
    time = '"<the time of the last batch>"' if planned_ms is None else str(planned_ms)
    remark = (
        f"the shard has no record with the number of its position in {', '.join(map(str, absent))}"
        ": it has expired, or it is a number that enhanced fan-out returns between records, which "
        "the other query refuses with [invalid-position]. Then write "
        f'{{"at_timestamp": {time}}} for the shard in startingPosition: records since then that '
        "were read come twice, and expired ones are not reported"
    )
    return (remark,)


def _parse(text: str | None) -> dict[str, Any] | None:
    document = parse_offset(text)
    if not isinstance(document, dict) or not isinstance(document.get(_METADATA), dict):
        return None
    metadata = document[_METADATA]
    is_one = "streamName" in metadata and _is_number(str(metadata.get("batchId")), _LONG)
    return document if is_one and all(isinstance(one, dict) for one in document.values()) else None


def _is_number(text: str, longest: int) -> bool:
    return text.isascii() and text.isdecimal() and len(text) <= longest


def _position(
    name: str, shard: ShardId, entry: Mapping[str, Any], planned_ms: int | None
) -> Position:
    kind, text = str(entry.get("iteratorType")), str(entry.get("iteratorPosition", ""))
    sub = str(entry.get("subSequenceNumber", "-1"))
    match kind:
        case "TRIM_HORIZON":
            return TrimHorizon()
        case "LATEST" if planned_ms is not None and _is_number(str(planned_ms), _MILLIS):
            # The shard has given no record yet. LATEST of now would leave out those since then.
            return AtTimestamp(millis=EpochMillis(planned_ms))
        case "SHARD_END":
            return ShardEnd()
        case "AT_TIMESTAMP" if _is_number(text, _MILLIS):
            return AtTimestamp(millis=EpochMillis(int(text)))
        case "AFTER_SEQUENCE_NUMBER" if _is_number(text, _SEQUENCE) and (
            sub == "-1" or _is_number(sub, _LONG)
        ):
            return AfterRecord(sequence_number=SequenceNumber(text), sub=max(0, int(sub)))
    raise UnsupportedError(
        f"{shard} in {name}",
        found=f"the position {kind} {text}"[:200],
        expected="TRIM_HORIZON, AT_TIMESTAMP, AFTER_SEQUENCE_NUMBER or SHARD_END, or LATEST in a "
        "batch whose time is known",
        next_step="start the other query at_timestamp shortly before the last batch",
    )
