"""The log of two queries through a reshard, throttling and a handover, as an operator reads it."""

from __future__ import annotations

import re
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Final, NamedTuple

import pytest

from spark_ssp.common.logs import REPEAT_S
from spark_ssp.testing.kafka.broker import free_ports
from spark_ssp.testing.kinesis import EmbeddedKinesis
from spark_ssp.testing.kinesis.state.faults import Throttle
from tests.architecture.layers import ROOT
from tests.support.kcl.workers import SparkWorker
from tests.support.kinesis.feeds import EmbeddedFeed

pytestmark = [pytest.mark.long, pytest.mark.timeout(1800)]

_DEADLINE_S = 400
_LINE: Final = re.compile(r"([0-9-]{10} [0-9:,]{12}) (INFO|WARNING|ERROR) spark_ssp\.(\S+): (.*)")
_TASK_PROCESSES: Final = 4


class Line(NamedTuple):
    """A line of this project in the log."""

    level: str
    logger: str
    text: str

    @property
    def kind(self) -> str:
        """The text without what differs from line to line."""
        return re.sub(r"\(.*\)|\d+(\.\d+)?", "*", self.text)[:60]


def _lines(worker: SparkWorker) -> list[Line]:
    return [Line(*found.groups()[1:]) for found in _LINE.finditer(worker.log)]


def _documented() -> list[re.Pattern[str]]:
    """Patterns of the lines that the guide lists; its `…` is any text."""
    guide = (ROOT / "docs" / "guide" / "logs.md").read_text(encoding="utf-8")
    cells = re.findall(r"^\| (`.*?`) \|", guide, re.MULTILINE)
    texts = [text for cell in cells for text in re.findall(r"`([^`]+)`", cell)]
    return [
        re.compile(re.sub(r"\d+", r"\\d+", re.escape(text).replace("…", ".*"))) for text in texts
    ]


def _is_within_batch(checkpoint: Path) -> bool:
    """Return whether a batch is planned and not committed."""

    def last(name: str) -> int:
        batches = [int(path.name) for path in (checkpoint / name).glob("[0-9]*")]
        return max(batches, default=-1)

    return last("offsets") > last("commits")


class Audit:
    """A stream that is written to while somebody waits, and its queries."""

    def __init__(self, kinesis: EmbeddedKinesis, folder: Path) -> None:
        self.feed = EmbeddedFeed(kinesis)
        self.kinesis = kinesis
        self._folder = folder

    def worker(self, name: str) -> SparkWorker:
        return SparkWorker(
            folder=self._folder / name,
            name=name,
            application=self._folder.name,
            stream="orders",
            kinesis_url=self.kinesis.endpoint_url,
            dynamodb_url=self.kinesis.dynamodb_endpoint_url,
            failover_ms=10_000,
            options={"leaseMaxOutage": "5m"},
        )

    def wait(self, reached: Callable[[], bool], what: str) -> None:
        deadline = time.monotonic() + _DEADLINE_S
        while not reached():
            assert time.monotonic() < deadline, f"not within {_DEADLINE_S} s: {what}"
            self.feed.put("orders", 1)
            time.sleep(0.1)

    def wait_for_line(self, worker: SparkWorker, text: str) -> None:
        self.wait(lambda: any(text in line.text for line in _lines(worker)), text)

    def wait_for_reads(self, worker: SparkWorker, count: int) -> None:
        """Until so many more records were read."""
        before = len(worker.reads())
        self.wait(lambda: len(worker.reads()) >= before + count, f"{count} more records")


def test_a_log_has_few_lines_and_the_guide_has_each_of_them(tmp_path: Path) -> None:
    (port,) = free_ports("127.0.0.1", 1)
    started = time.monotonic()
    with EmbeddedKinesis(dynamodb=True, dynamodb_port=port) as kinesis:
        audit = Audit(kinesis, tmp_path)
        audit.feed.create("orders", shards=4)
        with audit.worker("anne") as anne:
            audit.wait_for_reads(anne, 40)
            audit.feed.split_first("orders")
            audit.wait_for_line(anne, "no longer read")
            audit.wait_for_reads(anne, 40)
            # The driver's calls for one shard, so that no later batch contains it; then those of
            # tasks.
            checkpoint = tmp_path / "anne" / "checkpoint"
            shard = kinesis.faults.add(
                Throttle(),
                operation="GetRecords",
                shard="shardId-000000000002",
                count=None,
                when=lambda _: not _is_within_batch(checkpoint),
            )
            audit.wait_for_line(anne, "could not be probed")
            kinesis.faults.remove(shard)
            audit.wait_for_reads(anne, 40)
            kinesis.faults.add(
                Throttle(),
                operation="GetRecords",
                count=None,
                when=lambda _: _is_within_batch(checkpoint),
            )
            audit.wait_for_line(anne, "has been throttled for")
            kinesis.faults.clear()
            audit.wait_for_reads(anne, 40)
            with audit.worker("bert") as bert:
                audit.wait_for_line(anne, "handed leases over to bert")
                audit.wait_for_reads(bert, 40)
                anne.stop()
                audit.wait_for_line(bert, "bert took leases")
                audit.wait_for_reads(bert, 40)
                bert.stop()
        throttled = kinesis.calls.count("GetRecords")
    seconds = time.monotonic() - started
    assert throttled > 100
    documented = _documented()
    for worker in (anne, bert):
        lines = _lines(worker)
        unknown = [line for line in lines if not any(one.search(line.text) for one in documented)]
        assert unknown == []
        starts = [line for line in lines if line.text.startswith("query starts from ")]
        assert len(starts) == 1
        assert "stream orders with" in starts[0].text
        assert "spark-ssp " in starts[0].text
        # One line for the start, and for each batch that changes shards: those of a split may
        # begin in two batches, those of a handover come and go one by one.
        batches = [line for line in lines if line.logger.endswith(".batch_log")]
        assert len(batches) <= 9
        assert len({read.at for read in worker.reads()}) > len(batches)
        # Every process logs a kind of warning, or of a retry, once in a period.
        repeated = Counter(line.kind for line in lines if "reading" in line.logger)
        repeated += Counter(line.kind for line in lines if line.level == "WARNING")
        most = _TASK_PROCESSES * (1 + seconds / REPEAT_S)
        assert all(count <= most for count in repeated.values()), repeated
        assert not [line for line in lines if line.level == "ERROR"]
    text = "\n".join(line.text for line in _lines(anne))
    assert "no longer read: orders/" in text
    assert "(handed over to bert)" in text
    assert "has given back its shards, as requested" in text
