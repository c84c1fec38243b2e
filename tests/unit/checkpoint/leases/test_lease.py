"""The order of what a lease says about how far its shard is."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given

from spark_ssp.checkpoint.leases.lease import (
    Processed,
    Progress,
    ShardEnded,
    StartAtLatest,
    StartAtTimestamp,
    StartAtTrimHorizon,
    advanced,
    is_forward,
)
from spark_ssp.grouping.identifiers import EpochMillis
from tests.support.leases.values import any_progress, processed

HORIZON, LATEST, END = StartAtTrimHorizon(), StartAtLatest(), ShardEnded()
NOON = StartAtTimestamp(at_ms=EpochMillis(43_200_000))


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (HORIZON, processed(1)),
        (LATEST, processed(1)),
        (LATEST, StartAtLatest(since_ms=EpochMillis(1))),
        (LATEST, StartAtLatest(since_ms=EpochMillis(1), last_caught_up_ms=EpochMillis(2))),
        (NOON, processed(1)),
        (HORIZON, END),
        (processed(1), END),
        (processed(1), processed(2)),
        (processed(9), processed(10)),
        (processed(9, sub=7), processed(10)),
        (processed(9, sub=9), processed(9, sub=10)),
    ],
)
def test_one_way_only(before: Progress, after: Progress) -> None:
    assert is_forward(before, after)
    assert not is_forward(after, before)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (HORIZON, LATEST),
        (HORIZON, NOON),
        (StartAtLatest(since_ms=EpochMillis(2)), StartAtLatest(since_ms=EpochMillis(3))),
        (NOON, StartAtTimestamp(at_ms=EpochMillis(1))),
        (NOON, StartAtTimestamp(at_ms=None)),
    ],
)
def test_neither_way_between_two_starts(one: Progress, other: Progress) -> None:
    assert not is_forward(one, other)
    assert not is_forward(other, one)


@given(any_progress)
def test_staying_is_forward(progress: Progress) -> None:
    assert is_forward(progress, progress)


@given(any_progress, any_progress, any_progress)
def test_forward_and_forward_again_is_forward(
    one: Progress, two: Progress, three: Progress
) -> None:
    if is_forward(one, two) and is_forward(two, three):
        assert is_forward(one, three)


@given(any_progress, any_progress)
def test_both_ways_only_between_equals(one: Progress, other: Progress) -> None:
    both = is_forward(one, other) and is_forward(other, one)
    assert both == (untimed(one) == untimed(other))


@given(any_progress, any_progress)
def test_what_is_written_is_forward_and_no_earlier_in_time(
    before: Progress, after: Progress
) -> None:
    written = advanced(before, after)
    if written is None:
        assert not is_forward(before, after) or untimed(before) == untimed(after)
        return
    assert untimed(written) == untimed(after)
    assert is_forward(before, written)
    if isinstance(written, ShardEnded) or isinstance(before, ShardEnded):
        return
    assert not isinstance(after, ShardEnded)
    own, seen = after.last_caught_up_ms or 0, before.last_caught_up_ms or 0
    if isinstance(written, Processed) and not isinstance(before, Processed):
        assert written == after
    else:
        assert (written.last_caught_up_ms or 0) == max(own, seen)


def untimed(progress: Progress) -> object:
    """Return what two equal checkpoints have in common, however their numbers are written."""
    match progress:
        case ShardEnded():
            return progress
        case Processed(sequence_number=number, sub=sub):
            return int(number), sub
    return replace(progress, last_caught_up_ms=None)
