"""The listener of the recipe that counts by hour."""

from __future__ import annotations

import uuid
from types import SimpleNamespace
from typing import cast

from pyspark.sql.streaming.listener import QueryProgressEvent, StreamingQueryProgress

from examples.recipes.windowed_counts import TooLate

ONE, OTHER = uuid.UUID(int=1), uuid.UUID(int=2)


def event(query: uuid.UUID, *dropped: int) -> QueryProgressEvent:
    operators = [SimpleNamespace(numRowsDroppedByWatermark=count) for count in dropped]
    progress = SimpleNamespace(id=query, stateOperators=operators)
    return QueryProgressEvent(cast("StreamingQueryProgress", progress))


def test_drops_of_a_query_are_added_up_over_more_batches_than_spark_keeps() -> None:
    too_late = TooLate()
    too_late.onQueryProgress(event(ONE, 3, 2))
    for _ in range(200):
        too_late.onQueryProgress(event(ONE, 0, 0))
        too_late.onQueryProgress(event(OTHER, 1))
    assert too_late.dropped == {str(ONE): 5, str(OTHER): 200}
