"""Computes how many records each fetch of a range requests, and how much memory is reserved for the
answer.

A shard's reads are limited by bytes, for all its consumers together. So a fetch requests no more
than the expected rest of the range. The expectation is a hint, often an estimate: if it was too
low, the next fetch requests an eighth of the records so far, and each further one twice that share.
So a small error costs few bytes beyond the end of the range, and a large one few calls.

After an empty page many more may follow, as in a shard that had no records for hours. Until a
record comes, fetches request few records, so that many shards can be followed through such gaps in
little memory.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from spark_ssp.kinesis_source.client.api import MAX_PAGE_BYTES
from spark_ssp.kinesis_source.model.ranges import ExpectedSize
from spark_ssp.kinesis_source.reading.arrow_batches import ROW_OVERHEAD_BYTES

MIN_RESERVED_BYTES: Final = 1 << 20
_FEW: Final = 100
"""The fewest records to request beyond the expected ones, and the number requested after an empty
page."""


@dataclass(slots=True)
class FetchSizer:
    """The sizes of the requests for one range, of at most `most` records each."""

    most: int
    expected: ExpectedSize | None
    fetched: int = 0
    """The number of records of the range so far."""
    _largest: int = 0
    _overruns: int = 0
    """Answers after the expected number of records."""
    _in_gap: bool = False
    """True if the last answer contained no new record."""

    def record_limit(self, *, repeated: int) -> int:
        """Return the `Limit` of the next fetch, whose first `repeated` records do not count."""
        if self.expected is None:
            wanted = self.most
        else:
            left = self.expected.records - self.fetched
            wanted = left if left > 0 else max(_FEW, self._share_of(self.fetched))
        if self._in_gap:
            wanted = min(wanted, _FEW)
        return min(self.most, wanted + repeated)

    def _share_of(self, records: int) -> int:
        return records >> max(0, 3 - self._overruns)

    def bytes_to_reserve(self, limit: int) -> int:
        """Return how many bytes to reserve for an answer of up to `limit` records."""
        overhead = ROW_OVERHEAD_BYTES * limit
        most = MAX_PAGE_BYTES + overhead
        if self._in_gap:
            return MIN_RESERVED_BYTES
        if self._largest:
            likely = 2 * self._largest
        elif self.expected is not None and self.expected.size_bytes is not None:
            likely = self.expected.size_bytes * limit // max(self.expected.records, 1) + overhead
        else:
            return most  # nothing is known of the size of the records
        return max(MIN_RESERVED_BYTES, min(likely, most))

    def record_page(self, records: int, memory_bytes: int) -> None:
        """Count the records of an answer, which takes `memory_bytes` of memory."""
        self._in_gap = records == 0
        if self._in_gap:
            return
        if self.expected is not None and self.fetched >= self.expected.records:
            self._overruns += 1
        self.fetched += records
        self._largest = max(self._largest, memory_bytes)
