"""Asking a query to drain through Spark: a batch read that is planned on the driver, and never run.

    spark.read.format("kinesis-ssp").option("drainToken", token).option("drainStep", "ask").load()

The token is the reader's, from the query's progress. The one column of the frame is called as the
reader stands. So it works wherever the program runs that asks, also through Spark Connect: Spark
makes the frame's schema in a Python process on the driver's machine, where the reader's marks are.
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
    """What to do: ask (again, as often as you like), or forget about it."""

    ASK = "ask"
    CLEAR = "clear"


class DrainStatus(StrEnum):
    """How a reader stands that was asked to drain."""

    DRAINING = "draining"
    DRAINED = "drained"
    CLEARED = "cleared"


def drain(options: Mapping[str, str]) -> DrainStatus | None:
    """Do what the options of a batch read ask for; None when they ask for something else.

    Raises InvalidOptionsError for a step that there is not, and AccessError as `DrainMarks.ask`.
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
        next_step="call kinesis_source.graceful_stop.stop_gracefully, which gives it",
    )
    return InvalidOptionsError("kinesis-ssp", [problem])
