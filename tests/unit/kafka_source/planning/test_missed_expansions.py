"""Counts that no batch saw: what the times of the oldest records tell of them."""

from __future__ import annotations

import random
from collections.abc import Mapping

import pytest

from spark_ssp.common.errors import ServiceUnavailableError
from spark_ssp.grouping.identifiers import SystemStreamPartition
from spark_ssp.kafka_source.client.api import TimedOffset
from spark_ssp.kafka_source.options.values import KafkaOptions
from spark_ssp.kafka_source.planning.plan_batch import Expansion, suspected_counts
from tests.support.fakes.kafka_fake import FakeKafka
from tests.support.kafka.driving import FakeQuery, kafka_options
from tests.support.kafka.partitions import stream
from tests.support.kafka.topics import Record


class Traffic:
    """A second passes from record to record. Keys are spread as a hash spreads them."""

    def __init__(self, kafka: FakeKafka, seed: int) -> None:
        self.kafka = kafka
        self.now = 1_000
        self.random = random.Random(seed)

    def put(self, records: int, every_ms: int = 1_000) -> None:
        for _ in range(records):
            self.now += every_ms
            key = self.random.randrange(200)
            partition = key % len(self.kafka.topics["orders"].logs)
            self.kafka.put(
                "orders",
                [Record(value=b"", partition=partition, time_ms=self.now, key=b"%d" % key)],
            )


def told(
    caplog: pytest.LogCaptureFixture,
    *counts: int,
    records: int = 120,
    at_last: int = 60,
    options: KafkaOptions | None = None,
    seed: int = 7,
    pause_at_last_ms: int = 1_000,
) -> list[str]:
    """What is said of a topic that had these counts, of which the query saw the first and the
    last, with so many records put at each."""
    kafka = FakeKafka()
    kafka.create(counts[0], name="orders")
    traffic = Traffic(kafka, seed)
    query = FakeQuery(kafka, options or kafka_options())
    query.counts()
    for place, count in enumerate(counts):
        if place:
            kafka.expand("orders", count)
        if count == counts[-1]:
            traffic.put(at_last, pause_at_last_ms)
        else:
            traffic.put(records)
    query.restart()
    query.counts()
    query.restart()
    query.counts()
    return [line for line in caplog.messages if "in between" in line]


@pytest.mark.parametrize("at_last", [60, 0])
@pytest.mark.parametrize("counts", [(4, 6, 8), (2, 3, 6), (4, 7, 12), (3, 5, 6), (4, 6, 8, 16)])
def test_a_count_that_is_no_multiple_and_was_written_with_is_warned_of_once(
    caplog: pytest.LogCaptureFixture, counts: tuple[int, ...], at_last: int
) -> None:
    (line,) = told(caplog, *counts, at_last=at_last)
    first, odd, *_ = counts
    assert f"topic orders grew from {first} to {counts[-1]} partitions" in line
    assert f"if it had {odd} partitions in between, which is no multiple of {first}" in line


def test_a_topic_that_is_quiet_after_the_last_expansion_hides_nothing(
    caplog: pytest.LogCaptureFixture,
) -> None:
    for seed in range(20):
        caplog.clear()
        (line,) = told(caplog, 4, 6, 8, 16, seed=seed, pause_at_last_ms=300_000)
        assert "if it had 6 partitions in between" in line


def test_a_request_that_serves_only_the_warning_fails_no_query(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    kafka = FakeKafka()
    kafka.create(4, name="orders")
    query = FakeQuery(kafka)
    query.counts()
    kafka.expand("orders", 8)
    Traffic(kafka, 7).put(60)

    def first_records(*_: object) -> Mapping[SystemStreamPartition, TimedOffset | None]:
        raise ServiceUnavailableError("orders-4", found="no answer", expected="one", next_step="")

    monkeypatch.setattr(kafka, "first_records", first_records)
    query.pass_time()
    assert query.counts() == [60]
    assert [one.levelname for one in caplog.records if "expansion was missed" in one.message] == [
        "WARNING"
    ]


@pytest.mark.parametrize("counts", [(4, 8), (2, 4, 8), (4, 8, 12), (2, 6, 12), (1, 2, 3), (5, 40)])
def test_expansions_to_multiples_are_not(
    caplog: pytest.LogCaptureFixture, counts: tuple[int, ...]
) -> None:
    assert told(caplog, *counts) == []


@pytest.mark.parametrize("counts", [(2, 4, 8), (2, 4, 8, 16), (3, 6, 12)])
def test_a_partition_whose_first_key_comes_late_is_no_sign_of_a_count(
    caplog: pytest.LogCaptureFixture, counts: tuple[int, ...]
) -> None:
    warned = 0
    for seed in range(50):
        caplog.clear()
        warned += bool(told(caplog, *counts, seed=seed))
    # One of 1,000 is chance.
    assert warned <= 1


def test_nor_is_a_count_with_which_next_to_nothing_was_written(
    caplog: pytest.LogCaptureFixture,
) -> None:
    assert told(caplog, 4, 6, 8, records=5) == []


@pytest.mark.parametrize("options", [{"grouper": "single"}, {"onPartitionCountChange": "regroup"}])
def test_nor_is_it_where_no_key_can_be_in_the_wrong_task(
    caplog: pytest.LogCaptureFixture, options: dict[str, str]
) -> None:
    assert told(caplog, 4, 6, 8, options=kafka_options(**options)) == []


def test_the_widest_gap_is_suspected_first_and_an_empty_rest_last() -> None:
    expansion = Expansion(stream=stream("orders"), old=4, new=12)
    times: dict[int, int | None] = {4: 10, 5: 12, 6: 20, 7: 900, 8: 1_000, 9: 950, 10: 990}
    suspected = suspected_counts(expansion, times)
    assert [(one.count, one.from_ms, one.until_ms) for one in suspected] == [
        (7, 20, 900),
        (6, 12, 20),
        (5, 10, 12),
        (11, 1_000, None),
    ]
    assert [one.count for one in suspected_counts(expansion, times, trimmed={6})] == [7, 11]
    found = suspected[0]
    # 8 is the next count that needs no warning: 0.75 ** 25 < 0.001 <= 0.75 ** 24.
    assert found.is_likely({4: 14, 5: 10, 6: 1})
    assert not found.is_likely({4: 14, 5: 9, 6: 1})
    assert suspected_counts(expansion, {**times, 4: None}) == ()
