"""Topics filled for benchmarks, by separate processes."""

from __future__ import annotations

import multiprocessing
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing.synchronize import Event
from typing import Final

from confluent_kafka import Producer

from spark_ssp.kafka_source.client.admin_connection import AdminClient
from spark_ssp.testing.kafka import LocalKafka

KEYS: Final = 10_000
_CHUNK: Final = 10_000
_ANSWER_S: Final = 30


@contextmanager
def new_topic(kafka: LocalKafka, partitions: int) -> Iterator[str]:
    """A topic's name; it is gone after the block, and so are its records."""
    topic = f"bench-{uuid.uuid4().hex[:8]}"
    kafka.create_topic(topic, partitions)
    try:
        yield topic
    finally:
        admin = AdminClient({"bootstrap.servers": kafka.bootstrap_servers})
        for future in admin.delete_topics([topic]).values():
            future.result(_ANSWER_S)


def fill(
    kafka: LocalKafka,
    topic: str,
    *,
    records: int,
    size: int,
    partitions: int,
    headers: int = 0,
) -> None:
    """Put `records` values of `size` bytes with keys of 8 bytes and `headers` headers each, evenly
    over the partitions."""
    producer = Producer(
        {
            "bootstrap.servers": kafka.bootstrap_servers,
            "linger.ms": 20,
            "batch.size": 1_000_000,
            "queue.buffering.max.messages": 1_000_000,
            "queue.buffering.max.kbytes": 256_000,
        }
    )
    value = (b"0123456789abcdef" * (size // 16 + 1))[:size]
    pairs: list[tuple[str, str | bytes | None]] = [
        (f"header-{place}", b"value-%d" % place) for place in range(headers)
    ]
    for number in range(records):
        while True:
            try:
                producer.produce(
                    topic,
                    value,
                    b"%08d" % (number % KEYS),
                    partition=number % partitions,
                    headers=pairs,
                )
                break
            except BufferError:
                producer.poll(0.05)
        if number % _CHUNK == 0:
            producer.poll(0)
    left = producer.flush(120)
    if left:
        raise RuntimeError(f"{left} records were not delivered")


@contextmanager
def producing(kafka: LocalKafka, topic: str, *, rate: int, partitions: int) -> Iterator[None]:
    """Put `rate` records of 200 B a second, evenly over the partitions, until the block ends."""
    context = multiprocessing.get_context("spawn")
    stop = context.Event()
    process = context.Process(
        target=_produce, args=(kafka.bootstrap_servers, topic, rate, partitions, stop), daemon=True
    )
    process.start()
    try:
        yield
    finally:
        stop.set()
        process.join(30)
        if process.is_alive():
            process.kill()
            process.join()


def _produce(servers: str, topic: str, rate: int, partitions: int, stop: Event) -> None:
    producer = Producer({"bootstrap.servers": servers, "linger.ms": 0})
    began = time.monotonic()
    done = 0
    value = b"x" * 200
    while not stop.wait(0.02):
        due = int((time.monotonic() - began) * rate)
        for number in range(done, due):
            producer.produce(topic, value, b"%08d" % (number % KEYS), partition=number % partitions)
        done = due
        producer.poll(0)
    producer.flush(10)
