"""Finds the initial positions of the shards of a stream that is new to a query. They come from
`startingPosition`: LATEST is resolved, and times in the future are refused."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence

from spark_ssp.common.errors import InvalidOptionsError, OptionProblem, SspError
from spark_ssp.common.logs import abbreviate
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
    StartPoint,
    TrimHorizon,
)
from spark_ssp.kinesis_source.planning.active_shards import States, advance_lineage
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
    """Return each shard's entry, and those among them for which LATEST was resolved. Raises
    UnnamedShardError if the option misses a shard, InvalidOptionsError for a time that is ahead of
    the service's clock."""
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
        return ShardState(position=AtTimestamp(millis=now), last_caught_up_ms=min(now, result.time))
    return ShardState(position=result.end.position, last_caught_up_ms=result.time)


def check_not_future(
    option: str, stream: StreamName, times: Sequence[int], now: EpochMillis
) -> None:
    """Refuse a time in the future: the service does not take one, and now is another position. The
    service's clock has a resolution of a second, so a time within the next second is accepted."""
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


# --- Start points ---------------------------------------------------------------------------------


class UnnamedShardError(SspError):
    """A position names shards, has no default, and misses one that exists; or it names a shard that
    does not exist."""

    kind = "invalid-options"


def start_points(
    stream: StreamName, listed: Sequence[Shard], start: StartingPosition
) -> dict[ShardId, StartPoint | ShardEnd]:
    """Return the start of each shard of a stream that is new to the query; shards left out have no
    entry.

    * Started at TRIM_HORIZON throughout, a stream needs entries for its oldest shards only: their
      descendants are found by `advance_lineage` in time.
    * Any other start is fixed now for every listed shard, also for those that must wait.
    * LATEST of a closed shard is its end. It gets an entry only while no child is listed, so that
      the children are found later; otherwise its children's entries show that it is finished.
    """
    by_id = {shard.shard_id: shard for shard in listed}
    if not start.by_shard and start.default == TrimHorizon():
        return {
            shard_id: TrimHorizon()
            for shard_id, shard in by_id.items()
            if not any(parent in by_id for parent in shard.parents)
        }
    parents_of_listed = {parent for shard in listed for parent in shard.parents}
    points: dict[ShardId, StartPoint | ShardEnd] = {}
    unnamed: list[ShardId] = []
    for shard_id, shard in sorted(by_id.items()):
        point = start.by_shard.get(ShardKey(stream=stream, shard=shard_id), start.default)
        if point is None:
            unnamed.append(shard_id)
        elif not (isinstance(point, Latest) and shard.closed):
            points[shard_id] = point
        elif shard_id not in parents_of_listed:
            points[shard_id] = ShardEnd()
    if unnamed:
        raise UnnamedShardError(
            f"option startingPosition, stream {stream}",
            found=f"no position for {abbreviate(unnamed)}",
            expected="a position for each shard of the stream, or a default for the rest",
            next_step='name them, or add "default": "trim_horizon" (or another position)',
        )
    check_named_shards("startingPosition", stream, by_id, start)
    return points


def check_named_shards(
    option: str, stream: StreamName, by_id: Mapping[ShardId, Shard], start: StartingPosition
) -> None:
    """Raise UnnamedShardError if the option names a shard that is not listed."""
    unknown = sorted(
        key.shard for key in start.by_shard if key.stream == stream and key.shard not in by_id
    )
    if unknown:
        raise UnnamedShardError(
            f"option {option}, stream {stream}",
            found=f"positions for {abbreviate(unknown)}, which the stream does not have",
            expected="shards that the service lists (expired ones are not)",
            next_step="remove them from the option",
        )


def split_waiting(
    listed: Collection[Shard], entries: States
) -> tuple[dict[ShardId, ShardState], dict[ShardId, ShardState]]:
    """Split a new stream's entries into those that may be read immediately and those that must
    wait."""
    lineage = advance_lineage(listed, {}, entries)
    states = {key: lineage.states[key] for key in lineage.states if key in entries}
    return states, lineage.waiting
