"""The memory of a task does not grow with the bytes read: `benchmarks.kinesis.memory`, in small."""

from __future__ import annotations

import tracemalloc
from collections import deque
from typing import Any

from spark_ssp.common.structs import replace
from spark_ssp.kinesis_source.model.shard import RecordPage
from spark_ssp.kinesis_source.reading.process_wide import ReadRates
from spark_ssp.kinesis_source.reading.task_reader import read_slot
from tests.support.fakes.scripted import Page, ScriptedService, ScriptedShard, recs
from tests.support.kinesis.reading import A, options, shard_range, slot_of

MIB = 1 << 20
PAGES = 160


class FreshPages(ScriptedService):
    """Each record has a MiB, created on demand."""

    def get_records(self, *args: Any, **named: Any) -> RecordPage:
        page = super().get_records(*args, **named)
        return replace(page, data=[bytes(MIB) for _ in page.data])


def test_the_second_half_of_a_batch_takes_no_more_memory_than_the_first() -> None:
    shard = ScriptedShard(
        shard_id=A, records=recs(*range(PAGES)), closed=True, script=deque([Page(1)] * PAGES)
    )
    reading = read_slot(
        slot_of(shard_range()),
        options(max_bytes_in_flight=8 * MIB),
        FreshPages([shard]),
        rates=ReadRates(),
    )
    rows = 0
    peaks: list[int] = []
    tracemalloc.start()
    try:
        for batch in reading:
            rows += batch.num_rows
            if rows >= PAGES / 2 and not peaks:
                peaks.append(tracemalloc.get_traced_memory()[1])
                tracemalloc.reset_peak()
        peaks.append(tracemalloc.get_traced_memory()[1])
    finally:
        tracemalloc.stop()
    assert rows == PAGES
    first, second = peaks
    assert first > 8 * MIB, "the fetched bytes are visible"
    assert second <= first + 8 * MIB
    assert max(peaks) < PAGES * MIB / 2, peaks
