"""The options of the Kafka sink: their declarations, and their values as a frozen dataclass.
Executors receive the values by pickle and import this module, so it imports neither the options of
the source nor the parser, `parse`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from spark_ssp.common.errors import shown
from spark_ssp.common.options.shared import BatchWrite, batch_write_option
from spark_ssp.common.options.spec import BadValueError, Fault, option
from spark_ssp.common.options.values import boolean
from spark_ssp.grouping.identifiers import StreamName
from spark_ssp.kafka_source.options.client_properties import ClientProperties
from spark_ssp.kafka_source.options.offset_json import TOPIC, TOPIC_RULE

INCLUDE_REPEAT_HEADERS: Final = "includeRepeatHeaders"


def _topic(text: str) -> StreamName:
    if not TOPIC.fullmatch(text):
        raise BadValueError(
            Fault(found=shown(text), expected=TOPIC_RULE, next_step="give the name of one topic")
        )
    return StreamName(text)


@dataclass(frozen=True, slots=True, kw_only=True)
class SinkOptions:
    """All options of a sink. `topic` None: each row has its topic in the column `topic`.
    `batch_write`: the id of the query and the number of the batch, for a batch write in
    `foreachBatch`."""

    topic: StreamName | None = option(
        "topic",
        _topic,
        "The topic to write to. The column `topic` then has no effect.",
        unset="each row's column `topic`",
    )
    include_repeat_headers: bool = option(
        INCLUDE_REPEAT_HEADERS,
        boolean,
        "Add two headers to each record, by which `drop_duplicates` detects records that were "
        "written again.",
        default="false",
    )
    batch_write: BatchWrite | None = batch_write_option(INCLUDE_REPEAT_HEADERS, "topic")
    client: ClientProperties
