"""The bare client of Kafka: a whole topic consumed in a few processes, no record looked at.

It is tuned as this project's own consumers are: with librdkafka's defaults it would sleep most of
the time.
"""

from __future__ import annotations

import multiprocessing
import time
from multiprocessing.connection import Connection
from typing import Final

from confluent_kafka import Consumer, KafkaError, TopicPartition

from spark_ssp.kafka_source.reading.pool import PROFILES, FetchProfile

_END_S: Final = 60
_POLL_S: Final = 0.05
_context = multiprocessing.get_context("spawn")


def consume_in_processes(
    servers: str, topic: str, partitions: int, processes: int
) -> tuple[float, int]:
    """Seconds that it takes, and how many records there were. The processes share the partitions
    out; starting them does not count, and neither does closing their consumers; making these
    does."""
    shares = [list(range(first, partitions, processes)) for first in range(processes)]
    begun = []
    for share in filter(None, shares):
        ours, theirs = _context.Pipe()
        process = _context.Process(target=_serve, args=(servers, topic, share, theirs), daemon=True)
        process.start()
        theirs.close()
        begun.append((process, ours))
    try:
        for _, pipe in begun:
            pipe.recv()
        began = time.perf_counter()
        for _, pipe in begun:
            pipe.send("go")
        records = sum(pipe.recv() for _, pipe in begun)
        return time.perf_counter() - began, records
    finally:
        for process, pipe in begun:
            pipe.close()
            process.join(_END_S)
            if process.is_alive():
                process.kill()
                process.join()


def _serve(servers: str, topic: str, partitions: list[int], pipe: Connection) -> None:
    pipe.send("ready")
    if pipe.recv() == "go":
        _consume(servers, topic, partitions, pipe)


def _consume(servers: str, topic: str, partitions: list[int], pipe: Connection) -> None:
    """Read each partition to its end and send the number of records."""
    consumer = Consumer(
        {
            **PROFILES[FetchProfile.BULK],
            "bootstrap.servers": servers,
            "group.id": "bench",
            "enable.partition.eof": True,
            "enable.auto.commit": False,
        }
    )
    consumer.assign([TopicPartition(topic, number, 0) for number in partitions])
    ended = records = 0
    while ended < len(partitions):
        for message in consumer.consume(10_000, _POLL_S):
            error = message.error()
            if error is None:
                records += 1
            elif error.code() == KafkaError._PARTITION_EOF:
                ended += 1
            else:
                raise RuntimeError(str(error))
    pipe.send(records)
    consumer.close()
