"""`maxRecordsPerTrigger` and `maxBytesPerTrigger` hold for every batch."""

from __future__ import annotations

import pytest
from pyspark.errors import PySparkException

from spark_ssp.common.spark.pyspark_api import PASSES_LIMITS
from tests.support.spark.queries import Row, Trial, await_end, start

TIMED = {"trigger": "processingTime"}
"""Required by limits before PySpark 4.2."""


def _bytes(rows: tuple[Row, ...]) -> int:
    return sum(len(row.record.data) + len(row.record.key) for row in rows)


def _read_all(trial: Trial, options: dict[str, str]) -> None:
    with trial.running(options | TIMED) as query:
        trial.wait_for_all(query)
    trial.check()


def test_records_in_each_batch(trial: Trial) -> None:
    trial.create(95, shards=3)
    with trial.running(TIMED | {"maxRecordsPerTrigger": "20"}) as query:
        trial.wait_for_all(query)
        trial.put(45)
        trial.wait_for_all(query)
    trial.check()
    assert max(trial.sink.sizes()) <= 20
    assert min(trial.sink.sizes()[:4]) > 10, "a batch is about full as long as there is enough"


def test_available_now_reads_all_in_one_run_or_refuses_a_limit(trial: Trial) -> None:
    """Before PySpark 4.2 such a run is one batch, which a limit would end early."""
    trial.create(shards=2)
    limited = {"maxRecordsPerTrigger": "20"}
    for changed in ({}, limited, {}):
        trial.put(50)
        if changed and not PASSES_LIMITS:
            with pytest.raises(PySparkException, match=r"maxRecordsPerTrigger: found PySpark 4\."):
                trial.load(changed)
            continue
        await_end(start(trial.load(changed), trial.sink, trial.checkpoint, "available now"))
        trial.check()
    first, *limits, last = trial.sink.sizes()
    if PASSES_LIMITS:  # a batch ends at one instant, so it may be smaller than its limit
        assert (first, sum(limits), last) == (50, 50, 50)
        assert max(limits) <= 20
        assert len(limits) <= 4
    else:
        assert (first, limits, last) == (50, [], 100)


def test_bytes_in_each_batch_without_and_with_records(trial: Trial) -> None:
    trial.create(80, shards=2)
    by_size = {"maxBytesPerTrigger": "150"}
    _read_all(trial, by_size)
    # The size of records may be unknown to the first batch.
    assert min(trial.sink.sizes()[1:-1]) > 7, "records of up to 8 bytes fill 150 bytes"

    before = len(trial.sink.sizes())
    trial.put(40)
    _read_all(trial, by_size | {"maxRecordsPerTrigger": "12"})
    assert max(_bytes(rows) for rows in trial.sink.batches.values()) <= 150
    assert max(trial.sink.sizes()[before:]) <= 12


def test_one_record_always_fits(trial: Trial) -> None:
    trial.create(3)
    _read_all(trial, {"maxBytesPerTrigger": "1"})
    assert trial.sink.sizes() == [1, 1, 1]
