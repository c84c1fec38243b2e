"""Requests that a query drains, by a batch read that is planned on the driver and never run.

    spark.read.format("kinesis-ssp").option("drainToken", token).option("drainStep", "ask").load()

The token is the reader's, from the query's progress. The name of the frame's only column is the
reader's status. So it works on any machine, also through Spark Connect: Spark makes the
frame's schema in a Python process on the driver's machine, where the reader's signal files are.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import Final

from kinesis_source.leases.drain_signal import DrainSignal
from ssp_common.errors import InvalidOptionsError, OptionProblem
from ssp_common.options.spec import shown

DRAIN_TOKEN: Final = "drainToken"
"""The option, and the token's name in the query's progress."""
DRAIN_ACTION: Final = "drainStep"


class DrainAction(StrEnum):
    """The action: request the drain (repeatable), or clear the request."""

    ASK = "ask"
    CLEAR = "clear"


class DrainStatus(StrEnum):
    """The status of a reader after the action."""

    DRAINING = "draining"
    DRAINED = "drained"
    CLEARED = "cleared"


def drain(options: Mapping[str, str]) -> DrainStatus | None:
    """Carry out the drain action of a batch read's options; None if they contain none.

    Raises InvalidOptionsError for an unknown action, and AccessError as `DrainSignal.request`.
    """
    folded = {name.lower(): value for name, value in options.items()}
    token = folded.get(DRAIN_TOKEN.lower())
    if token is None:
        return None
    marks = DrainSignal(token)
    match folded.get(DRAIN_ACTION.lower()):
        case DrainAction.ASK:
            marks.request()
            return DrainStatus.DRAINED if marks.is_drained() else DrainStatus.DRAINING
        case DrainAction.CLEAR:
            marks.clear()
            return DrainStatus.CLEARED
        case other:
            raise _unknown_action(other)


def _unknown_action(found: str | None) -> InvalidOptionsError:
    problem = OptionProblem(
        option=DRAIN_ACTION,
        found="nothing" if found is None else shown(found),
        expected=f"one of {', '.join(DrainAction)}",
        next_step="call kinesis_source.graceful_stop.stop_gracefully, which sets it",
    )
    return InvalidOptionsError("kinesis-ssp", [problem])
