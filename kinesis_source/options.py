"""The options of the Kinesis source, parsed: frozen values that executors receive by pickle.

This module stays cheap to import, since every executor does; the parser is loaded on first use.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from enum import StrEnum
from typing import Final

from kinesis_source.model import StartingPosition, StreamRef
from ssp_common.errors import InvalidOptionsError

__all__ = [
    "ConnectionOptions",
    "InvalidOptionsError",
    "KinesisOptions",
    "SlotAssignment",
    "parse_options",
]

_HIDDEN: Final = frozenset(
    {"aws_access_key_id", "aws_secret_access_key", "aws_session_token", "role_external_id"}
)


class SlotAssignment(StrEnum):
    """How shards get their slots: `FREE` takes a free one, `HASH_RANGE` keeps keys in place."""

    FREE = "free"
    HASH_RANGE = "hash-range"


@dataclass(frozen=True, slots=True, kw_only=True)
class ConnectionOptions:
    """How to reach the service. Hashable: clients are kept by it. Durations in milliseconds.

    None everywhere means "as AWS's own configuration says". Its text never shows credentials;
    its pickle carries them, because executors need them.
    """

    region: str | None = None
    endpoint_url: str | None = None
    aws_profile: str | None = None
    aws_access_key_id: str | None = None
    aws_secret_access_key: str | None = None
    aws_session_token: str | None = None
    role_arn: str | None = None
    role_external_id: str | None = None
    role_session_name: str | None = None
    sts_endpoint_url: str | None = None
    retry_max_attempts: int = 8
    retry_max_backoff_ms: int = 10_000
    connect_timeout_ms: int = 10_000
    read_timeout_ms: int = 30_000

    def __repr__(self) -> str:
        shown = []
        for entry in fields(self):
            value = getattr(self, entry.name)
            hidden = entry.name in _HIDDEN and value is not None
            shown.append(f"{entry.name}={'***' if hidden else repr(value)}")
        return f"{type(self).__name__}({', '.join(shown)})"


@dataclass(frozen=True, slots=True, kw_only=True)
class KinesisOptions:
    """Everything a query was told. Times in milliseconds, sizes in bytes.

    `streams` is sorted by name, unique and not empty. None means: `slots`, the number of open
    shards at the start; the two limits, no limit.
    """

    streams: tuple[StreamRef, ...]
    starting_position: StartingPosition
    slots: int | None = None
    slot_assignment: SlotAssignment = SlotAssignment.FREE
    max_records_per_trigger: int | None = None
    max_bytes_per_trigger: int | None = None
    shard_discovery_interval_ms: int = 10_000
    max_records_per_fetch: int = 10_000
    min_fetch_period_ms: int = 400
    fail_on_data_loss: bool = True
    deaggregate: bool = True
    max_bytes_in_flight: int = 64 * 1024 * 1024
    connection: ConnectionOptions


def parse_options(raw: Mapping[str, str]) -> KinesisOptions:
    """The options as Spark passes them, parsed. Pure but for a warning in the log.

    Names match whatever their case. Raises InvalidOptionsError, which lists every problem.
    """
    from kinesis_source.parse_options import parse

    return parse(raw)
