"""What the sink aggregated, read by a worker of the KCL: `make interop`."""

from __future__ import annotations

import threading
from collections import Counter

import pytest

from spark_ssp.grouping.identifiers import StreamName
from spark_ssp.kinesis_source.model.deaggregation import WriteId
from spark_ssp.kinesis_source.model.shard import StreamRef
from tests.contract.subjects import over_boto3
from tests.interop.scenarios import running
from tests.interop.scene import STREAM, Scene
from tests.interop.starts import kcl
from tests.support.kcl.jars import KclVersion
from tests.support.kinesis.sink_writer import rows, writer

pytestmark = pytest.mark.interop

_ROWS = 12_000
_FIRST = 1_000_000
"""Above all numbers of the producer."""


def test_a_kcl_worker_reads_every_row_through_a_split(scene: Scene) -> None:
    """With repeat keys in the aggregates, which the KCL skips."""
    stream = StreamRef(name=StreamName(STREAM))
    service = over_boto3(scene.kinesis_url)
    sink = writer(
        service,
        stream=stream,
        write_id=lambda name: WriteId(source="the-query", stream=name, batch=0, task=0),
        is_aggregating=True,
    )
    numbers = range(_FIRST, _FIRST + _ROWS)
    batches = [rows(numbers[start : start + 200], keys=997) for start in range(0, _ROWS, 200)]
    with running(scene, kcl(KclVersion.V3_1), "anne") as anne:
        writing = threading.Thread(target=sink.write, args=(batches,))
        splitting = threading.Thread(target=scene.feed.split_first, args=(STREAM,))
        writing.start()
        splitting.start()
        splitting.join()
        writing.join()
        counts = sink._deliveries[stream].metrics

        def read() -> Counter[int]:
            found = (int(each.data) for each in anne.reads())
            return Counter(number for number in found if number >= _FIRST)

        scene.wait(lambda: set(read()) == set(numbers), "every row is read")
        repeated = read().total() - _ROWS
        scene.finish(anne)
    service.close()
    assert counts.rows == _ROWS
    assert counts.records < _ROWS / 10, "rows were aggregated"
    # Only aggregates that were put again have rows that are read twice.
    assert repeated <= counts.repeats.total() * 200
