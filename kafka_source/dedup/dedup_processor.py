"""The stateful processor of a streaming query that drops duplicates."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final

from pyspark.sql.streaming.stateful_processor import StatefulProcessor, StatefulProcessorHandle

from spark_ssp.common.times import duration_text
from spark_ssp.kafka_source.dedup.dedup_headers import POSITION_HEADER
from spark_ssp.kafka_source.dedup.dedup_state import KEY_SCHEMA, VALUE_SCHEMA, DedupState

MAX_SOURCES: Final = 1_000
"""Sources remembered for each partition: the most recent ones."""

MAX_CLOCK_SKEW_MS: Final = 5 * 60 * 1000
"""The longest time that the clock of a writing driver may be ahead of that of a reading worker."""

_log = logging.getLogger(__name__)


class DedupProcessor(StatefulProcessor):
    """Drops the duplicates of one partition of a topic."""

    def __init__(
        self, types: Sequence[str], forget_after_ms: int, now: Callable[[], float] = time.time
    ) -> None:
        """`types` are those of the columns, by Spark's names. `now` is in seconds since 1970."""
        self._types = tuple(types)
        self._forget_after_ms = forget_after_ms
        self._now = now
        self._entries: Any = None

    def init(self, handle: StatefulProcessorHandle) -> None:
        self._entries = handle.getMapState("seen", KEY_SCHEMA, VALUE_SCHEMA)

    def handleInputRows(self, key: Any, rows: Iterator[Any], timerValues: Any) -> Iterator[Any]:
        """Return the new rows in the order of their offsets. `rows` are pandas data frames of
        blocks in any order: Spark sorts the blocks of a task only by partition, and a sort that
        spills reorders those of one partition."""
        # For each query, Spark starts a process only to call `init`, which needs no Arrow.
        from spark_ssp.kafka_source.dedup.row_blocks import read_blocks

        max_attempt_ms = int(self._now() * 1000) + MAX_CLOCK_SKEW_MS
        state = DedupState(self._entries, self._forget_after_ms, MAX_SOURCES, max_attempt_ms)
        ahead = 0
        for block in read_blocks(rows, self._types):
            new: list[bool] = []
            for run in block.runs():
                if run.source is None or run.attempt_ms > max_attempt_ms:
                    new += [True] * run.count
                    ahead += run.count if run.source is not None else 0
                else:
                    seen = state.of(run.source)
                    new += seen.are_new(run.batch, run.attempt_ms, block.row_ids(run))
            yield block.frame(new)
        state.save()
        if ahead:
            _log.warning(
                "partition %s-%s: %d records with the header %s of a time more than %s ahead of "
                "this machine's clock: the header is ignored; either a clock is wrong, or a "
                "program other than a sink writes such headers",
                *key[:2],
                ahead,
                POSITION_HEADER,
                duration_text(MAX_CLOCK_SKEW_MS),
            )

    def close(self) -> None:
        """Do nothing: no resources are held."""
