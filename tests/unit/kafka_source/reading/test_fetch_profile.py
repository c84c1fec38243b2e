"""Which of the two kinds of consumers reads a task's ranges, and how each is set up."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spark_ssp.common.errors import InvalidOptionsError
from spark_ssp.grouping.identifiers import StreamName
from spark_ssp.kafka_source.options.client_properties import ClientProperties
from spark_ssp.kafka_source.reading.confluent_consumer import ConfluentConsumer
from spark_ssp.kafka_source.reading.pool import (
    DEFAULT_RECORD_BYTES,
    FETCH_BYTES,
    RESPONSE_BYTES,
    SMALL_RANGE_BYTES,
    ConsumerKey,
    FetchProfile,
    choose_profile,
    consumer_settings,
)
from tests.support.kafka.reading import part

ORDERS, LARGE = StreamName("orders"), StreamName("large")
KNOWN = {ORDERS: 100.0, LARGE: 100_000.0}
MOST = SMALL_RANGE_BYTES // 100


@pytest.mark.parametrize(
    ("topic", "records", "profile"),
    [
        ("orders", MOST, FetchProfile.SMALL),
        ("orders", MOST + 1, FetchProfile.BULK),
        ("large", 5, FetchProfile.SMALL),
        ("large", 6, FetchProfile.BULK),
        ("unknown", SMALL_RANGE_BYTES // DEFAULT_RECORD_BYTES, FetchProfile.SMALL),
        ("unknown", SMALL_RANGE_BYTES // DEFAULT_RECORD_BYTES + 1, FetchProfile.BULK),
    ],
)
def test_it_goes_by_the_bytes_of_a_range(topic: str, records: int, profile: FetchProfile) -> None:
    start = 1 << 40
    assert choose_profile([part(topic, 0, start, start + records)], KNOWN) is profile


def test_the_largest_range_counts() -> None:
    small = [part("orders", number, 0, MOST) for number in range(100)]
    assert choose_profile(small, KNOWN) is FetchProfile.SMALL
    assert choose_profile([*small, part("orders", 100, 7, MOST + 8)], KNOWN) is FetchProfile.BULK
    assert choose_profile([*small, part("large", 0, 0, 6)], KNOWN) is FetchProfile.BULK
    assert choose_profile([], KNOWN) is FetchProfile.SMALL


def test_a_query_that_says_how_much_to_fetch_has_one_kind() -> None:
    assert (
        choose_profile([part("orders", 0, 0, 1)], KNOWN, {FETCH_BYTES: "1000"}) is FetchProfile.BULK
    )
    assert choose_profile([part("orders", 0, 0, 1)], KNOWN, {"group.id": "g"}) is FetchProfile.SMALL


@given(st.integers(1, 10**6), st.integers(1, 10**6), st.floats(1, 10**6), st.floats(1, 10**6))
def test_more_is_never_smaller(one: int, other: int, record: float, larger: float) -> None:
    sizes = [
        {ORDERS: min(record, larger)},
        {ORDERS: max(record, larger)},
    ]
    found = [
        choose_profile([part("orders", 0, 0, records)], sizes[place])
        for place, records in enumerate(sorted((one, other)))
    ]
    assert found != [FetchProfile.BULK, FetchProfile.SMALL]


def test_the_two_kinds_differ_in_what_they_fetch_alone() -> None:
    client = ClientProperties(public=())
    bulk, small = (
        consumer_settings(ConsumerKey(client=client, group_id="g", profile=profile))
        for profile in FetchProfile
    )
    differing = {name for name in {**bulk, **small} if bulk.get(name) != small.get(name)}
    assert differing == {FETCH_BYTES, "queued.min.messages"}
    given = ClientProperties(public=(("queued.min.messages", "7"),))
    settings = consumer_settings(
        ConsumerKey(client=given, group_id="g", profile=FetchProfile.SMALL)
    )
    assert "queued.min.messages" not in settings


@pytest.mark.parametrize(
    ("given", "answer"),
    [
        ({}, RESPONSE_BYTES),
        ({"message.max.bytes": "2000000"}, 2_000_000),
        ({"message.max.bytes": "1000"}, RESPONSE_BYTES),
        ({"receive.message.max.bytes": "1002000"}, 1_002_000 - 512),
        ({"message.max.bytes": "3000000", "receive.message.max.bytes": "4000000"}, 3_000_000),
        ({"fetch.max.bytes": "5000000"}, None),
    ],
)
def test_the_size_of_an_answer_is_one_that_librdkafka_takes(
    given: dict[str, str], answer: int | None
) -> None:
    client = ClientProperties(public=(("bootstrap.servers", "127.0.0.1:1"), *given.items()))
    settings = consumer_settings(ConsumerKey(client=client, group_id="g"))
    assert settings.get("fetch.max.bytes") == (None if answer is None else str(answer))
    ConfluentConsumer(client, settings).close()


@pytest.mark.parametrize(
    "given",
    [
        {"receive.message.max.bytes": "900000"},
        {"receive.message.max.bytes": "2000000", "message.max.bytes": "3000000"},
    ],
)
def test_the_refusal_of_an_answer_names_the_property_that_bounds_it(given: dict[str, str]) -> None:
    client = ClientProperties(public=(("bootstrap.servers", "127.0.0.1:1"), *given.items()))
    settings = consumer_settings(ConsumerKey(client=client, group_id="g"))
    with pytest.raises(InvalidOptionsError) as raised:
        ConfluentConsumer(client, settings)
    (problem,) = raised.value.problems
    assert problem.option == "kafka.receive.message.max.bytes"
