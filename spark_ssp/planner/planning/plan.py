"""A pipeline's plan, frozen and comparable: every stream with its count, every stage, every table.
As JSON text it is stored beside the checkpoints.

A *stage* is one streaming query: it reads streams, and writes one. Each `partition_by` and each
`output` ends a stage, which is named after it.

`tasks` is the number of tasks that a stream's keys are distributed over: its count when it was
first planned. It stays the same when partitions multiply, since partition p then belongs to task
p mod tasks (fixed tasks, see the design of partition expansion). So linked streams must have equal
`tasks`.

The text, version 1:

    {"v": 1, "pipeline": "delays",
     "streams": [{"stream": "kafka/carriers", "kind": "kafka", "role": "input",
                  "count": {"partitions": 8, "from": "found"}, "tasks": 8}, …],
     "stages": [{"name": "to-named", "reads": [], "writes": "kafka/named", "tables": [],
                 "sources": [], "shape": "join(kafka/a, kafka/b)"}, …],
     "tables": [{"name": "carriers", "key": ["carrier"], "filled_by": [], "joins": []}],
     "sets": [{"streams": [], "case": "mixed", "partitions": 8}]}

Canonical: equal plans have equal text, with sorted keys, an indent of two spaces and a final line
break. Absent fields are false, empty or unknown; a stream is ``system/name``. The streams and
tables of a stage, and those of a table, are in the order in which a query reads them. A stage's
sources, and the shape of several, were added later: plans without them round-trip unchanged. Source
locations and functions are excluded, so neither a moved line nor another machine changes the text.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Any, Final

from spark_ssp.common.errors import IncompatibleStateError
from spark_ssp.common.versioned_json import Codec, Json, VersionedDocument
from spark_ssp.planner.graph.operators import (
    OperatorName,
    StreamId,
    SystemKind,
    SystemName,
    TableName,
)
from spark_ssp.planner.planning.partition_counts import Case, Count, Origin, PartitionGroup


class Role(StrEnum):
    """The role of a stream in the pipeline."""

    INPUT = "input"
    INTERMEDIATE = "intermediate"
    OUTPUT = "output"


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamPlan:
    """One stream. `tasks` is None for streams without fixed tasks: Kinesis, outputs, broadcast
    streams and streams of unknown count."""

    stream: StreamId
    kind: SystemKind
    role: Role
    count: Count
    tasks: int | None
    broadcast: bool = False
    bootstrap: bool = False

    @property
    def partitions(self) -> int | None:
        """The current count, or the one to create the stream with."""
        return self.count.partitions


@dataclass(frozen=True, slots=True, kw_only=True)
class StagePlan:
    """One stage. `reads` is in the order in which its lines meet, left before right: a query's
    checkpoint numbers its sources. `key` contains the columns of a `partition_by`."""

    name: OperatorName
    reads: tuple[StreamId, ...]
    writes: StreamId
    tables: tuple[TableName, ...] = ()
    """Tables that rows are joined with, once for each join, in the order in which rows pass them,
    left before right: a query's checkpoint numbers its states."""
    key: tuple[str, ...] = ()
    sources: tuple[StreamId, ...] | None = None
    """Streams that the stage's query reads (see `stages.sources_of`), with those of its tables, in
    the order in which its checkpoint numbers them, a stream once for each time it is read. None for
    too many to run, and in plans recorded before this field was added."""
    shape: str | None = None
    """The query's combination of its sources (see `stages.QuerySources`), since its checkpoint
    numbers states too. None for a single source, where `sources` is None, and in plans recorded
    before this field was added."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TablePlan:
    """One table: the streams that fill it, and the tables joined with before they do; both in the
    order of `stages.fillers_of`, then in that of the line, a stream once for each line."""

    name: TableName
    key: tuple[str, ...]
    filled_by: tuple[StreamId, ...] = ()
    joins: tuple[TableName, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """The streams, tables and stages of a pipeline. Streams and tables are sorted; a stage comes
    after those whose streams it reads."""

    pipeline: str
    streams: tuple[StreamPlan, ...]
    stages: tuple[StagePlan, ...]
    tables: tuple[TablePlan, ...]
    sets: tuple[PartitionGroup, ...]

    def stream(self, stream: StreamId) -> StreamPlan:
        """Return the plan of a stream. Raises KeyError for a stream outside the pipeline."""
        return {planned.stream: planned for planned in self.streams}[stream]


PLAN_VERSION: Final = 1

_DOCUMENT: Final = VersionedDocument(
    subject="recorded plan of a pipeline",
    article="a",
    noun="plan",
    full_name="a plan",
    next_step="run the pipeline with the spark-ssp version that recorded the plan, or start it "
    "under a new checkpoint root and with other intermediate streams",
)


def to_text(plan: Plan) -> str:
    """Return the plan as text, to be stored in UTF-8."""
    document = _plan_to_json(plan)
    return json.dumps(document, ensure_ascii=False, indent=2, sort_keys=True) + "\n"


class NotJsonError(IncompatibleStateError):
    """The text of a plan is not JSON, as after a write that was cut off."""


def from_text(text: str) -> Plan:
    """Parse a plan. Raises IncompatibleStateError unless `to_text` of this version wrote it;
    NotJsonError if it is not JSON."""
    try:
        document = json.loads(text)
    except (ValueError, RecursionError):
        raise NotJsonError(
            _DOCUMENT.subject,
            found="text that is not JSON",
            expected="a plan as it was written",
            next_step=_DOCUMENT.next_step,
        ) from None
    return _DOCUMENT.read(
        document, {PLAN_VERSION: Codec(parse=_plan_from_json, write=_plan_to_json)}
    )


def is_equivalent(recorded: Plan, planned: Plan) -> bool:
    """Return whether the plans differ at most in the origins of counts, and in counts without
    dependent state (shards, outputs, broadcast), so that `planned` need not be recorded."""
    return _normalized(recorded) == _normalized(planned)


def _normalized(plan: Plan) -> Plan:
    return replace(plan, streams=tuple(_normalized_stream(s) for s in plan.streams), sets=())


def _normalized_stream(stream: StreamPlan) -> StreamPlan:
    partitions = None if stream.tasks is None else stream.partitions
    return replace(stream, count=Count(partitions=partitions, origin=Origin.FOUND))


# --- Writing -------------------------------------------------------------------------------------


def _plan_to_json(plan: Plan) -> Json:
    return {
        "v": PLAN_VERSION,
        "pipeline": plan.pipeline,
        "streams": [_stream_to_json(stream) for stream in plan.streams],
        "stages": [_stage_to_json(stage) for stage in plan.stages],
        "tables": [
            {
                "name": table.name,
                "key": list(table.key),
                "filled_by": _texts_of(table.filled_by),
                "joins": list(table.joins),
            }
            for table in plan.tables
        ],
        "sets": [
            {
                "streams": _texts_of(group.streams),
                "case": group.case.value,
                "partitions": group.partitions,
            }
            for group in plan.sets
        ],
    }


def _stream_to_json(stream: StreamPlan) -> Json:
    count = stream.count
    return _present(
        stream=str(stream.stream),
        kind=stream.kind.value,
        role=stream.role.value,
        count={"from": count.origin.value}
        | _present(
            partitions=count.partitions,
            like=None if count.like is None else str(count.like),
            through=list(count.through) or None,
        ),
        tasks=stream.tasks,
        broadcast=stream.broadcast or None,
        bootstrap=stream.bootstrap or None,
    )


def _stage_to_json(stage: StagePlan) -> Json:
    return _present(
        name=stage.name,
        reads=_texts_of(stage.reads),
        writes=str(stage.writes),
        tables=list(stage.tables),
        key=list(stage.key) or None,
        sources=None if stage.sources is None else _texts_of(stage.sources),
        shape=stage.shape,
    )


def _present(**fields: object) -> Json:
    """Return the fields that are not None."""
    return {name: value for name, value in fields.items() if value is not None}


def _texts_of(streams: tuple[StreamId, ...]) -> list[str]:
    return [str(stream) for stream in streams]


# --- Reading -------------------------------------------------------------------------------------


def _plan_from_json(document: Json) -> Plan:
    return Plan(
        pipeline=_text(document["pipeline"]),
        streams=tuple(_stream_from_json(stream) for stream in document["streams"]),
        stages=tuple(_stage_from_json(stage) for stage in document["stages"]),
        tables=tuple(_table_from_json(table) for table in document["tables"]),
        sets=tuple(_set_from_json(group) for group in document["sets"]),
    )


def _stream_from_json(document: Json) -> StreamPlan:
    return StreamPlan(
        stream=_stream_id(document["stream"]),
        kind=SystemKind(document["kind"]),
        role=Role(document["role"]),
        count=_count_from_json(document["count"]),
        tasks=_count_or_none(document.get("tasks")),
        broadcast=document.get("broadcast", False) is True,
        bootstrap=document.get("bootstrap", False) is True,
    )


def _count_from_json(document: Json) -> Count:
    return Count(
        partitions=_count_or_none(document.get("partitions")),
        origin=Origin(document["from"]),
        like=_stream_id(document["like"]) if "like" in document else None,
        through=_texts(document.get("through", [])),
    )


def _stage_from_json(document: Json) -> StagePlan:
    return StagePlan(
        name=OperatorName(_text(document["name"])),
        reads=_stream_ids(document["reads"]),
        writes=_stream_id(document["writes"]),
        tables=tuple(TableName(name) for name in _texts(document["tables"])),
        key=_texts(document.get("key", [])),
        sources=_stream_ids(document["sources"]) if "sources" in document else None,
        shape=_text(document["shape"]) if "shape" in document else None,
    )


def _table_from_json(document: Json) -> TablePlan:
    return TablePlan(
        name=TableName(_text(document["name"])),
        key=_texts(document["key"]),
        filled_by=_stream_ids(document["filled_by"]),
        joins=tuple(TableName(name) for name in _texts(document["joins"])),
    )


def _set_from_json(document: Json) -> PartitionGroup:
    return PartitionGroup(
        streams=_stream_ids(document["streams"]),
        case=Case(document["case"]),
        partitions=_count_or_none(document["partitions"]),
    )


def _stream_id(text: Any) -> StreamId:
    system, slash, stream = _text(text).partition("/")
    if not (system and slash and stream):
        raise ValueError(f"{text!r} is not a stream")
    return StreamId(system=SystemName(system), stream=stream)


def _stream_ids(texts: Any) -> tuple[StreamId, ...]:
    return tuple(_stream_id(text) for text in _texts(texts))


def _texts(values: Any) -> tuple[str, ...]:
    if not isinstance(values, list):
        raise TypeError(f"{values!r} is not a list")
    return tuple(_text(value) for value in values)


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise TypeError(f"{value!r} is not a string")
    return value


def _count_or_none(value: Any) -> int | None:
    if value is None:
        return None
    if type(value) is not int or value < 1:
        raise ValueError(f"{value!r} is not a partition count")
    return value
