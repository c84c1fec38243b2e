"""Serializes plans as JSON text, version 1, which is stored beside the checkpoints.

    {"v": 1, "pipeline": "delays",
     "streams": [{"stream": "kafka/carriers", "kind": "kafka", "role": "input",
                  "count": {"partitions": 8, "from": "found"}, "tasks": 8}, …],
     "stages": [{"name": "to-named", "reads": [], "writes": "kafka/named", "tables": [],
                 "sources": []}, …],
     "tables": [{"name": "carriers", "key": ["carrier"], "filled_by": [], "joins": []}],
     "sets": [{"streams": [], "case": "mixed", "partitions": 8}]}

Canonical: equal plans have equal text, with sorted keys, an indent of two spaces and a final line
break. Absent fields are false, empty or unknown; a stream is ``system/name``. The streams and
tables of a stage, and those of a table, are in the order in which a query reads them. A stage's
sources were added later: plans without them round-trip unchanged. Source locations and functions
are excluded, so neither a moved line nor another machine changes the text.
"""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any, Final

from spark_ssp.common.documents.versioned_json import Codec, Json, VersionedDocument
from spark_ssp.planner.graph.names import OperatorName, StreamId, SystemKind, SystemName, TableName
from spark_ssp.planner.planning.partition_counts import Case, Count, Origin, PartitionGroup
from spark_ssp.planner.planning.plan import Plan, Role, StagePlan, StreamPlan, TablePlan

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


def from_text(text: str) -> Plan:
    """Parse a plan. Raises IncompatibleStateError unless `to_text` of this version wrote it."""
    try:
        document = json.loads(text)
    except (ValueError, RecursionError):
        raise _DOCUMENT.incompatible("text that is not JSON", "a plan as it was written") from None
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
        "tables": [_table_to_json(table) for table in plan.tables],
        "sets": [_set_to_json(group) for group in plan.sets],
    }


def _stream_to_json(stream: StreamPlan) -> Json:
    document: Json = {
        "stream": str(stream.stream),
        "kind": stream.kind.value,
        "role": stream.role.value,
        "count": _count_to_json(stream.count),
    }
    if stream.tasks is not None:
        document["tasks"] = stream.tasks
    if stream.broadcast:
        document["broadcast"] = True
    if stream.bootstrap:
        document["bootstrap"] = True
    return document


def _count_to_json(count: Count) -> Json:
    document: Json = {"from": count.origin.value}
    if count.partitions is not None:
        document["partitions"] = count.partitions
    if count.like is not None:
        document["like"] = str(count.like)
    if count.through:
        document["through"] = list(count.through)
    return document


def _stage_to_json(stage: StagePlan) -> Json:
    document: Json = {
        "name": stage.name,
        "reads": [str(stream) for stream in stage.reads],
        "writes": str(stage.writes),
        "tables": list(stage.tables),
    }
    if stage.key:
        document["key"] = list(stage.key)
    if stage.sources is not None:
        document["sources"] = [str(stream) for stream in stage.sources]
    return document


def _table_to_json(table: TablePlan) -> Json:
    return {
        "name": table.name,
        "key": list(table.key),
        "filled_by": [str(stream) for stream in table.filled_by],
        "joins": list(table.joins),
    }


def _set_to_json(group: PartitionGroup) -> Json:
    return {
        "streams": [str(stream) for stream in group.streams],
        "case": group.case.value,
        "partitions": group.partitions,
    }


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
