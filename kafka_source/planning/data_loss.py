"""Logs the losses that failOnDataLoss=false tolerates."""

from __future__ import annotations

import logging
from collections.abc import Iterable

from spark_ssp.kafka_source.planning.topic_metadata import DataLoss

_log = logging.getLogger(__name__)


def log_data_loss(losses: Iterable[DataLoss]) -> None:
    """Log each loss."""
    for loss in losses:
        _log.warning(
            "data loss in %s, tolerated by failOnDataLoss=false: found %s; expected %s",
            loss.subject,
            loss.found,
            loss.expected,
        )
