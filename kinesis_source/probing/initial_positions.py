"""Finds the initial positions of the shards of a stream that is new to a query.

They come from `startingPosition`: LATEST is resolved, and times in the future are refused.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence

from spark_ssp.common.errors import InvalidOptionsError, OptionProblem
from spark_ssp.common.times import duration_text, time_text
from spark_ssp.grouping.identifiers import ShardId, ShardKey, StreamName
from spark_ssp.kinesis_source.model.shard import (
    CLOCK_UNCERTAINTY_MS,
    AtTimestamp,
    EpochMillis,
    Latest,
    Shard,
    ShardEnd,
    ShardState,
    StartingPosition,
)
from spark_ssp.kinesis_source.planning.shard_lineage import start_points
from spark_ssp.kinesis_source.probing.probe_protocol import ProbeResult

ResolveLatest = Callable[[Collection[ShardKey], EpochMillis], Mapping[ShardKey, ProbeResult]]
"""Resolves LATEST for shards at a moment; one that has expired is left out."""


def initial_states(
    stream: StreamName,
    listing: Mapping[ShardId, Shard],
    start: StartingPosition,
    now: EpochMillis,
    resolve_latest: ResolveLatest,
) -> tuple[dict[ShardId, ShardState], set[ShardKey]]:
    """Return each shard's entry, and those among them for which LATEST was resolved.

    Raises UnnamedShardError if the option misses a shard, InvalidOptionsError for a time that is
    ahead of the service's clock.
    """
    points = start_points(stream, list(listing.values()), start)
    times = [point.millis for point in points.values() if isinstance(point, AtTimestamp)]
    check_not_future("startingPosition", stream, times, now)
    at_latest = {
        ShardKey(stream=stream, shard=shard)
        for shard, point in points.items()
        if isinstance(point, Latest)
    }
    resolved = latest_states(at_latest, now, resolve_latest)
    entries: dict[ShardId, ShardState] = {}
    for shard, point in points.items():
        key = ShardKey(stream=stream, shard=shard)
        if not isinstance(point, Latest):
            entries[shard] = ShardState(position=point)
        elif key in resolved:
            entries[shard] = resolved[key]
    return entries, at_latest


def latest_states(
    keys: Collection[ShardKey], now: EpochMillis, resolve_latest: ResolveLatest
) -> dict[ShardKey, ShardState]:
    """Resolve LATEST for these shards; one that has expired is left out."""
    return {key: _latest_state(result, now) for key, result in resolve_latest(keys, now).items()}


def _latest_state(result: ProbeResult, now: EpochMillis) -> ShardState:
    """Return LATEST as a state. A shard that has closed has no later record."""
    if result.closed:
        return ShardState(position=ShardEnd())
    if result.end is None:
        return ShardState(position=AtTimestamp(millis=now), last_caught_up_ms=now)
    return ShardState(position=result.end.position, last_caught_up_ms=result.time)


def check_not_future(
    option: str, stream: StreamName, times: Sequence[int], now: EpochMillis
) -> None:
    """Refuse a time in the future: the service does not take one, and now is another position.

    The service's clock has a resolution of a second, so a time within the next second is accepted.
    """
    ahead = max(times, default=now)
    what = "an end" if option == "endingPosition" else "a start"
    if ahead > now + CLOCK_UNCERTAINTY_MS:
        raise InvalidOptionsError(
            "kinesis-ssp",
            [
                OptionProblem(
                    option=option,
                    found=f"{what} at {time_text(ahead)} for stream {stream}, "
                    f"{duration_text(ahead - now)} after now by the service's clock",
                    expected="a time that has passed",
                    next_step="choose an earlier time, or start the query later",
                )
            ],
        )
