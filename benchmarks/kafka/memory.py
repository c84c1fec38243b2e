"""Memory of a task of Kafka whose consumer is slower than its brokers, for compressed topics.

    python -m benchmarks.kafka.memory [--megabytes 1800] [--partitions 64] [--batches 20]

Every row is one process that reads all partitions of a topic of JSON records in one task, and waits
`--pause` seconds after each batch, so that the client fetches ahead as far as it can. It ends after
`--batches` batches. `growth` is the peak of the process's resident memory over what it had with
everything imported; `largest batch` is the largest Arrow batch. The process has read nothing
before, so it has no estimate of the size of a record.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import random
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Final

import pyarrow as pa
from confluent_kafka import Producer

from benchmarks.kafka.feed import new_topic
from benchmarks.support.report import Report
from spark_ssp.testing.kafka import LocalKafka

_MIB: Final = 1 << 20
_ANSWER_S: Final = 600
_MOST_RECORDS: Final = 3_000_000
_STATUS: Final = Path("/proc/self/status")


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """Records of about `size` bytes of JSON, compressed by `codec`."""

    codec: str
    size: int

    def __str__(self) -> str:
        return f"{self.codec}:{self.size}"


SHAPES: Final = tuple(
    Shape(codec=codec, size=size) for size in (1_000, 100, 100_000) for codec in ("zstd", "lz4")
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Held:
    """The memory of a process, in bytes."""

    growth: int
    largest_batch: int
    read: int


def values(size: int) -> list[bytes]:
    """Different values of about `size` bytes each, alike as JSON events are."""
    chosen = random.Random(size)
    return [_event(chosen, size) for _ in range(max(20, 2_000_000 // size))]


def _event(chosen: random.Random, size: int) -> bytes:
    found = {"id": chosen.randrange(10**6), "type": "order.placed", "ok": True}
    text = json.dumps(found)
    number = 0
    while len(text) < size:
        found[f"attribute-{number:03}"] = f"a value that is the same in all events, {number:03}"
        if number % 4 == 0:
            found[f"change-{number:03}"] = chosen.randrange(1_000_000)
        number += 1
        text = json.dumps(found)
    return text[: size - 1].encode() + b"}"


def compression_ratio(shape: Shape) -> float:
    """Of a batch of 1 MB, about."""
    together = b"".join(values(shape.size))[:_MIB]
    return len(together) / len(pa.compress(together, codec=shape.codec, asbytes=True))


def fill(kafka: LocalKafka, topic: str, shape: Shape, *, megabytes: int, partitions: int) -> int:
    """Put `megabytes`, before compression, evenly over the partitions; return the number of
    records in each."""
    producer = Producer(
        {
            "bootstrap.servers": kafka.bootstrap_servers,
            "compression.type": shape.codec,
            "linger.ms": 200,
            "batch.size": 900_000,
            "queue.buffering.max.messages": 500_000,
            "queue.buffering.max.kbytes": 512_000,
        }
    )
    found = values(shape.size)
    each = max(1, min(megabytes * 1_000_000 // shape.size, _MOST_RECORDS) // partitions)
    for partition in range(partitions):
        for number in range(each):
            while True:
                try:
                    producer.produce(topic, found[number % len(found)], partition=partition)
                    break
                except BufferError:
                    producer.poll(0.05)
        producer.poll(0)
    if left := producer.flush(_ANSWER_S):
        raise RuntimeError(f"{left} records were not delivered")
    return each


def held_by_a_task(
    options: Mapping[str, str],
    topic: str,
    *,
    partitions: int,
    records: int,
    batches: int,
    pause_s: float,
) -> Held:
    """Return the memory that a new process needs to read `records` of each partition as one
    task."""
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    process = context.Process(
        target=_read,
        args=(dict(options), topic, partitions, records, batches, pause_s, theirs),
        daemon=True,
    )
    process.start()
    theirs.close()
    try:
        found = ours.recv() if ours.poll(_ANSWER_S) else None
    except EOFError:
        found = None
    finally:
        ours.close()
        process.join(30)
        if process.is_alive():
            process.kill()
            process.join()
    if not isinstance(found, Held):
        raise RuntimeError("the process that reads has failed")  # its words are on standard error
    return found


def _read(
    options: dict[str, str],
    topic: str,
    partitions: int,
    records: int,
    batches: int,
    pause_s: float,
    pipe: Connection,
) -> None:
    from tests.support.kafka.reading import options_for, part, task

    range_ = task(*(part(topic, number, 0, records) for number in range(partitions)))
    before = _resident("VmRSS")
    largest = read = 0
    for batch in _batches(range_, options_for(options), batches):
        largest, read = max(largest, batch.nbytes), read + batch.num_rows
        time.sleep(pause_s)
    pipe.send(Held(growth=_resident("VmHWM") - before, largest_batch=largest, read=read))


def _batches(range_: object, options: object, most: int) -> Iterator[pa.RecordBatch]:
    from spark_ssp.kafka_source.reading.task_reader import read_task

    reading = read_task(range_, options, "bench")  # type: ignore[arg-type]
    for _ in range(most):
        batch = next(reading, None)
        if batch is None:
            return
        yield batch


def _resident(name: str) -> int:
    """`VmRSS` or `VmHWM`, the peak of it, of this process. Linux only."""
    line = next(line for line in _STATUS.read_text().splitlines() if line.startswith(name))
    return int(line.split()[1]) * 1024


def run(
    kafka: LocalKafka,
    *,
    megabytes: int,
    partitions: int,
    batches: int,
    pause_s: float,
    shapes: Sequence[Shape] = SHAPES,
) -> Report:
    """Measure each of `shapes`."""
    report = Report(
        name="kafka.memory",
        command=f"python -m benchmarks.kafka.memory --megabytes {megabytes} "
        f"--partitions {partitions} --batches {batches} --pause {pause_s:g} "
        f"--shapes {' '.join(map(str, shapes))}",
        columns=("records", "compressed", "growth MB", "largest batch MB"),
    )
    for shape in shapes:
        with new_topic(kafka, partitions) as topic:
            each = fill(kafka, topic, shape, megabytes=megabytes, partitions=partitions)
            held = held_by_a_task(
                kafka.options,
                topic,
                partitions=partitions,
                records=each,
                batches=batches,
                pause_s=pause_s,
            )
        ratio = compression_ratio(shape)
        report.add(
            f"{shape.size:,} B",
            f"{shape.codec} {ratio:.0f}:1",
            f"{held.growth / 1e6:,.0f}",
            f"{held.largest_batch / 1e6:,.1f}",
            size=shape.size,
            codec=shape.codec,
            ratio=ratio,
            growth_bytes=held.growth,
            largest_batch_bytes=held.largest_batch,
            rows_read=held.read,
            partitions=partitions,
        )
    return report


def _shape(text: str) -> Shape:
    codec, size = text.split(":")
    return Shape(codec=codec, size=int(size))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--megabytes", type=int, default=1_800)
    parser.add_argument("--partitions", type=int, default=64)
    parser.add_argument("--batches", type=int, default=20)
    parser.add_argument("--pause", type=float, default=0.3, dest="pause_s")
    parser.add_argument("--shapes", nargs="+", type=_shape, default=SHAPES, help="CODEC:SIZE")
    arguments = vars(parser.parse_args())
    with LocalKafka() as kafka:
        report = run(kafka, **arguments)
    report.publish()


if __name__ == "__main__":
    main()
