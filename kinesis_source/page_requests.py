"""How many records each fetch of a range asks for, and how much memory is set aside for the answer.

A shard's reads are limited by bytes, for all its consumers together. So a fetch asks for no more
than the range is expected to hold. The expectation is a hint, often an estimate: where it was too
low, the next fetch asks for an eighth of what came before, and each further one for twice that
share. So a small error costs few bytes beyond the end of the range, and a large one few calls.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from kinesis_source.arrow import ROW_OVERHEAD_BYTES
from kinesis_source.ranges import ExpectedSize

LEAST_RESERVATION: Final = 1 << 20
_LEAST_MORE: Final = 100
"""Records, where more are to be fetched than were expected."""
MAX_PAGE_BYTES: Final = 10 << 20
"""Of keys and data in one answer (Kinesis API reference, GetRecords)."""


@dataclass(slots=True)
class PageRequests:
    """The requests for one range, of at most `most` records each."""

    most: int
    expected: ExpectedSize | None
    _fetched: int = 0
    _largest: int = 0
    _overruns: int = 0
    """Answers that came after as many records as were expected."""

    def limit(self, *, repeated: int) -> int:
        """Return the `Limit` of the next fetch, whose first `repeated` records do not count."""
        if self.expected is None:
            return self.most
        left = self.expected.records - self._fetched
        wanted = left if left > 0 else max(_LEAST_MORE, self._share_of(self._fetched))
        return min(self.most, wanted + repeated)

    def _share_of(self, records: int) -> int:
        return records >> max(0, 3 - self._overruns)

    def memory(self, limit: int) -> int:
        """Return how many bytes to set aside for an answer of up to `limit` records."""
        overhead = ROW_OVERHEAD_BYTES * limit
        most = MAX_PAGE_BYTES + overhead
        if self._largest:
            likely = 2 * self._largest
        elif self.expected is not None and self.expected.size is not None:
            likely = self.expected.size * limit // max(self.expected.records, 1) + overhead
        else:
            return most  # nothing is known of the size of the records
        return max(LEAST_RESERVATION, min(likely, most))

    def answered(self, records: int, weight: int) -> None:
        """Count so many further records, in an answer that takes `weight` bytes of memory."""
        if self.expected is not None and self._fetched >= self.expected.records:
            self._overruns += 1
        self._fetched += records
        self._largest = max(self._largest, weight)
