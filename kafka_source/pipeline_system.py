"""Kafka as a system of a pipeline (`spark_ssp.planner.graph.systems.System`). Topics are described
and created over the client of this package, and read and written by the format `kafka-ssp`."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Final, Protocol

from spark_ssp.common.errors import InvalidOptionsError, OptionProblem, ServiceUnavailableError
from spark_ssp.common.options.shared import BATCH_WRITE_ID
from spark_ssp.common.times import seconds_text
from spark_ssp.grouping.fixed_tasks import OnPartitionCountChange
from spark_ssp.grouping.identifiers import StreamName
from spark_ssp.kafka_source.client.admin_client import connect
from spark_ssp.kafka_source.client.api import TopicDescription
from spark_ssp.kafka_source.model.topic import Selection, Subscribe
from spark_ssp.kafka_source.options.client_properties import PREFIX
from spark_ssp.kafka_source.options.parse import SOURCE, parse_options
from spark_ssp.kafka_source.options.property_values import ISOLATION_LEVEL
from spark_ssp.kafka_source.options.values import KAFKA_OPTIONS, KafkaOptions
from spark_ssp.kafka_source.sink.options import (
    DELIVERY_GUARANTEE,
    INCLUDE_REPEAT_HEADERS,
    MARKER_TOPIC,
    Delivery,
)
from spark_ssp.kafka_source.sink.parse import SINK_OPTIONS
from spark_ssp.planner.graph.operators import SystemKind
from spark_ssp.planner.graph.systems import SparkFormat, StreamUse, stream_exists_error

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

TIMEOUT_S: Final = 60.0
"""The time for metadata of a new or deleted topic to reach all brokers."""

_PAUSE_S: Final = 0.2

_CLEANUP: Final = "cleanup.policy"
_KEPT: Final[Mapping[str, str]] = {"retention.ms": "-1", "retention.bytes": "-1"}
"""The configuration of a topic that keeps all its records."""

_ON_COUNT_CHANGE: Final = "onPartitionCountChange"

_STARTS: Final = ("startingOffsets", "startingOffsetsByTimestamp", "startingTimestamp")


class TopicAdmin(Protocol):
    """The methods needed of the client; contracts and errors as in `KafkaService`."""

    def describe(self, selection: Selection) -> Mapping[StreamName, TopicDescription]:
        """Return the topics of a selection that exist."""
        ...

    def create_topic(
        self,
        topic: StreamName,
        *,
        partitions: int,
        replication_factor: int | None,
        config: Mapping[str, str] | None,
    ) -> bool:
        """Create a topic, and return False if one of that name exists."""
        ...


class KafkaSystem:
    """A Kafka cluster as a `System`.

    `options` are options of the format `kafka-ssp` for reading and writing, mainly `kafka.*`;
    `reader` and `writer` are added for one of the two. None may name a topic, set repeat headers or
    regroup: the pipeline names the topics; all its streams have repeat headers, without which it
    could not read them, unless `writer` has `deliveryGuarantee=exactly-once`; and its plans rely on
    tasks that keep their keys.

    `replication_factor` and `topic_config` apply to topics created here; the default is the
    brokers'. A topic that fills tables keeps all its records, despite any retention in
    `topic_config`, since a stage that is added later reads it from its first record.
    `table_topic_config` overrides both for topics that only fill tables, without a function that
    keeps state, and may enable compaction.

    Raises InvalidOptionsError if options name topics, set repeat headers or regroup, or enable
    compaction of a topic of events; the first call raises for other invalid options. `timeout_s`
    limits the wait until all brokers know a new topic.
    """

    def __init__(
        self,
        options: Mapping[str, str],
        *,
        reader: Mapping[str, str] | None = None,
        writer: Mapping[str, str] | None = None,
        replication_factor: int | None = None,
        topic_config: Mapping[str, str] | None = None,
        table_topic_config: Mapping[str, str] | None = None,
        timeout_s: float = TIMEOUT_S,
        connect: Callable[[KafkaOptions], TopicAdmin] = connect,
        monotonic: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._reader = {**options, **(reader or {})}
        self._writer = {**options, **(writer or {})}
        self._replication_factor = replication_factor
        self._topic_config = dict(topic_config or {})
        self._table_topic_config = dict(table_topic_config or {})
        self._timeout_s = timeout_s
        self._connect = connect
        self._monotonic = monotonic
        self._sleep = sleep
        self._topics: TopicAdmin | None = None
        self._known_to_exist: set[str] = set()
        problems = [
            *_naming_problems({**self._reader, **self._writer}),
            *_repeat_problems(self._writer),
            *_task_problems(self._reader),
            *_compaction_problems(self._topic_config),
        ]
        if problems:
            raise InvalidOptionsError(SOURCE, problems)

    @property
    def kind(self) -> SystemKind:
        return SystemKind.KAFKA

    def __repr__(self) -> str:
        return f"KafkaSystem(options {', '.join(sorted({**self._reader, **self._writer}))})"

    def partition_count(self, stream: str) -> int | None:
        """Implement `System.partition_count`. Waits for a topic that this object knows to exist:
        the broker that is asked may not know it yet."""
        count = self._count(stream)
        if count is None and stream in self._known_to_exist:
            return self._wait_for_count(stream, self._deadline())
        return count

    def create(self, stream: str, partitions: int, *, use: StreamUse = StreamUse.EVENTS) -> None:
        """Implement `System.create`."""
        deadline = self._deadline()
        while not self._service(stream).create_topic(
            StreamName(stream),
            partitions=partitions,
            replication_factor=self._replication_factor,
            config=self._config(use),
        ):
            if self._count(stream) is not None:
                self._known_to_exist.add(stream)
                raise stream_exists_error(stream, "a topic of that name")
            # The topic is being deleted, or was created a moment ago.
            self._wait(stream, deadline)
        self._wait_for_count(stream, deadline)
        self._known_to_exist.add(stream)

    def reader_format(
        self, stream: str, *, from_start: bool = False, keep_tasks: bool = True
    ) -> SparkFormat:
        """Implement `System.reader_format`. The grouper is left to the options and the checkpoint:
        a query that another release, or other options, started keeps the tasks that it has."""
        change = OnPartitionCountChange.KEEP if keep_tasks else OnPartitionCountChange.REGROUP
        options = KAFKA_OPTIONS.left_out(self._reader, _ON_COUNT_CHANGE)
        options[_ON_COUNT_CHANGE] = change.value
        if from_start:
            options = KAFKA_OPTIONS.left_out(options, *_STARTS)
            options["startingOffsets"] = "earliest"
        return SparkFormat(SOURCE, {**options, "subscribe": stream})

    def writer_format(self, stream: str) -> SparkFormat:
        """Implement `System.writer_format`."""
        return SparkFormat(SOURCE, {**self._writer, "topic": stream})

    # --- Deduplication (`DropsRepeats` of the planner) --------------------------------------------

    @property
    def has_duplicates(self) -> bool:
        """Return whether a topic may have records twice: not if it is written exactly once."""
        names = SINK_OPTIONS.spellings(DELIVERY_GUARANTEE)
        given = [text for name, text in self._writer.items() if name.strip().lower() in names]
        return Delivery.EXACTLY_ONCE not in [text.strip().lower() for text in given]

    @property
    def needs_fixed_division(self) -> bool:
        """Return whether a batch that is written again needs its rows in the same tasks, whose
        markers prove which rows have been written."""
        return not self.has_duplicates

    @property
    def repeat_reader_options(self) -> Mapping[str, str]:
        """The additional options of a reader, so that `drop_duplicates` can detect repeats, or so
        that there are none."""
        if self.has_duplicates:
            return {"includeHeaders": "true"}
        return {f"{PREFIX}{ISOLATION_LEVEL}": "read_committed"}

    @property
    def repeat_writer_options(self) -> Mapping[str, str]:
        """The additional options of a writer, so that its readers can detect repeats."""
        return {INCLUDE_REPEAT_HEADERS: "true"} if self.has_duplicates else {}

    @property
    def batch_write_option(self) -> str:
        """The option that identifies the batch and the query of a batch write."""
        return BATCH_WRITE_ID

    def drop_duplicates(self, frame: DataFrame) -> DataFrame:
        """Return the rows of a topic without those that a sink wrote again, as the function
        `drop_duplicates` does."""
        # Only this method needs Spark.
        from spark_ssp.kafka_source.dedup.deduplicate import drop_duplicates

        return drop_duplicates(frame)

    # ----------------------------------------------------------------------------------------------

    def _config(self, use: StreamUse) -> Mapping[str, str]:
        kept = {} if use is StreamUse.EVENTS else _KEPT
        own = self._table_topic_config if use is StreamUse.TABLE else {}
        return {**self._topic_config, **kept, **own}

    def _service(self, stream: str) -> TopicAdmin:
        if self._topics is None:
            # Options need a topic; the connection does not depend on it.
            options = parse_options({**self._reader, "subscribe": stream})
            self._topics = self._connect(options)
        return self._topics

    def _count(self, stream: str) -> int | None:
        name = StreamName(stream)
        topic = self._service(stream).describe(Subscribe(topics=(name,))).get(name)
        return None if topic is None else topic.partition_count

    def _wait_for_count(self, stream: str, deadline: float) -> int:
        """Return the count, once a broker returns it."""
        while (count := self._count(stream)) is None:
            self._wait(stream, deadline)
        return count

    def _deadline(self) -> float:
        return self._monotonic() + self._timeout_s

    def _wait(self, stream: str, deadline: float) -> None:
        if self._monotonic() >= deadline:
            raise ServiceUnavailableError(
                f"topic {stream}",
                found=f"a topic that neither exists nor can be created, for "
                f"{seconds_text(self._timeout_s)}",
                expected="a topic that exists soon after its creation, or disappears soon after "
                "its deletion",
                next_step="check the brokers' logs, then apply the plan again",
            )
        self._sleep(_PAUSE_S)


def _compaction_problems(config: Mapping[str, str]) -> Iterator[OptionProblem]:
    policy = config.get(_CLEANUP, "")
    if "compact" in policy.lower():
        yield OptionProblem(
            option=f"topic_config {_CLEANUP}",
            found=policy,
            expected="delete: compaction removes records that a stage may need",
            next_step="set it in table_topic_config, which is for topics that only fill tables",
        )


def _naming_problems(options: Mapping[str, str]) -> Iterator[OptionProblem]:
    naming = KAFKA_OPTIONS.spellings("subscribe", "subscribePattern", "assign")
    naming |= SINK_OPTIONS.spellings("topic", MARKER_TOPIC)
    for name in sorted(options):
        if name.strip().lower() in naming:
            yield OptionProblem(
                option=name,
                found="a topic",
                expected="options without a topic: the pipeline names the topics of a system",
                next_step="remove it",
            )


def _repeat_problems(writer: Mapping[str, str]) -> Iterator[OptionProblem]:
    switch = SINK_OPTIONS.spellings(INCLUDE_REPEAT_HEADERS)
    for name in sorted(writer):
        is_switch = name.strip().lower() in switch
        off = is_switch and writer[name].strip().lower() != "true"
        if off or name.strip().lower() in SINK_OPTIONS.spellings(BATCH_WRITE_ID):
            yield OptionProblem(
                option=name,
                found="a value other than true" if is_switch else "an identity",
                expected="the pipeline's setting: it writes repeat headers, by which its stages "
                "drop duplicates",
                next_step="remove it",
            )


def _task_problems(reader: Mapping[str, str]) -> Iterator[OptionProblem]:
    names = KAFKA_OPTIONS.spellings(_ON_COUNT_CHANGE)
    for name in sorted(reader):
        value = reader[name].strip().lower()
        if name.strip().lower() in names and value != OnPartitionCountChange.KEEP:
            yield OptionProblem(
                option=name,
                found=repr(reader[name]),
                expected="keep: a plan relies on tasks that keep their keys, except for broadcast "
                "inputs, which the pipeline reads with regroup itself",
                next_step="remove it; a query that regrouped before keeps the tasks that it has",
            )
