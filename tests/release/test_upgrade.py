"""Checkpoints, rows of a lease table and assignments to tasks of the release before this one are
continued. Its code is taken from the repository's history."""

from __future__ import annotations

import io
import subprocess
import tarfile
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import boto3
import pytest

import spark_ssp
from spark_ssp.common.spark.pyspark_api import PASSES_LIMITS
from spark_ssp.testing.kinesis import EmbeddedKinesis
from tests.architecture.layers import ROOT
from tests.support.judge import Processed, Put, Verdict, judge
from tests.support.kafka.feed import KafkaFeed, query_options
from tests.support.kafka.topics import KafkaTopics
from tests.support.kinesis.feeds import EmbeddedFeed, options_for
from tests.support.servers.kafka_broker import KafkaBroker
from tests.support.spark.drivers import Driver, committed_rows
from tests.support.waiting import until

pytestmark = [pytest.mark.release, pytest.mark.timeout(1200)]

EARLIER: Final = "685883ae^"
"""The last commit of 0.1.0; later the tag of a release."""
EARLIER_VERSION: Final = "0.1.0"
_PATIENCE_S: Final = 240
_KINESIS: Final = ("partitionKey", "data")


@pytest.fixture(scope="session")
def earlier(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with the code of the release before."""
    folder = tmp_path_factory.mktemp("earlier")
    archive = subprocess.run(
        ["git", "archive", EARLIER], cwd=ROOT, capture_output=True, check=False
    )
    assert archive.returncode == 0, f"{archive.stderr.decode()}: the whole history is needed"
    with tarfile.open(fileobj=io.BytesIO(archive.stdout)) as files:
        files.extractall(folder, filter="data")
    return folder


def _driver(folder: Path, options: Mapping[str, str], code: Path = ROOT, **more: Any) -> Driver:
    """Return a driver with the code of a release: its module path has that one first."""
    environment = {"PYTHONPATH": str(code)} | more.pop("environment", {})
    return Driver(folder, [options], environment=environment, **more)


def _run(folder: Path, options: Mapping[str, str], code: Path = ROOT, **more: Any) -> None:
    """Copy all there is."""
    with _driver(folder, options, code, **more) as driver:
        (result,) = driver.results()
        _check_version(driver, code)
    assert result["failure"] is None, result["failure"]


def _check_version(driver: Driver, code: Path) -> None:
    version = spark_ssp.__version__ if code == ROOT else EARLIER_VERSION
    assert f"spark-ssp {version}, PySpark" in driver.log, "the code of another release has run"


def _undo_last_commit(folder: Path) -> None:
    """As if the driver had been killed before the sink and Spark recorded the last batch."""
    commits = folder / "checkpoint-0" / "commits"
    last = max(int(file.name) for file in commits.iterdir() if file.name.isdecimal())
    for log in (commits, folder / "output-0" / "_spark_metadata"):
        (log / str(last)).unlink()
        (log / f".{last}.crc").unlink(missing_ok=True)


def _verdict(put: Iterable[Put], *folders: Path, columns: tuple[str, str]) -> Verdict:
    """Judge the rows of the outputs in the order of their batches. `columns`: key and number."""
    key, number = columns
    rows = [row for folder in folders for row in committed_rows(folder / "output-0", columns)]
    return judge(
        put,
        [
            Processed(at=row["batch"], key=_text(row[key]), number=int(_text(row[number])))
            for row in rows
        ],
    )


def _text(value: str | bytes) -> str:
    return value if isinstance(value, str) else bytes(value).decode()


def _read(folder: Path) -> int:
    return len(committed_rows(folder / "output-0", ["data"]))


@contextmanager
def _kinesis() -> Iterator[tuple[EmbeddedFeed, dict[str, str]]]:
    with EmbeddedKinesis(dynamodb=True) as kinesis:
        feed = EmbeddedFeed(kinesis)
        feed.create("orders", shards=2)
        yield (
            feed,
            options_for(kinesis.endpoint_url)
            | {"streamName": "orders", "startingPosition": "trim_horizon", "slots": "3"}
            | {"dynamodbEndpointUrl": kinesis.dynamodb_endpoint_url},
        )


def _records(numbers: range) -> list[Put]:
    return [Put(f"key-{number % 17}", number) for number in numbers]


def _put(feed: EmbeddedFeed, numbers: range) -> None:
    for key, number in _records(numbers):
        feed.put_data("orders", key, b"%d" % number)


@pytest.mark.parametrize("committed", [True, False], ids=["committed", "not committed"])
def test_a_kinesis_query_continues(earlier: Path, tmp_path: Path, committed: bool) -> None:
    with _kinesis() as (feed, options):
        del options["dynamodbEndpointUrl"]
        _put(feed, range(100))
        _run(tmp_path, options, earlier)
        feed.split("orders", feed.open_shards("orders")[0])
        _put(feed, range(100, 200))
        _run(tmp_path, options, earlier)
        if not committed:
            _undo_last_commit(tmp_path)
        feed.merge("orders", *feed.open_shards("orders")[:2])
        _put(feed, range(200, 300))
        _run(tmp_path, options)
    found = _verdict(_records(range(300)), tmp_path, columns=_KINESIS)
    assert found == Verdict(rows=300)


def test_queries_with_leases_are_upgraded_one_after_another(earlier: Path, tmp_path: Path) -> None:
    """Workers of both releases are live on one table in between."""
    assert PASSES_LIMITS
    first, second = tmp_path / "first", tmp_path / "second"
    with _kinesis() as (feed, options):
        options |= {"applicationName": tmp_path.name, "failoverTime": "10s"}
        options |= {"checkpointInterval": "1s"}
        count = 0

        def more(total: int) -> None:
            nonlocal count
            _put(feed, range(count, count + 100))
            count += 100
            until(
                lambda: _read(first) + _read(second) >= total,
                f"{total} records are read",
                within_s=_PATIENCE_S,
                poll_s=0.5,
            )

        def both_read() -> None:
            """Wait until each worker holds leases."""
            dynamodb: Any = boto3.client(
                "dynamodb",
                endpoint_url=options["dynamodbEndpointUrl"],
                region_name="us-east-1",
                aws_access_key_id="local",
                aws_secret_access_key="local",
            )

            def owners() -> set[str]:
                rows = dynamodb.scan(TableName=tmp_path.name, ConsistentRead=True)["Items"]
                return {row["leaseOwner"]["S"] for row in rows if "leaseOwner" in row}

            until(
                lambda: owners() >= {"first", "second"},
                "both workers hold leases",
                within_s=_PATIENCE_S,
                poll_s=0.5,
            )

        def start(folder: Path, code: Path) -> Driver:
            settings = options | {"workerId": folder.name}
            return _driver(folder, settings, code, trigger="as fast as possible")

        with start(first, earlier) as one, start(second, earlier) as two:
            more(100)
            both_read()
            feed.split("orders", feed.open_shards("orders")[0])
            more(200)
            one.stop_gracefully()
            _check_version(one, earlier)
            with start(first, ROOT) as one_upgraded:
                both_read()
                more(300)
                feed.split("orders", feed.open_shards("orders")[0])
                more(400)
                two.stop_gracefully()
                _check_version(two, earlier)
                with start(second, ROOT) as two_upgraded:
                    both_read()
                    more(500)
                    feed.merge("orders", *feed.open_shards("orders")[:2])
                    more(600)
                    two_upgraded.stop_gracefully()
                one_upgraded.stop_gracefully()
    found = _verdict(_records(range(count)), first, second, columns=_KINESIS)
    # The batches of two queries have no common order.
    assert replace(found, disordered=0) == Verdict(rows=count)


@pytest.mark.parametrize("committed", [True, False], ids=["committed", "not committed"])
def test_a_kafka_query_keeps_its_tasks(
    earlier: Path,
    tmp_path: Path,
    kafka_broker: KafkaBroker,
    topics: KafkaTopics,
    committed: bool,
) -> None:
    feed, topic = KafkaFeed(topics), topics.create(2)
    options = query_options(kafka_broker.options, topic)
    options |= {"tasks": "2", "assignmentStore": (tmp_path / "assignments").as_uri()}
    feed.put(topic, 100)
    _run(tmp_path / "query", options, earlier, sources=("kafka-ssp",))
    topics.expand(topic, 4)
    feed.put(topic, 100)
    _run(tmp_path / "query", options, earlier, sources=("kafka-ssp",))
    if not committed:
        _undo_last_commit(tmp_path / "query")
    topics.expand(topic, 8)
    feed.put(topic, 100)
    _run(tmp_path / "query", options, sources=("kafka-ssp",))
    put = [
        Put(_text(one.record.key or b""), int(_text(one.record.value or b"")))
        for one in feed.records
    ]
    found = _verdict(put, tmp_path / "query", columns=("key", "value"))
    assert found == Verdict(rows=300)
    tasks: dict[bytes, set[str]] = defaultdict(set)
    for row in committed_rows(tmp_path / "query" / "output-0", ["key", "task"]):
        tasks[bytes(row["key"])].add(row["task"])
    assert {len(names) for names in tasks.values()} == {1}
    assert {name for names in tasks.values() for name in names} == {"Partition 0", "Partition 1"}
