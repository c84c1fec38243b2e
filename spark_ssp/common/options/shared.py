"""Options of both formats: `trigger` of the sources, `batchWriteId` of the sinks.

`trigger` declares the trigger of a query where PySpark does not pass it. Before PySpark 4.2 a query
with the trigger availableNow or once runs exactly one batch of a Python source, and the source is
passed neither the trigger nor a limit. With a limit of its own it would leave records unread,
silently.

`batchWriteId` is the identity of a batch write in `foreachBatch`, by which a batch that is written
again is recognized.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from spark_ssp.common.errors import shown
from spark_ssp.common.options.spec import (
    BadValueError,
    Fault,
    InvalidOptionsError,
    OptionProblem,
    OptionReading,
    QueryKind,
    option,
)
from spark_ssp.common.options.values import matching

# --- The trigger of a source ---------------------------------------------------------------------

_PROCESSING_TIME: Final = "processingTime"


def _is_processing_time(text: str) -> bool:
    if text.lower() != _PROCESSING_TIME.lower():
        raise BadValueError(
            Fault(
                found=shown(text),
                expected=_PROCESSING_TIME,
                next_step="remove it for a query with the trigger availableNow or once",
            )
        )
    return True


def trigger_option() -> bool:
    """Declare the field for the option `trigger`: whether it is neither availableNow nor once."""
    return option(
        "trigger",
        _is_processing_time,
        "`processingTime` declares that the query is not started with the trigger availableNow or "
        "once. With PySpark 4.0 and 4.1, limits of a batch require it, and leases of Kinesis; it "
        "has no effect from 4.2 on.",
        unset="not declared",
        empty=False,
        only=QueryKind.STREAM,
    )


def trigger_problems(
    reading: OptionReading, query: QueryKind, pyspark_without_limits: str | None
) -> Iterator[OptionProblem]:
    """Yield a problem for each given option that may bound a batch, unless the trigger is declared.
    `pyspark_without_limits` is the version of the installed PySpark if it does not pass limits to
    sources; else None, and there is no problem."""
    if pyspark_without_limits is None or query is QueryKind.BATCH or "trigger" in reading.valid:
        return
    for declared in reading.table.options:
        name = declared.name
        is_bounded = bool(reading.valid.get(name, declared.default))
        if declared.bounds_batch and reading.given(name) and is_bounded:
            yield OptionProblem(
                option=reading.name(name),
                found=f"PySpark {pyspark_without_limits}, which runs the triggers availableNow and "
                "once as a single batch and does not report the trigger to the source",
                expected="PySpark 4.2 or newer, or a query without these triggers",
                next_step=f"set trigger={_PROCESSING_TIME} if the query has neither trigger, else "
                "remove the option",
            )


# --- The identity of a batch write of a sink -----------------------------------------------------

BatchWrite = tuple[str, int]
"""The id of the query and the number of the batch."""

BATCH_WRITE_ID: Final = "batchWriteId"

_batch_write_text: Final = matching(
    "[A-Za-z0-9-]{1,64}:[0-9]{1,18}",
    "<id>:<batch>, the id of letters, digits and hyphens",
    "give the query's id and the number of the batch",
)


def _batch_write(text: str) -> BatchWrite:
    source, _, batch = _batch_write_text(text).partition(":")
    return source, int(batch)


def batch_write_option(include: str, target: str) -> BatchWrite | None:
    """Declare the field. `include` is the option that switches the identity on; `target` is the
    word for a stream or topic."""
    return option(
        BATCH_WRITE_ID,
        _batch_write,
        f"For `{include}` in `foreachBatch`: `<id>:<batch>`, with the id of the streaming query "
        "and the number of the batch. It identifies a batch that is written again. Write a batch "
        f"to a {target} only once: rows of a second write would count as duplicates.",
        unset="a new id for each write",
    )


def batch_write_problems(
    reading: OptionReading, include: str, *, is_included: bool
) -> Iterator[OptionProblem]:
    """Yield the problem of an id without an option of `include` ("a=true or b=c")."""
    if BATCH_WRITE_ID in reading.valid and not is_included:
        yield OptionProblem(
            option=BATCH_WRITE_ID,
            found=f"an id without {include}",
            expected=f"{include}, by which a batch that is written again is recognized",
            next_step=f"set {include}, or remove it",
        )


def batch_write_in_stream_error(sink: str) -> InvalidOptionsError:
    """Return the error for the option in a streaming write."""
    problem = OptionProblem(
        option=BATCH_WRITE_ID,
        found="a streaming query, which has an id already",
        expected="a batch write in foreachBatch",
        next_step="remove it",
    )
    return InvalidOptionsError(sink, [problem])
