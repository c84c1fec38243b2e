"""The options of the Kafka source: Spark's names and meaning, ours, and every way to be wrong."""

from __future__ import annotations

import logging
import pickle
import sys
from types import ModuleType

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from spark_ssp.common.errors import InvalidOptionsError, OptionProblem
from spark_ssp.grouping.assignment import (
    AllSspToSingleTask,
    GroupByPartition,
    GroupBySystemStreamPartition,
)
from spark_ssp.grouping.fixed_tasks import ModuloExpansion, OnPartitionCountChange
from spark_ssp.grouping.identifiers import WorkerId
from spark_ssp.kafka_source.model.topic import (
    Assign,
    AtOffsets,
    AtTime,
    AtTimes,
    IsolationLevel,
    LogicalOffset,
    NoMatch,
    Subscribe,
    SubscribePattern,
)
from spark_ssp.kafka_source.options.parse import parse_options
from spark_ssp.kafka_source.options.values import (
    KAFKA_OPTIONS,
    GrouperName,
    KafkaOptions,
    QueryKind,
)
from spark_ssp.kafka_source.planning.plan_batch import create_grouping
from tests.support.kafka.partitions import ssp

BROKERS = {"kafka.bootstrap.servers": "host1:9092,host2:9092"}
LEAST = {**BROKERS, "subscribe": "orders"}
BATCH = QueryKind.BATCH


class Halving:
    """An algorithm as a user would write it."""

    def partition_before_expansion(
        self, current: int, current_count: int, initial_count: int
    ) -> int:
        return current % initial_count


HALVING = "kafka_expansion_of_a_test.Halving"


@pytest.fixture(autouse=True)
def _importable(monkeypatch: pytest.MonkeyPatch) -> None:
    module = ModuleType("kafka_expansion_of_a_test")
    module.Halving = Halving  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, module.__name__, module)


def _parsed(query: QueryKind = QueryKind.STREAM, /, **options: str) -> KafkaOptions:
    return parse_options({**LEAST, **options}, query)


def _problems(
    options: dict[str, str], query: QueryKind = QueryKind.STREAM
) -> tuple[OptionProblem, ...]:
    with pytest.raises(InvalidOptionsError) as caught:
        parse_options(options, query)
    assert caught.value.source == "kafka-ssp"
    return caught.value.problems


def _problem(query: QueryKind = QueryKind.STREAM, /, **options: str) -> OptionProblem:
    (problem,) = _problems({**LEAST, **options}, query)
    return problem


# --- What is understood ---------------------------------------------------------------------------


def test_the_least_that_must_be_given_and_the_defaults() -> None:
    options = parse_options(LEAST)
    assert options == KafkaOptions(
        selection=Subscribe(topics=("orders",)),  # type: ignore[arg-type]
        start=LogicalOffset.LATEST,
        client=options.client,
    )
    assert options.client.config()["bootstrap.servers"] == "host1:9092,host2:9092"
    batch = parse_options(LEAST, BATCH)
    assert (batch.start, batch.end) == (LogicalOffset.EARLIEST, LogicalOffset.LATEST)
    assert batch.group_id_prefix == "spark-kafka-relation"
    assert pickle.loads(pickle.dumps(options)) == options


def test_everything_given() -> None:
    options = _parsed(
        subscribe=" payments ,orders,,orders",
        startingOffsets='{"orders":{"0":23,"1":-1}}',
        startingOffsetsByTimestampStrategy="LATEST",
        failOnDataLoss="FALSE",
        dropTopics=" clicks,views",
        acceptTopicIds='{"payments":"id-2","orders":"4mWqrD-_"}',
        maxOffsetsPerTrigger="100",
        minOffsetsPerTrigger="10",
        maxTriggerDelay="30 seconds",
        maxBytesPerTrigger="64m",
        alignBatches="true",
        trigger="processingtime",
        includeHeaders="true",
        includeTask="true",
        groupIdPrefix="team-a",
        commitOffsetsToGroup="orders-lag",
        pollTimeout="5s",
        partitionDiscoveryInterval="1m",
        grouper="partition",
        tasks="4",
        partitionExpansionAlgorithm=HALVING,
        onPartitionCountChange="regroup",
        assignmentStore="s3://bucket/assignments/orders",
        **{
            "fetchOffset.numRetries": "5",
            "fetchOffset.retryIntervalMs": "20",
            "kafka.isolation.level": "read_committed",
        },
    )
    assert options == KafkaOptions(
        selection=Subscribe(topics=("orders", "payments")),  # type: ignore[arg-type]
        start=AtOffsets(offsets={ssp("orders", 0): 23, ssp("orders", 1): LogicalOffset.LATEST}),
        no_match=NoMatch.LATEST,
        fail_on_data_loss=False,
        drop_topics=("clicks", "views"),  # type: ignore[arg-type]
        accept_topic_ids={"orders": "4mWqrD-_", "payments": "id-2"},  # type: ignore[dict-item]
        max_offsets_per_trigger=100,
        min_offsets_per_trigger=10,
        max_trigger_delay_ms=30_000,
        max_bytes_per_trigger=64 << 20,
        align_batches=True,
        is_triggered_by_time=True,
        include_headers=True,
        include_task=True,
        group_id_prefix="team-a",
        commit_offsets_to_group="orders-lag",
        fetch_offset_attempts=5,
        fetch_offset_retry_interval_ms=20,
        poll_timeout_ms=5_000,
        partition_discovery_interval_ms=60_000,
        relies_on_tasks=True,
        grouper=GrouperName.PARTITION,
        tasks=4,
        expansion_algorithm=HALVING,
        on_partition_count_change=OnPartitionCountChange.REGROUP,
        assignment_store="s3://bucket/assignments/orders",
        isolation_level=IsolationLevel.READ_COMMITTED,
        client=options.client,
    )


def test_names_match_whatever_their_case() -> None:
    lowered = {name.lower(): value for name, value in LEAST.items()}
    assert parse_options(lowered | {"STARTINGOFFSETS": "EARLIEST"}).start is LogicalOffset.EARLIEST


def test_a_pattern_and_chosen_partitions() -> None:
    assert parse_options({**BROKERS, "subscribePattern": "orders-.*"}).selection == (
        SubscribePattern(pattern="orders-.*")
    )
    assert parse_options({**BROKERS, "assign": '{"orders":[2,0]}'}).selection == Assign(
        partitions=(ssp("orders", 0), ssp("orders", 2))
    )


def test_sparks_poll_timeout_is_ours() -> None:
    assert _parsed(**{"kafkaConsumer.pollTimeoutMs": "512"}).poll_timeout_ms == 512


def test_a_time_wins_over_times_by_partition_and_these_over_offsets() -> None:
    """As Spark's guide has it."""
    given_all = {
        "startingTimestamp": "1000",
        "startingOffsetsByTimestamp": '{"orders":{"0":2000}}',
        "startingOffsets": "earliest",
    }
    assert _parsed(**given_all).start == AtTime(time_ms=1000)  # type: ignore[arg-type]
    del given_all["startingTimestamp"]
    times = AtTimes(times_ms={ssp("orders", 0): 2000})  # type: ignore[dict-item]
    assert _parsed(**given_all).start == times
    ends = {
        "endingTimestamp": "1000",
        "endingOffsetsByTimestamp": '{"orders":{"0":2000}}',
        "endingOffsets": "latest",
    }
    assert _parsed(BATCH, **ends).end == AtTime(time_ms=1000)  # type: ignore[arg-type]
    del ends["endingTimestamp"]
    assert _parsed(BATCH, **ends).end == times


def test_the_grouper_that_the_options_describe() -> None:
    assert isinstance(create_grouping(_parsed()).expansion, ModuloExpansion)
    assert create_grouping(_parsed(tasks="3")).grouper == GroupByPartition(tasks=3)
    assert create_grouping(_parsed(grouper="ssp")).grouper == GroupBySystemStreamPartition()
    assert create_grouping(_parsed(grouper="single")).grouper == (
        AllSspToSingleTask(worker=WorkerId("0"))
    )
    custom = create_grouping(
        _parsed(partitionExpansionAlgorithm=HALVING, onPartitionCountChange="regroup")
    )
    assert isinstance(custom.expansion, Halving)
    assert custom.on_count_change is OnPartitionCountChange.REGROUP


# --- Each option wrong in turn --------------------------------------------------------------------

WRONG = {
    "subscribe": [" , ", "a b", "a*", "..", "x" * 250],
    "subscribePattern": ["(", r"\p{Alpha}+"],
    "assign": ["orders", "{}", '{"orders":{"0":1}}'],
    "startingOffsets": ["earlier", "-1", "23", '{"orders":{"0":-3}}', "[]"],
    "startingTimestamp": ["now", "-1", "1.5", "2026-01-01"],
    "startingOffsetsByTimestamp": ["1000", '{"orders":1000}', '{"orders":{"0":-1}}'],
    "startingOffsetsByTimestampStrategy": ["earliest", "fail"],
    "endingOffsets": ["end", '{"orders":{"0":-3}}'],
    "endingTimestamp": ["now"],
    "endingOffsetsByTimestamp": ["1000"],
    "failOnDataLoss": ["yes", "1"],
    "dropTopics": [" , ", "a*", "orders"],
    "acceptTopicIds": ["true", "{}", '{"orders":1}', '{"orders":"a b"}', '{"or ders":"a"}'],
    "maxOffsetsPerTrigger": ["0", "-1", "many", "1.5", "1k"],
    "minOffsetsPerTrigger": ["0", "few"],
    "maxTriggerDelay": ["-1s", "soon", "2 weeks"],
    "maxBytesPerTrigger": ["0", "64 megs"],
    "alignBatches": ["on", "1"],
    "trigger": ["availableNow", "once"],
    "fetchOffset.numRetries": ["0", "often"],
    "fetchOffset.retryIntervalMs": ["-1", "1s"],
    "pollTimeout": ["0", "long"],
    "groupIdPrefix": ["team a"],
    "commitOffsetsToGroup": ["orders lag", ""],
    "includeHeaders": ["yes"],
    "includeTask": ["yes"],
    "grouper": ["key", "GroupByPartition"],
    "tasks": ["0", "1.5", "all"],
    "minPartitions": ["0", "1.5", "100001"],
    "maxRecordsPerPartition": ["0", "-1", "1e3"],
    "partitionExpansionAlgorithm": ["Halving", "not_to_be_had.Halving", f"{HALVING}Twice"],
    "onPartitionCountChange": ["ignore"],
    "assignmentStore": ["orders.json", "s3://user:s3cr3t@bucket/x", "ftp:/x", "hdfs://name/x"],
    "partitionDiscoveryInterval": ["1ms", "2d", "often"],
    "credentialsProvider": ["my_company.aws", "aws:keys()"],
    "credentialsProviderSecretArguments": ["s3cr3t", '["s3cr3t"]'],
    "tokenProvider": ["my_company.kafka", "kafka:token()"],
    "tokenProviderSecretArguments": ["s3cr3t", '["s3cr3t"]'],
}
SELECTING = {"subscribe", "subscribePattern", "assign"}


def test_every_option_is_tried() -> None:
    assert set(WRONG) == {spec.name for spec in KAFKA_OPTIONS.options}


@pytest.mark.parametrize(
    ("name", "value"), [(name, value) for name, values in WRONG.items() for value in values]
)
def test_a_wrong_value_names_its_option(name: str, value: str) -> None:
    options = {**(BROKERS if name in SELECTING else LEAST), name: value}
    problems = _problems(options, BATCH if name.startswith("ending") else QueryKind.STREAM)
    assert {problem.option for problem in problems} == {name}
    assert all(p.found and p.expected and p.next_step for p in problems)
    assert "s3cr3t" not in str(problems)


@pytest.mark.parametrize("name", [spec.name for spec in KAFKA_OPTIONS.options])
def test_an_empty_value_names_its_option(name: str) -> None:
    query = BATCH if name.startswith("ending") else QueryKind.STREAM
    problems = _problems({**(BROKERS if name in SELECTING else LEAST), name: " "}, query)
    assert [(p.option, p.found) for p in problems] == [(name, "an empty value")]


def test_every_problem_is_reported_at_once() -> None:
    problems = _problems({"startingOffsets": "x", "tasks": "0", "kafka.auto.offset.reset": "none"})
    assert [problem.option for problem in problems] == [
        "subscribe",
        "startingOffsets",
        "tasks",
        "kafka.bootstrap.servers",
        "kafka.auto.offset.reset",
    ]


@pytest.mark.parametrize(
    ("options", "option", "found"),
    [
        ({"assign": '{"a":[0]}'}, "subscribe", "subscribe together with assign"),
        ({"subscribePattern": "a"}, "subscribe", "subscribe together with subscribePattern"),
        ({"endingOffsets": "latest"}, "endingOffsets", "an end in a streaming query"),
        ({"endingTimestamp": "1"}, "endingTimestamp", "an end in a streaming query"),
        (
            {"endingOffsetsByTimestamp": '{"a":{"0":1}}'},
            "endingOffsetsByTimestamp",
            "an end in a streaming query",
        ),
        (
            {"minOffsetsPerTrigger": "11", "maxOffsetsPerTrigger": "10"},
            "minOffsetsPerTrigger",
            "11, more than maxOffsetsPerTrigger (10)",
        ),
        ({"tasks": "2", "grouper": "ssp"}, "tasks", "tasks with the grouper ssp"),
        (
            {"minPartitions": "8", "tasks": "2"},
            "minPartitions",
            "minPartitions together with tasks",
        ),
        (
            {"maxRecordsPerPartition": "8", "grouper": "ssp", "includeTask": "true"},
            "maxRecordsPerPartition",
            "maxRecordsPerPartition together with grouper, includeTask",
        ),
        ({"kafka.bootstrap.servers": ""}, "kafka.bootstrap.servers", "an empty value"),
        ({"startingOffset": "latest"}, "startingoffset", "an unknown option"),
        ({"endingSoon": "1"}, "endingsoon", "an unknown option"),
        ({"streamName": "orders"}, "streamName", "an option of the Kinesis source"),
        (
            {"pollTimeout": "1s", "kafkaConsumer.pollTimeoutMs": "1"},
            "pollTimeout",
            "pollTimeout and kafkaConsumer.pollTimeoutMs together",
        ),
    ],
)
def test_options_that_contradict_each_other(
    options: dict[str, str], option: str, found: str
) -> None:
    problem = _problem(**options)
    assert problem.option == option
    assert found in problem.found


@pytest.mark.parametrize(
    ("options", "option", "found"),
    [
        ({"startingOffsets": "latest"}, "startingOffsets", "latest"),
        (
            {"startingOffsets": '{"a":{"0":-1,"1":5}}'},
            "startingOffsets",
            "a-0 at latest",
        ),
        ({"endingOffsets": "earliest"}, "endingOffsets", "earliest"),
        ({"endingOffsets": '{"a":{"0":-2}}'}, "endingOffsets", "a-0 at earliest"),
        (
            {"startingOffsets": '{"a":{"0":5}}', "endingOffsets": '{"a":{"0":4}}'},
            "endingOffsets",
            "a-0 to 4, which starts at 5",
        ),
        (
            {"startingOffsets": '{"a":{"0":5,"1":1}}', "endingOffsets": '{"a":{"0":6}}'},
            "endingOffsets",
            "a-1 without an end",
        ),
        (
            {"startingOffsets": '{"a":{"0":5}}', "endingOffsets": '{"a":{"0":6,"1":6}}'},
            "endingOffsets",
            "a-1 without a start",
        ),
        (
            {
                "startingOffsetsByTimestamp": '{"a":{"0":5}}',
                "endingOffsetsByTimestamp": '{"a":{"0":4}}',
            },
            "endingOffsetsByTimestamp",
            "a-0 to 4, which starts at 5",
        ),
    ],
)
def test_bounds_that_a_batch_query_cannot_have(
    options: dict[str, str], option: str, found: str
) -> None:
    problem = _problem(BATCH, **options)
    assert (problem.option, problem.found) == (option, found)


def test_bounds_that_a_batch_query_can_have() -> None:
    ends = '{"orders":{"0":-1,"1":9}}'
    options = _parsed(BATCH, startingOffsets='{"orders":{"0":3,"1":-2}}', endingOffsets=ends)
    assert options.end == AtOffsets(
        offsets={ssp("orders", 0): LogicalOffset.LATEST, ssp("orders", 1): 9}
    )


# --- What has no effect ---------------------------------------------------------------------------


def _warnings(
    caplog: pytest.LogCaptureFixture, query: QueryKind = QueryKind.STREAM, /, **options: str
) -> list[str]:
    with caplog.at_level(logging.WARNING, logger="spark_ssp"):
        _parsed(query, **options)
    return [record.getMessage() for record in caplog.records]


@pytest.mark.parametrize(
    ("options", "warning"),
    [
        ({"topic": "orders"}, "option topic of Spark has no effect: "),
        ({"mergeSchema": "s3cr3t"}, "option mergeschema is unknown to kafka-ssp"),
        ({"kafka.max.poll.records": "s3cr3t"}, "option kafka.max.poll.records has no effect: "),
        ({"maxTriggerDelay": "1m"}, "maxTriggerDelay has no effect without minOffsetsPerTrigger"),
        (
            {"startingTimestamp": "1", "startingOffsets": "latest"},
            "option startingOffsets has no effect together with startingTimestamp",
        ),
    ],
)
def test_an_option_without_effect_is_named_in_a_warning(
    options: dict[str, str], warning: str, caplog: pytest.LogCaptureFixture
) -> None:
    (line,) = _warnings(caplog, **options)
    assert warning in line
    assert "s3cr3t" not in line


def test_limits_of_triggers_have_no_effect_in_a_batch_query(
    caplog: pytest.LogCaptureFixture,
) -> None:
    assert _warnings(caplog, BATCH, maxOffsetsPerTrigger="5", maxTriggerDelay="1m") == [
        "option maxOffsetsPerTrigger has no effect in a batch query",
        "option maxTriggerDelay has no effect in a batch query",
    ]
    assert _parsed(BATCH, maxOffsetsPerTrigger="5").max_offsets_per_trigger is None


# --- Secrets --------------------------------------------------------------------------------------


def test_no_text_shows_a_secret() -> None:
    secrets = {
        "kafka.sasl.username": "alice",
        "kafka.sasl.password": "s3cr3t",
        "kafka.ssl.key.password": "s3cr3t",
    }
    options = _parsed(**secrets)
    assert options.client.config()["sasl.password"] == "s3cr3t"
    assert "s3cr3t" not in repr(options)
    problems = _problems({**LEAST, **secrets, "kafka.sasl.passwort": "s3cr3t", "tasks": "0"})
    assert len(problems) == 2
    assert "s3cr3t" not in str(problems)


names = st.sampled_from([spec.name for spec in KAFKA_OPTIONS.options]) | st.text(max_size=15)


@given(st.dictionaries(names, st.text(max_size=30), max_size=4), st.sampled_from(QueryKind))
@example({"": "", "\r": ""}, QueryKind.STREAM)
def test_options_are_parsed_or_refused_by_name(raw: dict[str, str], query: QueryKind) -> None:
    try:
        options = parse_options({**BROKERS, **raw}, query)
    except InvalidOptionsError as error:
        problems = error.problems
    else:
        problems = ()
        assert (options.end is None) is (query is QueryKind.STREAM)
    assert all(p.option and p.found and p.expected and p.next_step for p in problems)
