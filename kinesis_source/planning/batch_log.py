"""Logs what changes with a planned batch: shards, slots, and shards that it leaves for later."""

from __future__ import annotations

import logging
from collections.abc import Mapping

from kinesis_source.model.offset import Offset
from kinesis_source.model.shard import ShardEnd
from ssp_common.logs import abbreviate
from task_grouping.identifiers import ShardKey

_log = logging.getLogger(f"spark_ssp.{__name__}")


def log_changes(start: Offset, end: Offset, dropped: Mapping[ShardKey, str]) -> None:
    """Log the shards and slots in which a batch's end differs from its start. `dropped` has the
    reasons for which shards left other than by being read to their end."""
    added = sorted(end.states.keys() - start.states.keys())
    if added:
        _log.info(
            "now read: %s", abbreviate([f"{key} (slot {end.assignment[key]})" for key in added])
        )
    left = sorted(start.states.keys() - end.states.keys())
    if left:
        removed = [f"{key} ({dropped[key]})" if key in dropped else str(key) for key in left]
        _log.info("no longer read: %s" if dropped else "finished: %s", abbreviate(removed))
    if start.slots != end.slots:
        _log.info("the query has %d slots", end.slots)


def warn_of_next_batches(end: Offset) -> None:
    """Warn if records are left for the next batches, where this one may be the only one: those of
    the shards that follow a shard which ends with this batch."""
    ended = [str(key) for key, state in end.states.items() if isinstance(state.position, ShardEnd)]
    if ended:
        _log.warning(
            "this batch reads the rest of %d shards that were split or merged (%s); the shards "
            "that follow them are read by the next batches. This PySpark runs a query with the "
            "trigger availableNow or once as a single batch: start such a query again until it "
            "logs no such warning. For other queries, the option trigger=processingTime turns the "
            "warning off",
            len(ended),
            abbreviate(sorted(ended)),
        )
