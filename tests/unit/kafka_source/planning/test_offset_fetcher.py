"""What is asked of the brokers, when, in which order, and what again before it counts."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from contextlib import suppress

import pytest

from spark_ssp.common.errors import (
    DataLossError,
    InvalidOptionsError,
    ServiceUnavailableError,
    StreamNotFoundError,
)
from spark_ssp.grouping.identifiers import EpochMillis, StreamName, SystemStreamPartition
from spark_ssp.kafka_source.client.api import OffsetSpec, TopicDescription
from spark_ssp.kafka_source.model.offset import Offset
from spark_ssp.kafka_source.model.topic import AtTime, IsolationLevel, LogicalOffset, TopicId
from tests.support.fakes.kafka_fake import FakeKafka
from tests.support.kafka.driving import FakeQuery, kafka_options
from tests.support.kafka.partitions import ssp
from tests.support.kafka.topics import Record


@pytest.fixture
def kafka() -> FakeKafka:
    fake = FakeKafka()
    fake.create(2, name="orders")
    fake.fill("orders", 3, 4)
    return fake


def describe_error(**counts: int) -> Mapping[StreamName, TopicDescription]:
    return {
        StreamName(name): TopicDescription(topic_id=TopicId("id-1"), partition_count=count)
        for name, count in counts.items()
    }


def calls(query: FakeQuery) -> list[str]:
    """What the next batch asks."""
    assert isinstance(query.kafka, FakeKafka)
    query.kafka.calls.clear()
    query.batch()
    return query.kafka.calls


# --- What is asked --------------------------------------------------------------------------------


def test_a_trigger_asks_for_the_ends_alone_and_now_and_then_for_more(kafka: FakeKafka) -> None:
    query = FakeQuery(kafka)
    assert calls(query) == ["describe", "offsets earliest", "offsets latest"]
    assert calls(query) == ["offsets latest"]
    query.pass_time()
    assert calls(query) == ["describe", "offsets earliest", "offsets latest"]
    assert calls(query) == ["offsets latest"]
    query.restart()
    assert calls(query) == ["describe", "offsets earliest", "offsets latest"]


def test_ends_are_listed_newest_generation_first(kafka: FakeKafka) -> None:
    query = FakeQuery(kafka)
    query.batch()
    kafka.expand("orders", 4)
    query.pass_time()

    def meanwhile() -> None:
        # Whenever an answer is under way, a key moves from partition 1 to partition 3.
        for partition in (1, 3):
            kafka.put("orders", [Record(value=b"", partition=partition)])

    kafka.meanwhile = meanwhile
    read = query.batch()
    # Asked: the topics, the oldest offsets, the ends of 2 and 3, those of 0 and 1.
    assert read == [
        ("Partition 1", ssp("orders", 1), 4, 7),
        ("Partition 1", ssp("orders", 3), 0, 2),
    ]


def test_ends_of_expansions_that_are_seen_at_once_are_listed_apart(kafka: FakeKafka) -> None:
    query = FakeQuery(kafka)
    query.batch()
    kafka.expand("orders", 8)
    query.pass_time()
    moves = iter((2, 6))

    def meanwhile() -> None:
        # Once the ends of 4 to 7 are listed, a key moves from partition 2 to partition 6.
        if kafka.calls[-1] == "offsets latest" and (partition := next(moves, None)) is not None:
            kafka.put("orders", [Record(value=b"", partition=partition)])

    kafka.meanwhile = meanwhile
    assert calls(query) == [
        "describe",
        "offsets earliest",
        *["offsets latest"] * 3,
        # Whether a count was in between.
        "first records 0",
        "offsets latest",
    ]
    assert query.offset.positions[ssp("orders", 2)] == 1
    assert query.offset.positions[ssp("orders", 6)] == 0


def test_expansions_show_when_the_topics_are_asked_for(kafka: FakeKafka) -> None:
    query = FakeQuery(kafka)
    query.batch()
    kafka.expand("orders", 4)
    kafka.fill("orders", 0, 0, 5)
    assert query.batch() is None
    query.pass_time()
    assert query.batch() == [("Partition 0", ssp("orders", 2), 0, 5)]


def test_old_expansions_still_cost_one_call_each(kafka: FakeKafka) -> None:
    query = FakeQuery(kafka)
    query.batch()
    for count in (4, 8):
        kafka.expand("orders", count)
        query.pass_time()
        query.batch()
    assert calls(query) == ["offsets latest"] * 3
    query.restart()
    assert calls(query) == ["describe", "offsets earliest", *["offsets latest"] * 3]


# --- What is asked again --------------------------------------------------------------------------


def test_brokers_that_know_of_fewer_partitions_are_asked_again(kafka: FakeKafka) -> None:
    query = FakeQuery(kafka)
    query.batch()
    kafka.fill("orders", 1)
    query.pass_time()
    kafka.descriptions.extend([describe_error(orders=1), describe_error()])
    assert query.batch() == [("Partition 0", ssp("orders", 0), 3, 4)]
    assert query.time.slept == [1.0, 1.0]
    assert query.batch() is None
    assert query.time.slept == [1.0, 1.0]


def test_an_end_before_the_position_is_asked_for_again(kafka: FakeKafka) -> None:
    query = FakeQuery(kafka)
    query.batch()
    log = kafka.log(ssp("orders", 1))
    last = log.records.pop()
    kafka.meanwhile = lambda: None if query.time.slept == [] else log.records.append(last)
    assert query.batch() == [("Partition 1", ssp("orders", 1), 4, 5)]
    assert query.time.slept == [1.0]


def test_what_stays_lost_fails_the_query_after_all_attempts(kafka: FakeKafka) -> None:
    query = FakeQuery(kafka, kafka_options(fetchOffset_numRetries="5"))
    query.batch()
    kafka.delete("orders")
    with pytest.raises(DataLossError, match="topic orders"):
        query.batch()
    # The first attempt has the topics of the last batch, and so another finding.
    assert query.time.slept == [1.0] * 5


def test_a_topic_created_again_is_a_loss_and_no_rewind(kafka: FakeKafka) -> None:
    query = FakeQuery(kafka)
    query.batch()
    kafka.delete("orders")
    kafka.create(2, name="orders")
    kafka.fill("orders", 9, 9)
    # It holds more than was read: until the topics are asked for, nothing tells.
    query.pass_time()
    with pytest.raises(DataLossError, match="deleted and created again"):
        query.batch()
    query.restart(kafka_options(failOnDataLoss="false"))
    assert query.batch() == [
        ("Partition 0", ssp("orders", 0), 0, 9),
        ("Partition 1", ssp("orders", 1), 0, 9),
    ]
    assert query.batch() is None


def test_partitions_without_an_end_are_asked_again_and_then_an_error(kafka: FakeKafka) -> None:
    query = FakeQuery(kafka)
    query.batch()
    query.pass_time()
    kafka.descriptions.append(describe_error(orders=4))
    assert query.batch() is None
    query.pass_time()
    kafka.descriptions.extend([describe_error(orders=4)] * 3)
    with pytest.raises(ServiceUnavailableError, match="orders-2, orders-3"):
        query.batch()


@pytest.mark.parametrize("start", ["earliest", "latest"])
def test_a_partition_without_a_reported_oldest_record_is_requested_again(
    kafka: FakeKafka, monkeypatch: pytest.MonkeyPatch, start: str
) -> None:
    stale: list[int] = [1]
    ask = kafka.list_offsets

    def list_offsets(
        partitions: Collection[SystemStreamPartition],
        point: OffsetSpec,
        **asked: bool,
    ) -> Mapping[SystemStreamPartition, int | None]:
        if point is LogicalOffset.EARLIEST and stale:
            known = stale.pop()
            partitions = [one for one in partitions if one.partition < known]
        return ask(partitions, point, **asked)

    monkeypatch.setattr(kafka, "list_offsets", list_offsets)
    query = FakeQuery(kafka, kafka_options(startingOffsets=start))
    query.batch()
    assert query.time.slept == ([1.0] if start == "earliest" else [])
    assert query.offset.positions == {
        ssp("orders", 0): 3,
        ssp("orders", 1): 4,
    }
    kafka.expand("orders", 4)
    kafka.fill("orders", 0, 0, 1, 1)
    query.pass_time()
    stale += [2]
    query.time.slept.clear()
    read = query.batch()
    assert read is not None
    assert [one.partition for _, one, _, _ in read] == [2, 3]
    assert query.time.slept == [1.0]
    kafka.expand("orders", 8)
    query.pass_time()
    stale += [4, 4, 4]
    with pytest.raises(ServiceUnavailableError, match=r"orders-4.*oldest record of every"):
        query.batch()


@pytest.mark.parametrize("strategy", ["latest", "error"])
def test_a_partition_without_an_answer_by_time_is_not_at_its_end(
    kafka: FakeKafka, strategy: str
) -> None:
    timed(kafka, 10, 20, 30)
    options = kafka_options(
        subscribe="timed",
        startingTimestamp="15",
        startingOffsetsByTimestampStrategy=strategy,
        failOnDataLoss="false",
    )
    omitted = (AtTime(time_ms=EpochMillis(15)), ssp("timed", 0))
    query = FakeQuery(kafka, options)
    kafka.omitted += [omitted]
    assert query.batch() == [("Partition 0", ssp("timed", 0), 1, 3)]
    assert query.time.slept == [1.0]
    query = FakeQuery(kafka, options)
    kafka.omitted += [omitted] * 3
    with pytest.raises(ServiceUnavailableError, match=r"timed-0: .*the offset by time of every"):
        query.batch()
    assert query.time.slept == [1.0, 1.0]


@pytest.mark.parametrize("tolerated", [False, True])
def test_leaders_that_are_behind_one_after_the_other_are_no_loss(tolerated: bool) -> None:
    """As in a rolling restart: each attempt has another partition's stale end, seen once."""
    kafka = FakeKafka(IsolationLevel.READ_COMMITTED)
    kafka.create(3, name="orders")
    kafka.fill("orders", 10, 10, 10)
    options = kafka_options(failOnDataLoss="false" if tolerated else "true")
    query = FakeQuery(kafka, options)
    query.batch()
    logs = [kafka.log(ssp("orders", number)) for number in range(3)]
    # The last one for two answers in a row.
    behind = iter([logs[1], logs[2], logs[2], None])
    logs[0].open_since = 9

    def next_leader() -> None:
        if kafka.calls[-1] == "offsets latest":
            for log in logs:
                log.open_since = None
            if (one := next(behind, None)) is not None:
                one.open_since = 9

    kafka.meanwhile = next_leader
    query.pass_time()
    assert query.batch() is None
    assert query.planner.losses == 0
    assert len(query.time.slept) == 4


@pytest.mark.parametrize("behind", [[{0}, {0, 1}, {0}], [{0}, {0, 1}, {0}, {0}], [{1}, {0}, {0}]])
@pytest.mark.parametrize("start", ["latest", "earliest"])
def test_no_batch_is_planned_without_the_end_of_a_partition(
    kafka: FakeKafka, behind: list[set[int]], start: str
) -> None:
    """Whichever attempts lack it: the batch after such a one would have more partitions."""
    query = FakeQuery(kafka, kafka_options(startingOffsets=start))
    lacking = iter(behind)

    def omit_ends() -> None:
        if kafka.calls[-1] == "offsets earliest":
            ends = [ssp("orders", number) for number in next(lacking, ())]
            kafka.omitted = [(LogicalOffset.LATEST, end) for end in ends]

    kafka.meanwhile = omit_ends
    with suppress(ServiceUnavailableError):
        query.batch()
    kafka.meanwhile = None
    kafka.omitted = []
    kafka.fill("orders", 1, 1)
    query.pass_time()
    read = query.batch() or []
    assert isinstance(query.offset, Offset)
    assert set(query.offset.positions) == {ssp("orders", 0), ssp("orders", 1)}
    assert {end for _, _, _, end in read} <= {4, 5}


def test_a_start_by_time_misses_no_record_that_comes_between_the_requests(
    kafka: FakeKafka,
) -> None:
    options = kafka_options(
        startingTimestamp="1000", startingOffsetsByTimestampStrategy="latest", subscribe="clicks"
    )
    kafka.create(1, name="clicks")
    kafka.put("clicks", [Record(value=b"", partition=0, time_ms=500)])
    calls: list[str] = []

    def arrive() -> None:
        if kafka.calls[-1] in ("offsets 1000", "offsets latest") and not calls:
            kafka.put("clicks", [Record(value=b"", partition=0, time_ms=1500)])
            calls.append(kafka.calls[-1])

    kafka.meanwhile = arrive
    query = FakeQuery(kafka, options)
    first, second = query.batch(), query.batch()
    assert calls
    found = [*(first or []), *(second or [])]
    assert found == [(found[0][0], ssp("clicks", 0), 1, 2)]


@pytest.mark.parametrize("tolerated", [False, True])
def test_what_is_gone_is_looked_at_afresh_even_with_one_attempt(
    kafka: FakeKafka, tolerated: bool
) -> None:
    kafka.create(1, name="clicks")
    options = kafka_options(
        subscribe="orders,clicks",
        fetchOffset_numRetries="1",
        failOnDataLoss="false" if tolerated else "true",
    )
    query = FakeQuery(kafka, options)
    query.batch()
    kafka.delete("orders")
    kafka.fill("clicks", 2)
    if tolerated:
        assert query.batch() == [("Partition 0", ssp("clicks", 0), 0, 2)]
    else:
        with pytest.raises(DataLossError, match="topic orders: found the topic deleted"):
            query.batch()
    assert query.time.slept == [1.0]


def test_with_nothing_left_a_topic_that_is_created_again_is_read_from_its_beginning(
    kafka: FakeKafka,
) -> None:
    query = FakeQuery(kafka, kafka_options(startingOffsets="latest", failOnDataLoss="false"))
    query.batch()
    kafka.delete("orders")
    query.pass_time()
    assert query.batch() is None
    assert query.time.slept == [1.0, 1.0]
    query.pass_time()
    assert query.batch() is None
    assert query.time.slept == [1.0, 1.0]  # It was confirmed once.
    kafka.create(2, name="orders")
    kafka.fill("orders", 2)
    query.restart()
    assert query.batch() == [("Partition 0", ssp("orders", 0), 0, 2)]


def test_where_the_query_began_raises_no_doubt_of_a_topic_that_came_later(
    kafka: FakeKafka,
) -> None:
    options = kafka_options(
        startingOffsets="latest", failOnDataLoss="false", onPartitionCountChange="regroup"
    )
    query = FakeQuery(kafka, options)
    query.batch()
    kafka.delete("orders")
    kafka.create(1, name="orders")
    kafka.fill("orders", 2)
    query.pass_time()
    assert query.batch() == [("Partition 0", ssp("orders", 0), 0, 2)]
    query.time.slept.clear()
    kafka.fill("orders", 1)
    assert query.batch() == [("Partition 0", ssp("orders", 0), 2, 3)]
    assert query.time.slept == []


def test_retention_that_overtakes_is_noticed_at_the_next_close_look(kafka: FakeKafka) -> None:
    query = FakeQuery(kafka, kafka_options(failOnDataLoss="false", maxOffsetsPerTrigger="2"))
    query.batch()
    kafka.expire("orders", 1, 3)
    query.pass_time()
    assert query.batch() == [
        ("Partition 0", ssp("orders", 0), 1, 2),
        ("Partition 1", ssp("orders", 1), 3, 4),
    ]


# --- At the start ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"subscribe": "orders,clicks"}, "option subscribe: found topics .* not exist: clicks;"),
        ({"assign": '{"orders": [1, 2]}'}, "option assign: found partitions .*: orders-2;"),
    ],
)
def test_what_is_not_there_at_the_start_is_named(
    kafka: FakeKafka, options: dict[str, str], text: str
) -> None:
    query = FakeQuery(kafka, kafka_options(**options))
    with pytest.raises(StreamNotFoundError, match=text):
        query.batch()
    assert query.time.slept == [1.0, 1.0]


def test_a_topic_that_was_made_just_now_is_waited_for(kafka: FakeKafka) -> None:
    kafka.descriptions.append(describe_error())
    query = FakeQuery(kafka)
    assert query.counts() == [7]
    assert query.time.slept == [1.0]


def test_a_pattern_may_match_nothing_yet(kafka: FakeKafka) -> None:
    """As with Spark, what appears later is read from its beginning, also with `latest`."""
    query = FakeQuery(kafka, kafka_options(subscribePattern="^cl", startingOffsets="latest"))
    assert query.batch() == []
    kafka.create(1, name="clicks")
    kafka.fill("clicks", 2)
    assert query.batch() is None
    query.restart()
    assert query.batch() == [("Partition 0", ssp("clicks", 0), 0, 2)]


def test_chosen_partitions_alone_are_read(kafka: FakeKafka) -> None:
    query = FakeQuery(kafka, kafka_options(assign='{"orders": [1]}'))
    assert query.batch() == [("Partition 1", ssp("orders", 1), 0, 4)]
    kafka.expand("orders", 4)
    query.pass_time()
    assert query.batch() is None


# --- Where a new query begins ---------------------------------------------------------------------


def positions(query: FakeQuery) -> list[int]:
    """Where the first batch begins."""
    query.batch()
    assert isinstance(query.offset, Offset)
    return [query.offset.explicit_starts[one] for one in sorted(query.offset.explicit_starts)]


def timed(kafka: FakeKafka, *times: int) -> None:
    kafka.create(1, name="timed")
    kafka.put("timed", [Record(value=b"", time_ms=time) for time in times])


def test_latest_is_anchored_by_an_empty_batch(kafka: FakeKafka) -> None:
    query = FakeQuery(kafka, kafka_options(startingOffsets="latest"))
    assert query.batch() == []
    kafka.fill("orders", 1, 1)
    query.restart()
    assert query.counts() == [2]


def test_offsets_may_be_edges_too(kafka: FakeKafka) -> None:
    kafka.expire("orders", 1, 2)
    start = '{"orders": {"0": -1, "1": -2}}'
    assert positions(FakeQuery(kafka, kafka_options(startingOffsets=start))) == [3, 2]
    start = '{"orders": {"0": 1, "1": -1}}'
    assert positions(FakeQuery(kafka, kafka_options(startingOffsets=start))) == [1, 4]


def test_times_are_the_first_records_so_late(kafka: FakeKafka) -> None:
    timed(kafka, 10, 30, 20, 40)
    for millis, begin in ((5, 0), (11, 1), (25, 1), (31, 3), (40, 3)):
        query = FakeQuery(kafka, kafka_options(subscribe="timed", startingTimestamp=str(millis)))
        assert positions(query) == [begin]
    start = '{"timed": {"0": 31}}'
    query = FakeQuery(kafka, kafka_options(subscribe="timed", startingOffsetsByTimestamp=start))
    assert positions(query) == [3]


def test_a_time_later_than_all_records_is_an_error_or_the_end(kafka: FakeKafka) -> None:
    timed(kafka, 10)
    late = {"subscribe": "timed", "startingTimestamp": "50"}
    with pytest.raises(InvalidOptionsError, match=r"startingTimestamp: .*timed-0;.*Strategy"):
        FakeQuery(kafka, kafka_options(**late)).batch()
    late["startingOffsetsByTimestampStrategy"] = "latest"
    assert positions(FakeQuery(kafka, kafka_options(**late))) == [1]


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"startingOffsets": '{"orders": {"0": 1}}'}, "startingOffsets: .* for orders-1;"),
        (
            {"startingOffsetsByTimestamp": '{"orders": {"0": 1, "1": 1, "2": 1}}'},
            "startingOffsetsByTimestamp: .* not read: orders-2;",
        ),
    ],
)
def test_a_start_by_partition_names_them_all(
    kafka: FakeKafka, options: dict[str, str], text: str
) -> None:
    with pytest.raises(InvalidOptionsError, match=text):
        FakeQuery(kafka, kafka_options(**options)).batch()


@pytest.mark.parametrize("begin", [1, 9])
def test_a_start_outside_of_the_log_is_a_loss(kafka: FakeKafka, begin: int) -> None:
    kafka.expire("orders", 0, 2)
    start = f'{{"orders": {{"0": {begin}, "1": -2}}}}'
    with pytest.raises(DataLossError, match="orders-0"):
        FakeQuery(kafka, kafka_options(startingOffsets=start)).batch()
    query = FakeQuery(kafka, kafka_options(startingOffsets=start, failOnDataLoss="false"))
    assert positions(query) == [2 if begin == 1 else 3, 0]
