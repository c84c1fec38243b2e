"""The options of the Kafka sink: their declarations, and their values as a frozen dataclass.
Executors receive the values by pickle and import this module, so it imports neither the options of
the source nor the parser, `parse`."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from spark_ssp.common.errors import shown
from spark_ssp.common.options.shared import BatchWrite, batch_write_option
from spark_ssp.common.options.spec import BadValueError, Fault, option
from spark_ssp.common.options.values import boolean, integer, matching, member
from spark_ssp.grouping.identifiers import StreamName
from spark_ssp.kafka_source.options.client_properties import ClientProperties
from spark_ssp.kafka_source.options.offset_json import TOPIC, TOPIC_RULE

INCLUDE_REPEAT_HEADERS: Final = "includeRepeatHeaders"
DELIVERY_GUARANTEE: Final = "deliveryGuarantee"
MARKER_TOPIC: Final = "markerTopic"
TRANSACTION_NAME: Final = "transactionName"
EXACTLY_ONCE_FROM: Final = "exactlyOnceFrom"


class Delivery(StrEnum):
    """The guarantee for each row, as readers of committed records see it."""

    AT_LEAST_ONCE = "at-least-once"
    EXACTLY_ONCE = "exactly-once"


_transaction_name: Final = matching(
    "[A-Za-z0-9._-]{1,100}",
    "letters, digits, dots, hyphens and underscores, at most 100",
    "choose a name that no other sink of the cluster has",
)


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
    batch_write: BatchWrite | None = batch_write_option(
        f"{INCLUDE_REPEAT_HEADERS}` or `{DELIVERY_GUARANTEE}=exactly-once", "topic"
    )
    delivery: Delivery = option(
        DELIVERY_GUARANTEE,
        member(Delivery),
        "`exactly-once`: each task writes its rows in one transaction of Kafka, and a batch that "
        "runs again writes no row twice. Readers need `isolation.level=read_committed`; a write in "
        "`foreachBatch` needs `batchWriteId`.",
        default="at-least-once",
    )
    transaction_name: str | None = option(
        TRANSACTION_NAME,
        _transaction_name,
        "For `exactly-once`: the name in the sink's transactional ids and groups, which begin with "
        "`ssp/<name>/`. Each sink needs its own.",
        unset="the id of the query",
    )
    marker_topic: StreamName | None = option(
        MARKER_TOPIC,
        _topic,
        "For `exactly-once` with a column `topic`: an existing topic that the sink's committed "
        "offsets name. Nothing is written to it. Not together with the option `topic`.",
        unset="the option `topic`",
    )
    exactly_once_from: int = option(
        EXACTLY_ONCE_FROM,
        integer(0),
        "For `exactly-once`: the first batch that is written so, for a query that has written "
        "others before.",
        default="0",
    )
    client: ClientProperties

    @property
    def is_exactly_once(self) -> bool:
        """Return whether rows are written in transactions."""
        return self.delivery is Delivery.EXACTLY_ONCE
