"""Going on with a checkpoint of Spark's own Kafka source."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spark_ssp.common.errors import DataLossError, IncompatibleStateError
from spark_ssp.grouping.assignment import NO_ASSIGNMENT, GroupBySystemStreamPartition
from spark_ssp.grouping.fixed_tasks import FixedTasks, OnPartitionCountChange, PartitionCountError
from spark_ssp.grouping.identifiers import StreamName, SystemStreamPartition
from spark_ssp.kafka_source.model.offset import BEFORE_FIRST_BATCH, Offset, decode, encode
from spark_ssp.kafka_source.model.ranges import plan_ranges
from spark_ssp.kafka_source.model.topic import Assign, Selection, Subscribe, TopicId
from spark_ssp.kafka_source.planning.spark_checkpoint import (
    PlannedBatch,
    SparkOffset,
    decode_any,
    new_partitions_in_batch,
    to_batch,
    to_start_offset,
)
from spark_ssp.kafka_source.planning.topic_metadata import PartitionOffsets, TopicMetadata
from tests.support.kafka.partitions import BY_PARTITION, ssp, ssps, stream
from tests.support.kafka.planning import RULES, after, found, planned, read

O0, O1, O2, O3 = (ssp("orders", number) for number in range(4))
C0 = ssp("clicks", 0)

# As Spark 4 writes it: no blanks, topics and partitions in the order of a hash map.
TEXT = '{"orders":{"1":9,"0":23},"clicks":{"0":5}}'


BY_SSP = FixedTasks(
    grouper=GroupBySystemStreamPartition(), on_count_change=OnPartitionCountChange.REGROUP
)


def ranges_of(batch: PlannedBatch) -> list[tuple[SystemStreamPartition, int, int]]:
    return [
        (one.ssp, one.start, one.end)
        for task in plan_ranges(batch.start, batch.end)
        for one in task.partitions
    ]


def spark(text: str) -> SparkOffset:
    offset = decode_any(json.loads(text))
    assert isinstance(offset, SparkOffset)
    return offset


# --- Whose offset it is ---------------------------------------------------------------------------


def test_an_offset_of_sparks_is_read_as_its_positions() -> None:
    assert list(spark(TEXT).positions.items()) == [(C0, 5), (O0, 23), (O1, 9)]
    assert spark("{}").positions == {}


def test_a_topic_may_be_called_like_our_version() -> None:
    assert spark('{"v":{"0":7},"topics":{"0":8}}').positions == {
        ssp("v", 0): 7,
        ssp("topics", 0): 8,
    }


def test_ours_stays_ours() -> None:
    for offset in (BEFORE_FIRST_BATCH, after({"orders": [5, 5]})):
        assert decode_any(json.loads(json.dumps(encode(offset)))) == offset
    with pytest.raises(IncompatibleStateError, match="offset version 3"):
        decode_any({"v": 3, "topics": {}})


@pytest.mark.parametrize(
    "text",
    [
        '{"logOffset":3}',
        '{"orders":[0,1]}',
        '{"orders":{"0":-1}}',
        '{"orders":{"0":"5"}}',
        '{"orders":{"0":true}}',
        '{"orders":{"00":5}}',
        '{"orders":{"-1":5}}',
        '{"orders":{"x":5}}',
        '{"orders":null}',
    ],
)
def test_another_sources_offset_is_refused(text: str) -> None:
    with pytest.raises(IncompatibleStateError, match="neither an offset of kafka-ssp nor one of"):
        decode_any(json.loads(text))


@pytest.mark.parametrize("document", ["12", 12, None, [], '{"orders":{"0":1}}'])
def test_what_is_no_object_is_refused(document: object) -> None:
    with pytest.raises(IncompatibleStateError, match="no version"):
        decode_any(document)


# --- As the start of a batch ----------------------------------------------------------------------


def test_a_start_of_sparks_has_tasks_and_no_ids() -> None:
    start = to_start_offset(spark(TEXT), BY_PARTITION)
    assert start.topics == {StreamName("clicks"): None, StreamName("orders"): None}
    assert start.positions == {C0: 5, O0: 23, O1: 9}
    assert start.assignment.tasks == {"Partition 0": {C0, O0}, "Partition 1": {O1}}
    assert decode(json.loads(json.dumps(encode(start)))) == start
    assert to_start_offset(start, BY_PARTITION) is start


def test_the_query_goes_on_where_spark_stood_and_learns_the_ids() -> None:
    start = to_start_offset(spark('{"orders":{"0":23,"1":9}}'), BY_PARTITION)
    plan = planned(start, found({"orders": [25, 9]}), RULES)
    assert read(plan) == {"Partition 0": [(O0, 23, 25)]}
    assert plan.end.explicit_starts == {}
    assert plan.end.topics == {StreamName("orders"): "orders-a"}


def test_with_nothing_to_read_the_end_is_ours_all_the_same() -> None:
    start = to_start_offset(spark('{"orders":{"0":23}}'), BY_PARTITION)
    plan = planned(start, found({"orders": [23]}), RULES)
    assert plan.ranges == ()
    assert plan.end.topics == {StreamName("orders"): "orders-a"}
    following = planned(plan.end, found({"orders": [23]}), RULES)
    assert following.end is plan.end


def test_partitions_that_came_since_the_checkpoint_are_an_expansion() -> None:
    start = to_start_offset(spark('{"orders":{"0":5,"1":5}}'), BY_PARTITION)
    plan = planned(start, found({"orders": [6, 7, 8, 9]}), RULES)
    assert read(plan) == {
        "Partition 0": [(O0, 5, 6), (O2, 0, 8)],
        "Partition 1": [(O1, 5, 7), (O3, 0, 9)],
    }
    assert plan.end.assignment.counts == {stream("orders"): (2, 4)}
    with pytest.raises(PartitionCountError, match="3 partitions, 2 before"):
        planned(start, found({"orders": [6, 7, 8]}), RULES)


def test_topics_that_came_since_an_empty_checkpoint_are_read_from_their_oldest_record() -> None:
    """As a pattern without topics leaves it. The options' start was for the first batch alone."""
    start = to_start_offset(spark("{}"), BY_PARTITION)
    plan = planned(start, found({"orders": [9]}), initial_positions={O0: 9})
    assert read(plan) == {"Partition 0": [(O0, 0, 9)]}


def test_a_topic_created_again_is_data_loss_where_its_log_is_another() -> None:
    start = to_start_offset(spark('{"orders":{"0":23}}'), BY_PARTITION)
    with pytest.raises(DataLossError, match="or the topic was deleted and created again"):
        planned(start, found({"orders": [4]}, generation="b"), RULES)
    with pytest.raises(DataLossError, match="after the position 23"):
        planned(start, found({"orders": [90]}, generation="b", earliest=30), RULES)
    with pytest.raises(DataLossError, match="deleted, or hidden from this user"):
        planned(start, {}, RULES)
    first = planned(start, found({"orders": [24]}), RULES).end
    with pytest.raises(DataLossError, match="deleted and created again"):
        planned(first, found({"orders": [90]}, generation="b"), RULES)


def test_brokers_without_ids_leave_the_start_as_it_is() -> None:
    start = to_start_offset(spark('{"orders":{"0":23}}'), BY_PARTITION)
    world = {
        StreamName("orders"): TopicMetadata(partitions={0: PartitionOffsets(earliest=0, end=23)})
    }
    assert planned(start, world, RULES).end is start


def test_a_store_that_knows_more_than_the_checkpoint_gives_its_tasks() -> None:
    fixed = BY_PARTITION
    stored = NO_ASSIGNMENT
    for count in (1, 2, 4):
        stored = fixed.group(stored, ssps({"orders": count, "clicks": 1}))
    start = to_start_offset(spark('{"orders":{"0":5,"1":5}}'), fixed, stored)
    assert start.assignment.counts == {stream("orders"): (1, 2)}
    assert start.assignment.tasks == {"Partition 0": {O0, O1}}
    plan = planned(start, found({"orders": [5, 5, 5, 5]}), replace(RULES, stored=stored))
    assert plan.end.assignment.counts == {stream("orders"): (1, 2, 4)}
    between = to_start_offset(
        spark('{"orders":{"0":5,"1":5}}'),
        fixed,
        fixed.group(fixed.group(NO_ASSIGNMENT, ssps({"orders": 1})), ssps({"orders": 4})),
    )
    assert between.assignment == start.assignment


# --- A batch that Spark's source left unfinished --------------------------------------------------


def test_a_batch_of_sparks_is_read_as_it_was_planned() -> None:
    start, end = spark('{"orders":{"0":23,"1":9}}'), spark('{"orders":{"0":25,"1":9}}')
    assert new_partitions_in_batch(start, end) == ()
    batch = to_batch(start, end, BY_PARTITION, earliest={})
    assert batch.losses == ()
    [task] = plan_ranges(batch.start, batch.end)
    assert (task.task, [(p.ssp, p.start, p.end, p.topic_id) for p in task.partitions]) == (
        "Partition 0",
        [(O0, 23, 25, None)],
    )
    # The batch after it starts at that end.
    following = to_start_offset(end, BY_PARTITION)
    assert following.positions == batch.end.positions
    assert following.assignment == batch.end.assignment


def test_partitions_that_are_new_in_it_begin_at_their_oldest_records() -> None:
    start = spark('{"orders":{"0":5,"1":5}}')
    end = spark('{"orders":{"0":6,"1":5,"2":3,"3":0},"clicks":{"0":9}}')
    assert new_partitions_in_batch(start, end) == (C0, O2, O3)
    batch = to_batch(start, end, BY_PARTITION, earliest={C0: 4, O2: 0, O3: 0})
    assert batch.losses == ()
    assert batch.end.explicit_starts == {C0: 4, O2: 0, O3: 0}
    assert batch.end.assignment.counts == {stream("clicks"): (1,), stream("orders"): (2, 4)}
    [task] = plan_ranges(batch.start, batch.end)
    assert [(p.ssp, p.start, p.end) for p in task.partitions] == [
        (C0, 4, 9),
        (O0, 5, 6),
        (O2, 0, 3),
    ]
    assert decode(json.loads(json.dumps(encode(batch.end)))) == batch.end


def test_lost_records_of_new_partitions_are_reported() -> None:
    start = spark('{"orders":{"0":5}}')
    end = spark('{"orders":{"0":6,"1":5,"2":3,"3":7},"clicks":{"0":9}}')
    batch = to_batch(start, end, BY_PARTITION, earliest={C0: 12, O1: 2, O2: 9})
    assert [(loss.subject, loss.found) for loss in batch.losses] == [
        ("partition clicks-0", "a new partition whose oldest record is 12"),
        ("partition orders-1", "a new partition whose oldest record is 2"),
        ("partition orders-2", "a new partition whose oldest record is 9"),
        ("partition orders-3", "the partition deleted"),
    ]
    assert batch.end.explicit_starts == {C0: 9, O1: 2, O2: 3, O3: 7}


def test_partitions_that_sparks_batch_lacks_are_reported() -> None:
    start = spark('{"orders":{"0":5,"1":5},"clicks":{"0":9,"1":9},"views":{"0":3}}')
    end = spark('{"orders":{"0":6}}')
    batch = to_batch(start, end, BY_SSP, earliest={}, dropped={StreamName("views")})
    assert [(loss.subject, loss.unread) for loss in batch.losses] == [
        ("topic clicks", "clicks"),
        ("partition orders-1", None),
    ]
    assert ranges_of(batch) == [(O0, 5, 6)]


def test_an_end_before_its_start_is_reported_and_nothing_is_read() -> None:
    start = spark('{"orders":{"0":10,"1":5},"clicks":{"0":9}}')
    end = spark('{"orders":{"0":4,"1":7},"clicks":{"0":2}}')
    batch = to_batch(start, end, BY_PARTITION, earliest={}, dropped={StreamName("clicks")})
    (loss,) = batch.losses
    assert (loss.subject, loss.expected) == ("partition orders-0", "an end at 10 or after it")
    assert "an end at 4" in loss.found
    assert ranges_of(batch) == [(O1, 5, 7)]


@pytest.mark.parametrize(
    ("selection", "lost"),
    [
        (Subscribe(topics=(O0.stream,)), ["partition orders-1"]),
        (Assign(partitions=(O0, O1)), []),
    ],
)
def test_partitions_that_the_options_added_have_lost_nothing(
    selection: Selection, lost: list[str]
) -> None:
    start, end = spark('{"orders":{"0":5}}'), spark('{"orders":{"0":6,"1":5}}')
    batch = to_batch(start, end, BY_PARTITION, earliest={O1: 2}, selection=selection)
    assert [loss.subject for loss in batch.losses] == lost
    assert batch.end.explicit_starts == {O1: 2}


def test_a_batch_of_ours_after_sparks_offset_is_planned_again() -> None:
    start = spark('{"orders":{"0":5,"1":5}}')
    plan = planned(to_start_offset(start, BY_PARTITION), found({"orders": [6, 7, 8, 9]}), RULES)
    end = decode_any(json.loads(json.dumps(encode(plan.end))))
    assert new_partitions_in_batch(start, end) == ()
    batch = to_batch(start, end, BY_PARTITION, earliest={})
    assert plan_ranges(batch.start, batch.end) == plan.ranges


def test_a_batch_of_ours_stays_as_it_is() -> None:
    start = after({"orders": [5]})
    end = replace(
        start, positions={O0: 7}, topics={StreamName("orders"): TopicId("a")}, explicit_starts={}
    )
    batch = to_batch(start, end, BY_PARTITION, earliest={})
    assert (batch.start, batch.end, batch.losses) == (start, end, ())


def test_sparks_first_batch_cannot_be_gone_on_with() -> None:
    with pytest.raises(IncompatibleStateError) as caught:
        to_batch(BEFORE_FIRST_BATCH, spark('{"orders":{"0":6}}'), BY_PARTITION, earliest={O0: 0})
    assert "the unfinished first batch of Spark's Kafka source" in caught.value.found
    assert 'format("kafka")' in caught.value.next_step
    assert "sources/0/0" in caught.value.next_step


def test_a_batch_of_sparks_does_not_follow_one_of_ours() -> None:
    with pytest.raises(IncompatibleStateError, match="after one of kafka-ssp"):
        to_batch(after({"orders": [5]}), spark('{"orders":{"0":6}}'), BY_PARTITION, earliest={})


@given(
    st.dictionaries(
        st.sampled_from(["orders", "clicks", "v"]), st.integers(1, 4), min_size=1
    ).flatmap(
        lambda counts: st.tuples(
            st.just(counts),
            st.fixed_dictionaries(
                {one: st.integers(0, (1 << 63) - 1) for one in sorted(ssps(counts))}
            ),
        )
    )
)
def test_whatever_spark_wrote_makes_an_offset_that_is_whole(
    drawn: tuple[dict[str, int], dict[object, int]],
) -> None:
    counts, positions = drawn
    document: dict[str, dict[str, int]] = {name: {} for name in counts}
    for one in ssps(counts):
        document[one.stream][str(one.partition)] = positions[one]
    offset = to_start_offset(spark(json.dumps(document)), BY_PARTITION)
    assert isinstance(offset, Offset)
    assert decode(json.loads(json.dumps(encode(offset)))) == offset
    assert offset.positions == positions
