"""The delay of partitions in offsets and in time, over a model of the brokers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spark_ssp.grouping.identifiers import StreamName, SystemStreamPartition
from spark_ssp.kafka_source.model.topic import kafka_name, partition_of
from spark_ssp.kafka_source.planning.spark_checkpoint import SparkOffset
from spark_ssp.operations.health import Behind, Part, Reader, Verdict
from spark_ssp.operations.inspection.parts import kafka_parts
from spark_ssp.operations.inspection.positions import Earlier
from spark_ssp.operations.inspection.spark_checkpoint import (
    KAFKA,
    SPARK_KAFKA,
    Source,
    decode_offset,
)
from spark_ssp.operations.inspection.topics import record_ages
from tests.support.fakes.kafka_fake import FakeKafka
from tests.support.kafka.topics import Record
from tests.support.operations.reports import kafka_end_offset

MINUTE = 60_000
NOW = 1_795_464_000_000
ORDERS = StreamName("orders")
FIRST, SECOND = (partition_of(ORDERS, number) for number in (0, 1))


@pytest.fixture
def kafka() -> FakeKafka:
    """A topic of two partitions: the first has a record a minute, for an hour until now."""
    kafka = FakeKafka()
    kafka.create(2, name="orders")
    _write(kafka, range(60, 0, -1))
    return kafka


def _write(kafka: FakeKafka, minutes_ago: Any, partition: int = 0) -> None:
    kafka.put(
        "orders",
        [
            Record(value=b"", partition=partition, time_ms=NOW - MINUTE * minutes)
            for minutes in minutes_ago
        ],
    )


def _source(committed: Mapping[SystemStreamPartition, int], planned: int | None = None) -> Source:
    """A source of Spark's, at these offsets; `planned` is that of the first partition."""
    after = None if planned is None else SparkOffset(positions={**committed, FIRST: planned})
    return Source(
        index=0,
        format=SPARK_KAFKA,
        committed=SparkOffset(positions=dict(committed)),
        planned=after,
    )


def _parts(
    kafka: FakeKafka,
    source: Source,
    earlier: Earlier | None = None,
    *,
    retention_ms: int | None = None,
) -> dict[str, Part]:
    parts, findings = kafka_parts(
        kafka,
        source,
        earlier or Earlier(),
        retention_ms=retention_ms,
        limit_ms=10 * MINUTE,
        now_ms=NOW,
    )
    assert not findings
    return {part.name: part for part in parts}


def test_delays_in_offsets_and_in_time(kafka: FakeKafka) -> None:
    parts = _parts(kafka, _source({FIRST: 40, SECOND: 0}, planned=58))
    first = parts["orders-0"]
    assert first.committed.offsets == 20
    assert 20 * MINUTE <= (first.committed.ms or 0) <= 40 * MINUTE
    assert first.planned.offsets == 2
    assert 2 * MINUTE <= (first.planned.ms or 0) <= 4 * MINUTE
    assert parts["orders-1"].committed == Behind(ms=0, offsets=0)
    assert first.reader is Reader.QUERY


@given(st.lists(st.integers(0, 10_000_000), min_size=1, max_size=30), st.data())
def test_an_age_is_rounded_up_to_at_most_twice(ages: list[int], data: st.DataObject) -> None:
    """And is exact in comparison with the marks."""
    kafka = FakeKafka()
    kafka.create(1, name="orders")
    kafka.put(
        "orders",
        [Record(value=b"", partition=0, time_ms=NOW - age) for age in sorted(ages, reverse=True)],
    )
    offset = data.draw(st.integers(0, len(ages) - 1))
    mark = data.draw(st.integers(1, 20_000_000))
    true = sorted(ages, reverse=True)[offset]
    found = record_ages(kafka, [(FIRST, offset)], NOW, [mark])[FIRST, offset]
    assert true <= found <= max(2 * true, 4_000)
    assert (found > mark) == (true > mark)


def test_a_record_without_a_time_has_no_age() -> None:
    kafka = FakeKafka()
    kafka.create(1, name="orders")
    kafka.put("orders", [Record(value=b"", partition=0)])
    (part,) = _parts(kafka, _source({FIRST: 0})).values()
    assert part.committed == Behind(ms=None, offsets=1)


@pytest.mark.parametrize(("offset", "known"), [(0, True), (1, False), (40, False)])
def test_a_time_in_the_future_hides_the_ages_after_it(offset: int, known: bool) -> None:
    """Brokers return that record for every time: it does not show how old the others are, and that
    it was read already changes nothing. It is no delay of 0."""
    kafka = FakeKafka()
    kafka.create(1, name="orders")
    _write(kafka, [300, -1440, *range(240, 0, -1)])
    (part,) = _parts(kafka, _source({FIRST: offset})).values()
    assert (part.committed.ms is not None, part.committed.offsets) == (known, 242 - offset)


def test_the_clock_of_a_producer_may_be_a_little_ahead() -> None:
    kafka = FakeKafka()
    kafka.create(1, name="orders")
    kafka.put("orders", [Record(value=b"", partition=0, time_ms=NOW + 5_000)])
    (part,) = _parts(kafka, _source({FIRST: 0})).values()
    assert part.committed == Behind(ms=0, offsets=1)


@pytest.mark.parametrize(("read_before", "pace"), [(0, 3.0), (35, 0.5)])
def test_the_pace_of_the_last_batches(kafka: FakeKafka, read_before: int, pace: float) -> None:
    """In the ten minutes before the last commit; ten records were written since as long ago."""
    earlier = Earlier(
        offset=SparkOffset(positions={FIRST: read_before, SECOND: 0}),
        elapsed_ms=10 * MINUTE,
        last_ms=NOW - MINUTE,
    )
    reached = 30 if read_before == 0 else 40
    part = _parts(kafka, _source({FIRST: reached, SECOND: 0}), earlier)["orders-0"]
    assert part.pace is not None
    assert part.pace.backlog == 60 - reached
    assert part.pace.read / part.pace.written == pytest.approx(pace)


def test_the_pace_is_not_known_if_there_was_no_more_to_read(kafka: FakeKafka) -> None:
    earlier = Earlier(
        offset=SparkOffset(positions={FIRST: 40}), elapsed_ms=MINUTE, last_ms=NOW - 60 * MINUTE
    )
    assert _parts(kafka, _source({FIRST: 40, SECOND: 0}), earlier)["orders-0"].pace is None


def test_records_that_expired_unread(kafka: FakeKafka) -> None:
    kafka.expire("orders", 0, before=20)
    parts = _parts(kafka, _source({FIRST: 10, SECOND: 0}), retention_ms=60 * MINUTE)
    assert (parts["orders-0"].is_lost, parts["orders-1"].is_lost) == (True, False)
    assert parts["orders-0"].retention_ms == 60 * MINUTE


def test_an_added_partition_is_unread(kafka: FakeKafka) -> None:
    kafka.expand("orders", 3)
    _write(kafka, [30, 20], partition=2)
    part = _parts(kafka, _source({FIRST: 60, SECOND: 0}))["orders-2"]
    assert (part.reader, part.committed.offsets) == (Reader.WAITING, 2)


@pytest.mark.parametrize("assigned", [{1}, {0, 2}, {1, 2}])
def test_other_partitions_than_those_of_assign_are_not_unread(
    kafka: FakeKafka, assigned: set[int]
) -> None:
    """Nor those of another topic of the query, of which it has the first ones."""
    kafka.expand("orders", 4)
    kafka.create(2, name="clicks")
    known = [*(partition_of(ORDERS, n) for n in assigned), partition_of(StreamName("clicks"), 0)]
    parts = _parts(kafka, _source(dict.fromkeys(known, 0)))
    assert parts.keys() == {kafka_name(ssp) for ssp in known}


def test_topics_that_are_not_those_of_the_checkpoint(kafka: FakeKafka) -> None:
    end = kafka_end_offset("orders", 2, 0)
    end["topics"]["orders"]["id"] = "another"
    source = Source(index=0, format=KAFKA, committed=decode_offset(end))
    for change in ("deleted and created again", "deleted, or hidden"):
        if "hidden" in change:
            kafka.delete("orders")
        parts, (finding,) = kafka_parts(
            kafka, source, Earlier(), retention_ms=None, limit_ms=MINUTE, now_ms=NOW
        )
        assert (parts, finding.verdict) == ([], Verdict.FAILED)
        assert f"topic orders was {change}" in finding.reason
        assert finding.remedy.startswith("check --bootstrap-servers")


def test_a_position_after_the_end_is_a_failure(kafka: FakeKafka) -> None:
    (part, _), (finding,) = kafka_parts(
        kafka,
        _source({FIRST: 61, SECOND: 0}),
        Earlier(),
        retention_ms=None,
        limit_ms=MINUTE,
        now_ms=NOW,
    )
    assert finding.verdict is Verdict.FAILED
    assert "orders-0 ends at 60, before the position 61" in finding.reason
    assert part.committed == Behind()  # and no lag of 0
