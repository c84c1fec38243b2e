"""The option `trigger`: declares the trigger of a query where PySpark does not pass it.

Before PySpark 4.2 a query with the trigger availableNow or once runs exactly one batch of a Python
source, and the source is passed neither the trigger nor a limit. With a limit of its own it would
leave records unread, silently.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, Final

from spark_ssp.common.options.spec import (
    BadValueError,
    Fault,
    OptionProblem,
    OptionReading,
    OptionSpec,
    shown,
)

_PROCESSING_TIME: Final = "processingTime"


def _processing_time(text: str) -> str:
    if text.lower() != _PROCESSING_TIME.lower():
        raise BadValueError(
            Fault(
                found=shown(text),
                expected=_PROCESSING_TIME,
                next_step="remove it for a query with the trigger availableNow or once",
            )
        )
    return _PROCESSING_TIME


TRIGGER: Final[OptionSpec[str | None]] = OptionSpec(
    name="trigger",
    convert=_processing_time,
    default=None,
    default_text="not declared",
    doc="`processingTime` declares that the query is not started with the trigger availableNow or "
    "once. Limits of a batch and leases require it with PySpark 4.0 and 4.1; it has no effect from "
    "4.2 on.",
)


def trigger_problems(
    reading: OptionReading, bounding: Iterable[OptionSpec[Any]], pyspark_without_limits: str | None
) -> Iterator[OptionProblem]:
    """Yield a problem for each given option that may bound a batch, unless the trigger is declared.

    `pyspark_without_limits` is the version of the installed PySpark if it does not pass limits to
    sources; else None, and there is no problem.
    """
    if pyspark_without_limits is None or reading.value(TRIGGER):
        return
    for spec in bounding:
        if reading.given(spec) and reading.value(spec):
            yield OptionProblem(
                option=reading.name(spec),
                found=f"PySpark {pyspark_without_limits}, which runs the triggers availableNow and "
                "once as a single batch and does not report the trigger to the source",
                expected="PySpark 4.2 or newer, or a query without these triggers",
                next_step=f"set trigger={_PROCESSING_TIME} if the query has neither trigger, else "
                "remove the option",
            )
