"""A query of Spark's own Kafka source goes on with ours, on its own checkpoint."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from tests.support.kafka.topics import KafkaTopics, Record
from tests.support.parity.comparison import IN_HASTE, OURS, SPARKS, Read, by_partition, read
from tests.support.servers.kafka_broker import KafkaBroker
from tests.support.spark.queries import await_end, start_patiently

BATCHES = 4


def _put(topics: KafkaTopics, topic: str, records: int, partitions: int) -> None:
    topics.put(
        topic,
        [
            Record(key=b"%d" % number, value=b"v", partition=number % partitions)
            for number in range(records)
        ],
    )


def _copy(spark: SparkSession, source: str, options: dict[str, str], folder: Path) -> None:
    """All that is there into files, in batches."""
    frame = spark.readStream.format(source).options(**options).load()
    writer = (
        frame.writeStream.format("parquet")
        .option("checkpointLocation", str(folder / "checkpoint"))
        .trigger(availableNow=True)
    )
    await_end(start_patiently(lambda: writer.start(str(folder / "output"))))


def _logged(log: Path) -> list[int]:
    return sorted(int(path.name) for path in log.iterdir() if path.name.isdigit())


def _copy_of(folder: Path, other: Path) -> None:
    """A checkpoint and its output in another place: the sink's log has paths."""
    shutil.copytree(folder, other)
    for path in (other / "output" / "_spark_metadata").iterdir():
        if path.suffix == ".crc":
            path.unlink()
        else:
            path.write_text(path.read_text().replace(str(folder), str(other)))


def _forget_newest(log: Path) -> None:
    """As if the driver had been killed before it wrote the newest entry."""
    newest = log / str(_logged(log)[-1])
    newest.unlink()
    newest.with_name(f".{newest.name}.crc").unlink(missing_ok=True)


@pytest.fixture
def options(kafka_broker: KafkaBroker) -> dict[str, str]:
    return {
        **kafka_broker.options,
        **IN_HASTE,
        "startingOffsets": "earliest",
        "includeHeaders": "true",
    }


def test_a_checkpoint_of_sparks_own_source_is_gone_on_with(
    spark: SparkSession, options: dict[str, str], topics: KafkaTopics, tmp_path: Path
) -> None:
    topic = topics.create(2)
    options["subscribe"] = topic
    _put(topics, topic, 45, 2)
    stopped, killed = tmp_path / "stopped", tmp_path / "killed"
    _copy(spark, SPARKS, options | {"maxOffsetsPerTrigger": "12"}, stopped)
    assert _logged(stopped / "checkpoint" / "commits") == list(range(BATCHES))

    # The other query has planned its last batch, and its sink has not written it.
    _copy_of(stopped, killed)
    _forget_newest(killed / "checkpoint" / "commits")
    _forget_newest(killed / "output" / "_spark_metadata")
    assert spark.read.parquet(str(killed / "output")).count() < 45

    topics.expand(topic, 3)
    _put(topics, topic, 22, 3)
    everything = read(spark, SPARKS, options)
    assert isinstance(everything, Read)
    assert everything.count == 45 + 22
    for folder in (stopped, killed):
        _copy(spark, OURS, options, folder)
        written = spark.read.parquet(str(folder / "output")).orderBy("offset")
        assert by_partition(written, written.collect()) == everything.rows
        assert len(_logged(folder / "checkpoint" / "commits")) > BATCHES
