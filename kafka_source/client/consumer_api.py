"""What the executor's side needs from Kafka: the seam between reading and the SDK."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from kafka_source.client.arrow_batches import RecordColumns
from kafka_source.client.error_translation import ErrorKind
from ssp_common.errors import SspError
from task_grouping.identifiers import SystemStreamPartition


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordRun:
    """Consecutive records of one partition, at `begin` and behind it among those that were polled.
    Their offsets ascend, with gaps."""

    ssp: SystemStreamPartition
    begin: int
    offsets: Sequence[int]


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionEof:
    """The log of a partition ends, for now, at `offset`: there is no record before it that was not
    handed over."""

    ssp: SystemStreamPartition
    offset: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadError:
    """Something that went wrong, of one partition or (None) of no one in particular."""

    ssp: SystemStreamPartition | None
    kind: ErrorKind
    error: SspError


Event = RecordRun | PartitionEof | ReadError


class PartitionConsumer(Protocol):
    """Reads partitions, each from where it was told, and gathers the records that are kept.

    Whatever was fetched of a partition before it was placed anew, or dropped, never shows. Used by
    one thread at a time. Methods raise errors of this project.
    """

    def assign(self, positions: Mapping[SystemStreamPartition, int]) -> None:
        """Read these partitions from these offsets, and no others; none: rest."""
        ...

    def seek(self, ssp: SystemStreamPartition, offset: int) -> None:
        """Go on with one of them from another offset."""
        ...

    def unassign(self, ssps: Sequence[SystemStreamPartition]) -> None:
        """Read these no more; the others go on."""
        ...

    def poll(self, limit: int, wait_s: float) -> Sequence[Event]:
        """What is there, in order, at most about `limit` records; waits for the first."""
        ...

    def keep(self, run: RecordRun, kept: slice) -> None:
        """Gather these records of a run of the last poll."""
        ...

    @property
    def buffered_rows(self) -> int:
        """The number of records gathered."""
        ...

    @property
    def buffered_bytes(self) -> int:
        """Bytes of their keys and values."""
        ...

    def take(self, most: int, header_bytes: float = 0.0) -> RecordColumns:
        """Return the first records gathered, in order, and keep the rest. They have at most `most`
        bytes of keys, values and `header_bytes` for each, or are one record."""
        ...

    def last_error(self) -> str | None:
        """What the connections reported last since the last `assign`, if anything."""
        ...

    def close(self) -> None:
        """Give everything back. Nothing may be called after that."""
        ...
