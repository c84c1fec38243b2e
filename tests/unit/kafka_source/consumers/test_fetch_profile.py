"""Which of the two kinds of consumers reads a task's ranges, and how each is set up."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kafka_source.consumers.confluent_consumer import MessageConsumer
from kafka_source.consumers.fetch_profile import (
    ANSWER_BYTES,
    FETCH_BYTES,
    SMALL_RANGE,
    UNKNOWN_RECORD_BYTES,
    Tuning,
    tuning_of,
)
from kafka_source.consumers.pool import ConsumerKey, settings_of
from kafka_source.properties.translation import ClientProperties
from ssp_common.errors import InvalidOptionsError
from task_grouping.identifiers import StreamName
from tests.support.kafka.reading import part

ORDERS, LARGE = StreamName("orders"), StreamName("large")
KNOWN = {ORDERS: 100.0, LARGE: 100_000.0}
MOST = SMALL_RANGE // 100


@pytest.mark.parametrize(
    ("topic", "records", "tuning"),
    [
        ("orders", MOST, Tuning.SMALL),
        ("orders", MOST + 1, Tuning.BULK),
        ("large", 5, Tuning.SMALL),
        ("large", 6, Tuning.BULK),
        ("unknown", SMALL_RANGE // UNKNOWN_RECORD_BYTES, Tuning.SMALL),
        ("unknown", SMALL_RANGE // UNKNOWN_RECORD_BYTES + 1, Tuning.BULK),
    ],
)
def test_it_goes_by_the_bytes_of_a_range(topic: str, records: int, tuning: Tuning) -> None:
    start = 1 << 40
    assert tuning_of([part(topic, 0, start, start + records)], KNOWN) is tuning


def test_the_largest_range_counts() -> None:
    small = [part("orders", number, 0, MOST) for number in range(100)]
    assert tuning_of(small, KNOWN) is Tuning.SMALL
    assert tuning_of([*small, part("orders", 100, 7, MOST + 8)], KNOWN) is Tuning.BULK
    assert tuning_of([*small, part("large", 0, 0, 6)], KNOWN) is Tuning.BULK
    assert tuning_of([], KNOWN) is Tuning.SMALL


def test_a_query_that_says_how_much_to_fetch_has_one_kind() -> None:
    assert tuning_of([part("orders", 0, 0, 1)], KNOWN, {FETCH_BYTES: "1000"}) is Tuning.BULK
    assert tuning_of([part("orders", 0, 0, 1)], KNOWN, {"group.id": "g"}) is Tuning.SMALL


@given(st.integers(1, 10**6), st.integers(1, 10**6), st.floats(1, 10**6), st.floats(1, 10**6))
def test_more_is_never_smaller(one: int, other: int, record: float, larger: float) -> None:
    sizes = [
        {ORDERS: min(record, larger)},
        {ORDERS: max(record, larger)},
    ]
    found = [
        tuning_of([part("orders", 0, 0, records)], sizes[place])
        for place, records in enumerate(sorted((one, other)))
    ]
    assert found != [Tuning.BULK, Tuning.SMALL]


def test_the_two_kinds_differ_in_what_they_fetch_alone() -> None:
    client = ClientProperties(public=())
    bulk, small = (
        settings_of(ConsumerKey(client=client, group_id="g", tuning=tuning)) for tuning in Tuning
    )
    differing = {name for name in {**bulk, **small} if bulk.get(name) != small.get(name)}
    assert differing == {FETCH_BYTES, "queued.min.messages"}
    told = ClientProperties(public=(("queued.min.messages", "7"),))
    settings = settings_of(ConsumerKey(client=told, group_id="g", tuning=Tuning.SMALL))
    assert "queued.min.messages" not in settings


@pytest.mark.parametrize(
    ("told", "answer"),
    [
        ({}, ANSWER_BYTES),
        ({"message.max.bytes": "2000000"}, 2_000_000),
        ({"message.max.bytes": "1000"}, ANSWER_BYTES),
        ({"receive.message.max.bytes": "1002000"}, 1_002_000 - 512),
        ({"message.max.bytes": "3000000", "receive.message.max.bytes": "4000000"}, 3_000_000),
        ({"fetch.max.bytes": "5000000"}, None),
    ],
)
def test_the_size_of_an_answer_is_one_that_librdkafka_takes(
    told: dict[str, str], answer: int | None
) -> None:
    client = ClientProperties(public=(("bootstrap.servers", "127.0.0.1:1"), *told.items()))
    settings = settings_of(ConsumerKey(client=client, group_id="g"))
    assert settings.get("fetch.max.bytes") == (None if answer is None else str(answer))
    MessageConsumer(client, settings, headers=False).close()


@pytest.mark.parametrize(
    "told",
    [
        {"receive.message.max.bytes": "900000"},
        {"receive.message.max.bytes": "2000000", "message.max.bytes": "3000000"},
    ],
)
def test_the_refusal_of_an_answer_names_the_property_that_bounds_it(told: dict[str, str]) -> None:
    client = ClientProperties(public=(("bootstrap.servers", "127.0.0.1:1"), *told.items()))
    settings = settings_of(ConsumerKey(client=client, group_id="g"))
    with pytest.raises(InvalidOptionsError) as raised:
        MessageConsumer(client, settings, headers=False)
    (problem,) = raised.value.problems
    assert problem.option == "kafka.receive.message.max.bytes"
