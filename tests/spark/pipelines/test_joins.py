"""Two streams of a pipeline that are joined with watermarks, on real Kafka."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Final

import orjson
import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from spark_ssp.kafka_source.pipeline_system import KafkaSystem
from spark_ssp.planner import Pipeline, PlanSettings, Services
from tests.support.kafka.topics import KafkaTopics, Record
from tests.support.pipelines.flights_pipeline import without_repeats, written
from tests.support.pipelines.runs import patiently, session_for_pipelines
from tests.support.servers.kafka_broker import KafkaBroker

_DEADLINE_S: Final = 400


def paid_orders(orders: str, payments: str, out: str) -> Pipeline:
    """Orders with their payments, if these come within an hour."""
    pipeline = Pipeline(f"paid-{out}")
    by_id = pipeline.input("kafka", orders).transform(parsed)
    by_id = by_id.partition_by("id", name="by-id", partitions=2)
    paid = pipeline.input("kafka", payments).transform(parsed)
    by_id.join(paid, with_payment).output("kafka", out, name="paid")
    return pipeline


def parsed(frame: DataFrame) -> DataFrame:
    row = F.from_json(F.col("value").cast("string"), "id string, at timestamp")
    return frame.select(row.alias("row")).select("row.*")


def with_payment(orders: DataFrame, payments: DataFrame) -> DataFrame:
    order = orders.withWatermark("at", "10 minutes").alias("order")
    payment = payments.withWatermark("at", "10 minutes").alias("payment")
    its = F.expr(
        "order.id = payment.id and payment.at between order.at and order.at + interval 1 hour"
    )
    return order.join(payment, its, "leftOuter").select(
        "order.id", F.date_format("payment.at", "HH:mm").alias("paid")
    )


class Shop:
    """The topics of one test."""

    def __init__(self, broker: KafkaBroker, topics: KafkaTopics) -> None:
        self._topics = topics
        self._brokers = broker.bootstrap_servers
        # Spark moves rows to their keys, so counts that do not agree make no difference.
        self.orders, self.payments, self.out = (topics.create(count) for count in (2, 3, 2))
        self.pipeline = paid_orders(self.orders, self.payments, self.out)
        topics.adopt(f"paid-{self.out}-by-id")
        self.known = Services(
            {
                "kafka": KafkaSystem(
                    {"kafka.bootstrap.servers": self._brokers},
                    reader={"startingOffsets": "earliest"},
                )
            }
        )

    def put(self, topic: str, **times: str) -> None:
        """By id, when it was: as `09:30`."""
        values = [{"id": name, "at": f"2013-01-01T{time}:00Z"} for name, time in times.items()]
        self._topics.put(topic, [Record(value=orjson.dumps(value)) for value in values])

    def ids(self) -> set[str]:
        """Of which orders something came out."""
        return {orjson.loads(row.value)["id"] for row in written(self._brokers, self.out)}

    def rows(self, spark: SparkSession) -> Counter[tuple[str, str | None]]:
        """What came out: ids and when they were paid. Without repeats: a query that is stopped may
        have written a batch that counts as not done."""
        rows = without_repeats(spark, self._brokers, self.out)
        found = [orjson.loads(row.value) for row in rows]
        return Counter((row["id"], row.get("paid")) for row in found)


@pytest.mark.long
def test_streams_between_stages_are_joined_with_watermarks_through_restarts(
    spark: SparkSession, kafka_broker: KafkaBroker, topics: KafkaTopics, tmp_path: Path
) -> None:
    shop = Shop(kafka_broker, topics)
    session = session_for_pipelines(spark)
    session.conf.set("spark.sql.shuffle.partitions", "1")

    def run(*steps: tuple[Callable[[], None], str], again: Callable[[], None]) -> None:
        """Takes each step, and waits for rows of the orders that it names. `again` is called first
        where it has to be tried again: a watermark may be back by then, and needs new records."""
        to_take = list(steps)

        def once() -> None:
            advised = PlanSettings(agreement="advise")
            planned = shop.pipeline.plan(shop.known, root=str(tmp_path / "root"), settings=advised)
            deadline = time.monotonic() + _DEADLINE_S
            if len(to_take) < len(steps):
                again()
            with planned.run(session, shop.known, processing_time="500 milliseconds") as running:
                for step in steps:
                    if step in to_take:
                        to_take.remove(step)
                        step[0]()
                    while not shop.ids().issuperset(step[1]):
                        assert not running.await_termination(1)
                        assert time.monotonic() < deadline, running.status

        patiently(once)

    def begin() -> None:
        shop.put(shop.orders, a="09:00", b="09:05", c="09:10")
        shop.put(shop.payments, a="09:01")

    def go_on() -> None:
        shop.put(shop.orders, d="12:00")
        shop.put(shop.payments, b="09:06", d="12:30")

    def be_late() -> None:
        shop.put(shop.orders, e="09:30", f="12:40")
        shop.put(shop.payments, c="09:20", e="09:31", f="12:45")

    def end() -> None:
        """Whatever was late is behind it."""
        shop.put(shop.orders, g="12:41")
        shop.put(shop.payments, g="12:46")

    def tick() -> None:
        """Of other ids, which find nothing and do not miss it within the hour."""
        shop.put(shop.orders, z="12:00")
        shop.put(shop.payments, y="12:30")

    run((begin, "a"), again=lambda: None)
    expected: Counter[tuple[str, str | None]] = Counter({("a", "09:01"): 1})
    assert shop.rows(session) == expected

    # Another run knows the orders of the one before. c is not paid within its hour, which is over
    # once both streams are beyond. What is late by then finds nothing any more, and is not told as
    # unpaid.
    run((go_on, "bcd"), (be_late, "f"), (end, "g"), again=tick)
    expected.update([("b", "09:06"), ("d", "12:30"), ("c", None), ("f", "12:45"), ("g", "12:46")])
    assert shop.rows(session) == expected
