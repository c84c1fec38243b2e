"""The Kafka sink with transactions, beside the one without.

    python -m benchmarks.kafka.exactly_once [--records 60000] [--size 200] [--tasks 4]

Each batch is written by `--tasks` processes at once, as Spark's reused Python workers do: the
executor's part of the sink, from Arrow batches, without Spark. `once` is
`deliveryGuarantee=exactly-once`, with its record of the batch on the driver; `least` is the
default. Seconds are wall time of a batch; rounds alternate, and the first ones warm up and are
dropped (`--warm-up`).
"""

from __future__ import annotations

import argparse
import time
import uuid
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from typing import Final

import pyarrow as pa

from benchmarks.kafka.feed import new_topic
from benchmarks.support.report import Report, ratio, spread
from spark_ssp.kafka_source.sink.columns import SinkColumns
from spark_ssp.kafka_source.sink.markers import CompletedBatch, Write
from spark_ssp.kafka_source.sink.options import SinkOptions
from spark_ssp.kafka_source.sink.parse import parse_sink_options
from spark_ssp.kafka_source.sink.table_sink import (
    marker_topic,
    write_in_transaction,
    write_rows,
)
from spark_ssp.kafka_source.sink.transactions import record_completed
from spark_ssp.testing.kafka import LocalKafka

PARTITIONS: Final = 4
_COLUMNS: Final = SinkColumns(key=0, value=1)
_ROWS_PER_BATCH: Final = 10_000


def _rows(records: int, size: int) -> Sequence[pa.RecordBatch]:
    filler = "x" * (size - 8)
    return [
        pa.RecordBatch.from_pydict(
            {
                "key": pa.array([b"%d" % (n % 1_000) for n in numbers], pa.binary()),
                "value": pa.array([f"{n:08d}{filler}" for n in numbers], pa.string()),
            }
        )
        for first in range(0, records, _ROWS_PER_BATCH)
        if (numbers := range(first, min(first + _ROWS_PER_BATCH, records)))
    ]


def _write(options: SinkOptions, sink: str, task: int, batch: int, records: int, size: int) -> int:
    rows = _rows(records, size)
    began = time.perf_counter()
    if options.is_exactly_once:
        write = Write(sink=sink, task=task, batch=batch)
        write_in_transaction(rows, _COLUMNS, options, write, "run")
    else:
        write_rows(rows, _COLUMNS, options, None)
    return round((time.perf_counter() - began) * 1e6)


def _batch(
    pool: ProcessPoolExecutor,
    options: SinkOptions,
    sink: str,
    batch: int,
    tasks: int,
    records: int,
    size: int,
) -> float:
    """Return the seconds of the slowest task, and of the driver's record."""
    results = [
        pool.submit(_write, options, sink, task, batch, records, size) for task in range(tasks)
    ]
    took = max(result.result() for result in results) / 1e6
    if options.is_exactly_once:
        began = time.perf_counter()
        completed = CompletedBatch(batch=batch, tasks=tasks)
        record_completed(options.client, sink, marker_topic(options), completed)
        took += time.perf_counter() - began
    return took


def run(*, records: int, size: int, tasks: int, rounds: int, warm_up: int = 2) -> Report:
    """Measure."""
    report = Report(
        name="kafka.exactly_once",
        command=f"python -m benchmarks.kafka.exactly_once --records {records} --size {size} "
        f"--tasks {tasks} --rounds {rounds} --warm-up {warm_up}",
        columns=("records of a task", "least s", "once s", "throughput of least", "more s"),
    )
    context = get_context("spawn")
    with (
        LocalKafka() as kafka,
        new_topic(kafka, PARTITIONS) as topic,
        ProcessPoolExecutor(tasks, context) as pool,
    ):
        given = {**kafka.options, "topic": topic}
        least = parse_sink_options(given)
        once = parse_sink_options({**given, "deliveryGuarantee": "exactly-once"})
        sink = f"{uuid.uuid4().hex}/{topic}"
        took: dict[str, list[float]] = {"least": [], "once": []}
        for number in range(warm_up + rounds):
            for name, options in (("least", least), ("once", once)):
                seconds = _batch(pool, options, sink, number, tasks, records, size)
                if number >= warm_up:
                    took[name].append(seconds)
    kept = ratio(took["least"], took["once"])
    more = spread([b - a for a, b in zip(took["least"], took["once"], strict=True)])
    report.add(
        f"{records:,}",
        spread(took["least"]).text(2),
        spread(took["once"]).text(2),
        kept.text(2),
        more.text(2),
        records=records,
        size=size,
        tasks=tasks,
        least_s=took["least"],
        once_s=took["once"],
        kept=kept.values,
    )
    return report


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--records", type=int, default=60_000, help="rows of a task in a batch")
    parser.add_argument("--size", type=int, default=200, help="bytes of a value")
    parser.add_argument("--tasks", type=int, default=4)
    parser.add_argument("--rounds", type=int, default=8)
    parser.add_argument("--warm-up", type=int, default=2, help="rounds that do not count")
    report = run(**vars(parser.parse_args()))
    report.publish()


if __name__ == "__main__":
    main()
