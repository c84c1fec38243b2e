"""Losses of records: an error, or tolerated by failOnDataLoss=false and logged."""

from __future__ import annotations

import json
import logging
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from spark_ssp.common.errors import NEW_CHECKPOINT, DataLossError
from spark_ssp.grouping.identifiers import StreamName
from spark_ssp.kafka_source.model.topic import TopicId

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class DataLoss:
    """Records that no longer exist, described for an error or a warning."""

    subject: str
    found: str
    expected: str
    recreated: tuple[StreamName, TopicId] | None = None
    """The topic and its new id, if a changed id is the only sign of the loss."""
    unread: StreamName | None = None
    """The topic, if the query no longer reads any of it: `dropTopics` accepts that."""


_AFRESH: Final = f"start a new query with {NEW_CHECKPOINT}"


def report_data_loss(
    losses: Sequence[DataLoss],
    *,
    fail: bool,
    otherwise: str = _AFRESH,
) -> None:
    """Raise DataLossError if there are `losses` and `fail` is failOnDataLoss, else log each.
    `otherwise` is the next step for users who do not accept them."""
    if fail:
        raise_data_loss(losses, otherwise)
    for loss in losses:
        _log.warning(
            "data loss in %s, tolerated by failOnDataLoss=false: found %s; expected %s",
            loss.subject,
            loss.found,
            loss.expected,
        )


_MAX_SHOWN = 3


def raise_data_loss(losses: Sequence[DataLoss], otherwise: str = _AFRESH) -> None:
    """Raise DataLossError if there are `losses`; `otherwise` is as for `report_data_loss`."""
    if not losses:
        return
    first = losses[:_MAX_SHOWN]
    more = f" (and {len(losses) - _MAX_SHOWN} more)" if len(losses) > _MAX_SHOWN else ""
    raise DataLossError(
        ", ".join(loss.subject for loss in first) + more,
        found="; ".join(loss.found for loss in first),
        expected="; ".join(dict.fromkeys(loss.expected for loss in first)),
        next_step="set failOnDataLoss to false to continue after the gap, or "
        f"{otherwise}{_drop_topics(losses)}{_accept_topic_ids(losses)}",
    )


def _drop_topics(losses: Sequence[DataLoss]) -> str:
    topics = sorted({loss.unread for loss in losses if loss.unread is not None})
    if not topics:
        return ""
    return (
        "; or, if the query no longer needs the topic, remove it from the topics to read and set "
        f"dropTopics to {','.join(topics)}"
    )


def _accept_topic_ids(losses: Sequence[DataLoss]) -> str:
    ids = dict(sorted(loss.recreated for loss in losses if loss.recreated is not None))
    if not ids:
        return ""
    return (
        "; or, if the same records exist at the same offsets, as in a copy of the cluster, set "
        f"acceptTopicIds to {json.dumps(ids)}"
    )
