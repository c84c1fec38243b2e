"""Chooses the settings of a task's consumer: for bulk reads or for small ranges.

librdkafka requests up to 1 MB of each partition at a time, and prefetches more. Records after the
end of a range are discarded; for a query that catches up by small batches that is most of them. The
setting belongs to the consumer, so there are two kinds of consumers.

librdkafka decompresses a whole answer at once, even if its queue is full, and each broker may
answer at the same time. So the size of an answer before decompression bounds the memory of a
consumer.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from enum import StrEnum
from typing import Final

from spark_ssp.grouping.identifiers import StreamName
from spark_ssp.kafka_source.model.ranges import PartitionRange


class FetchProfile(StrEnum):
    """The kind of a consumer."""

    BULK = "bulk"
    SMALL = "small"


DEFAULT_RECORD_BYTES: Final = 1024
"""The assumed size of records of a topic that was not read before."""

FETCH_BYTES: Final = "max.partition.fetch.bytes"
"""The maximum size of a fetch per partition. Brokers return at least one record batch, even a
larger one, and then of one partition at a time."""

RESPONSE_BYTES: Final = 1 << 20
"""The largest answer of a broker, compressed as stored, unless a single record batch is larger.
Measured on one machine with two cores, larger answers are not read any faster."""

_RESPONSE: Final = "fetch.max.bytes"

_SMALL_FETCH_BYTES: Final = 128 << 10
SMALL_RANGE_BYTES: Final = 4 * _SMALL_FETCH_BYTES
"""Above this size, many small fetches cost more than discarding surplus records."""

_COMMON: Final[Mapping[str, str]] = {
    # The end of a batch existed when it was planned. The only wait is for the end of the log after
    # control records, which brokers report by an empty response.
    "fetch.wait.max.ms": "2",
    # A full queue is checked again soon: the default, a second, starves a fast reader.
    "fetch.queue.backoff.ms": "2",
    _RESPONSE: str(RESPONSE_BYTES),
    # Counts only values. If keys or headers are larger, the number of messages below is the bound.
    "queued.max.messages.kbytes": "32768",
}

PROFILES: Final[Mapping[FetchProfile, Mapping[str, str]]] = {
    FetchProfile.BULK: {**_COMMON, "queued.min.messages": "20000"},
    # Records are not prefetched.
    FetchProfile.SMALL: {
        **_COMMON,
        "queued.min.messages": "1",
        FETCH_BYTES: str(_SMALL_FETCH_BYTES),
    },
}
"""Defaults of each kind: whole batches at full speed within bounded memory, or little more than the
range. Options `kafka.*` take precedence."""

_MESSAGE_BYTES: Final = "message.max.bytes"
_MESSAGE_DEFAULT: Final = 1_000_000
"""librdkafka's default."""
_RECEIVE_BYTES: Final = "receive.message.max.bytes"
_FRAME: Final = 512
"""librdkafka requires `receive.message.max.bytes` to exceed the size of an answer by this."""


def profile_settings(profile: FetchProfile, given: Mapping[str, str]) -> dict[str, str]:
    """Return the defaults of a consumer whose query sets `given`. librdkafka refuses an answer size
    below the largest message or above the largest size it may receive."""
    least = int(given.get(_MESSAGE_BYTES, _MESSAGE_DEFAULT))
    answer = max(RESPONSE_BYTES, least)
    if _RECEIVE_BYTES in given:
        # If it is too small for a message, librdkafka's refusal names it only if the answer size is
        # not too small as well.
        answer = max(least, min(answer, int(given[_RECEIVE_BYTES]) - _FRAME))
    found = {**PROFILES[profile], _RESPONSE: str(answer)}
    return {name: value for name, value in found.items() if name not in given}


def choose_profile(
    ranges: Iterable[PartitionRange],
    record_bytes: Mapping[StreamName, float],
    given: Collection[str] = (),
) -> FetchProfile:
    """Return the kind of consumer for these ranges. `record_bytes` is the recent average size of
    the records of each topic that was read before; `given` are the properties that the query
    sets."""
    if FETCH_BYTES in given:
        return FetchProfile.BULK
    largest = max(
        (
            (one.end - one.start) * record_bytes.get(one.ssp.stream, DEFAULT_RECORD_BYTES)
            for one in ranges
        ),
        default=0,
    )
    return FetchProfile.SMALL if largest <= SMALL_RANGE_BYTES else FetchProfile.BULK
