"""The operations that reading on executors needs of a Kafka consumer."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from spark_ssp.common.errors import SspError
from spark_ssp.grouping.identifiers import SystemStreamPartition
from spark_ssp.kafka_source.client.error_translation import ErrorKind
from spark_ssp.kafka_source.reading.arrow_batches import RecordColumns


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordRun:
    """Consecutive records of one partition in the last poll, from index `begin`. Their offsets
    ascend, with gaps."""

    ssp: SystemStreamPartition
    begin: int
    offsets: Sequence[int]


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionEof:
    """The current end of a partition's log: all records before `offset` have been returned."""

    ssp: SystemStreamPartition
    offset: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadError:
    """An error of one partition, or of no particular partition (None)."""

    ssp: SystemStreamPartition | None
    kind: ErrorKind
    error: SspError


Event = RecordRun | PartitionEof | ReadError


class PartitionConsumer(Protocol):
    """Reads partitions from given offsets, and buffers the records that are kept. Records fetched
    before `seek` or `unassign` are discarded. Used by one thread at a time. Methods raise errors of
    this project."""

    def assign(
        self, positions: Mapping[SystemStreamPartition, int], *, headers: bool = False
    ) -> None:
        """Read only these partitions, from these offsets; stop reading if there are none. With
        `headers`, the bytes of headers count: they will be taken."""
        ...

    def seek(self, ssp: SystemStreamPartition, offset: int) -> None:
        """Continue an assigned partition from another offset."""
        ...

    def unassign(self, ssps: Sequence[SystemStreamPartition]) -> None:
        """Stop reading these partitions, and continue with the others."""
        ...

    def poll(self, limit: int, wait_s: float) -> Sequence[Event]:
        """Return the next events in order, with about `limit` records at most; wait for the
        first."""
        ...

    def keep(self, run: RecordRun, kept: slice) -> None:
        """Buffer these records of a run of the last poll."""
        ...

    @property
    def buffered_rows(self) -> int:
        """The number of records buffered."""
        ...

    @property
    def buffered_bytes(self) -> int:
        """Bytes of the keys and values of the buffered records, and of the headers that count."""
        ...

    def take(self, most: int, columns: Collection[str]) -> RecordColumns:
        """Remove and return the first buffered records, in order, with the fields of these
        columns: at most `most` of the buffered bytes, unless it is one record."""
        ...

    def last_error(self) -> str | None:
        """Return the last connection error since the last `assign`, if any."""
        ...

    def close(self) -> None:
        """Release all resources. No method may be called after that."""
        ...
