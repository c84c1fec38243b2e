"""JSON in options, as Spark's Kafka source takes it, and what it takes in silence."""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spark_ssp.common.options.spec import BadValueError
from spark_ssp.kafka_source.model.topic import AtOffsets, AtTimes, LogicalOffset
from spark_ssp.kafka_source.options.offset_json import (
    parse_offsets,
    parse_partitions,
    parse_timestamps,
)
from tests.support.kafka.partitions import ssp

topics = st.from_regex(r"[a-zA-Z0-9_-]{1,20}", fullmatch=True)


def test_partitions_by_topic() -> None:
    assert parse_partitions('{"topicA":[0,1],"topicB":[4,2,4]}') == (
        ssp("topicA", 0),
        ssp("topicA", 1),
        ssp("topicB", 2),
        ssp("topicB", 4),
    )


def test_offsets_with_sparks_words_for_the_ends() -> None:
    """The example of Spark's guide; -2 is earliest and -1 latest."""
    assert parse_offsets(' {"topicA":{"0":23,"1":-1},"topicB":{"0":-2}} ') == AtOffsets(
        offsets={
            ssp("topicA", 0): 23,
            ssp("topicA", 1): LogicalOffset.LATEST,
            ssp("topicB", 0): LogicalOffset.EARLIEST,
        }
    )


def test_numbers_in_quotes_count_as_numbers() -> None:
    assert parse_offsets('{"a": {"0": "23", "1": "-1"}}') == AtOffsets(
        offsets={ssp("a", 0): 23, ssp("a", 1): LogicalOffset.LATEST}
    )
    assert parse_partitions('{"a": ["0", 1]}') == (ssp("a", 0), ssp("a", 1))


def test_topics_are_spelled_as_they_are() -> None:
    assert list(parse_offsets('{"Orders":{"0":1},"orders":{"0":2}}').offsets) == [
        ssp("Orders", 0),
        ssp("orders", 0),
    ]


def test_times_by_partition() -> None:
    assert parse_timestamps('{"topicA":{"0": 1000, "1": 0}}') == AtTimes(
        times_ms={ssp("topicA", 0): 1000, ssp("topicA", 1): 0}  # type: ignore[dict-item]
    )


@given(
    st.dictionaries(
        topics,
        st.dictionaries(
            st.integers(0, (1 << 31) - 1), st.integers(-2, (1 << 63) - 1), min_size=1, max_size=4
        ),
        min_size=1,
        max_size=3,
    )
)
def test_what_spark_writes_is_read(offsets: dict[str, dict[int, int]]) -> None:
    edges = {-2: LogicalOffset.EARLIEST, -1: LogicalOffset.LATEST}
    text = json.dumps(
        {topic: {str(p): o for p, o in own.items()} for topic, own in offsets.items()}
    )
    assert parse_offsets(text).offsets == {
        ssp(topic, p): edges.get(o, o) for topic, own in offsets.items() for p, o in own.items()
    }


OFFSETS, TIMES, PARTITIONS = parse_offsets, parse_timestamps, parse_partitions


@pytest.mark.parametrize(
    ("parse", "text", "found"),
    [
        (OFFSETS, "", "not JSON"),
        (OFFSETS, "{", "not JSON"),
        (OFFSETS, '{"a":{"0":1}} and more', "not JSON"),
        (OFFSETS, "{'a':{'0':1}}", "not JSON"),
        (OFFSETS, "[" * 100_000, "not JSON"),
        (OFFSETS, '{"a":{"0":' + "9" * 5000 + "}}", "not JSON"),
        (OFFSETS, "[]", "not an object"),
        (OFFSETS, "7", "not an object"),
        (OFFSETS, "{}", "no partitions"),
        (OFFSETS, '{"a":{}}', "no partitions"),
        (OFFSETS, '{"a":[0,1]}', "a without an object of partitions"),
        (OFFSETS, '{"a":{"0":1,"0":2}}', "the key '0' twice"),
        (OFFSETS, '{"a":{"0":1},"a":{"1":2}}', "the key 'a' twice"),
        (OFFSETS, '{"a":{"0":1,"00":2}}', "partition 0 of a twice"),
        (OFFSETS, '{"a":{"x":1}}', "a partition of a with"),
        (OFFSETS, '{"a":{" 0":1}}', "a partition of a with"),
        (OFFSETS, '{"a":{"-1":1}}', "partition -1 of a"),
        (OFFSETS, '{"a":{"2147483648":1}}', "a partition of a with"),
        (OFFSETS, '{"a":{"0":1.5}}', "partition 0 of a with '1.5'"),
        (OFFSETS, '{"a":{"0":1.0}}', "partition 0 of a with '1.0'"),
        (OFFSETS, '{"a":{"0":null}}', "partition 0 of a with 'null'"),
        (OFFSETS, '{"a":{"0":true}}', "partition 0 of a with 'true'"),
        (OFFSETS, '{"a":{"0":"latest"}}', "partition 0 of a with"),
        (OFFSETS, '{"a":{"0":-3}}', "partition 0 of a at -3"),
        (OFFSETS, '{"a":{"0":9223372036854775808}}', "partition 0 of a with"),
        (OFFSETS, '{"a b":{"0":1}}', "'a b'"),
        (OFFSETS, '{"..":{"0":1}}', "'..'"),
        (TIMES, '{"a":{"0":-1}}', "partition 0 of a at -1"),
        (TIMES, '{"a":1000}', "a without an object of partitions"),
        (PARTITIONS, "{}", "no partitions"),
        (PARTITIONS, '{"a":[]}', "no partitions"),
        (PARTITIONS, '{"a":{"0":1}}', "a without a list of partitions"),
        (PARTITIONS, '{"a":[-1]}', "partition -1 of a"),
        (PARTITIONS, '{"a":[0.5]}', "a partition of a with '0.5'"),
        (PARTITIONS, "topicA", "not JSON"),
    ],
)
def test_what_is_wrong_is_named(parse: Callable[[str], object], text: str, found: str) -> None:
    with pytest.raises(BadValueError) as caught:
        parse(text)
    assert found in caught.value.faults[0].found


@given(st.text() | st.recursive(st.none() | st.integers() | st.text(), st.lists).map(json.dumps))
def test_every_text_is_read_or_refused(text: str) -> None:
    for parse in (parse_offsets, parse_timestamps, parse_partitions):
        with suppress(BadValueError):  # Anything else that is raised fails the test.
            parse(text)
