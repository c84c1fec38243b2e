"""The option `batchWriteId` of the sinks: the identity of a batch write in `foreachBatch`, by which
a batch that is written again is recognized."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from spark_ssp.common.options.spec import (
    InvalidOptionsError,
    OptionProblem,
    OptionReading,
    OptionSpec,
)
from spark_ssp.common.options.values import matching

BatchWrite = tuple[str, int]
"""The id of the query and the number of the batch."""

_NAME: Final = "batchWriteId"

_text: Final = matching(
    "[A-Za-z0-9-]{1,64}:[0-9]{1,18}",
    "<id>:<batch>, the id of letters, digits and hyphens",
    "give the query's id and the number of the batch",
)


def _batch_write(text: str) -> BatchWrite:
    source, _, batch = _text(text).partition(":")
    return source, int(batch)


def batch_write_id(include: OptionSpec[bool], target: str) -> OptionSpec[BatchWrite | None]:
    """Return the option. `include` is the switch of the identity; `target` is the word for a stream
    or topic."""
    return OptionSpec(
        name=_NAME,
        convert=_batch_write,
        default=None,
        default_text="a new id for each write",
        doc=f"For `{include.name}` in `foreachBatch`: `<id>:<batch>`, with the id of the streaming "
        "query and the number of the batch. It identifies a batch that is written again. Write a "
        f"batch to a {target} only once: rows of a second write would count as duplicates.",
    )


def batch_write_problems(
    reading: OptionReading, spec: OptionSpec[BatchWrite | None], include: OptionSpec[bool]
) -> Iterator[OptionProblem]:
    """Yield the problem of an id without `include`."""
    if reading.value(spec) is not None and not reading.value(include):
        yield OptionProblem(
            option=_NAME,
            found=f"an id without {include.name}",
            expected=f"{include.name}=true, which adds it to the records",
            next_step=f"set {include.name}=true, or remove it",
        )


def batch_write_in_stream_error(sink: str) -> InvalidOptionsError:
    """Return the error for the option in a streaming write."""
    problem = OptionProblem(
        option=_NAME,
        found="a streaming query, which has an id already",
        expected="a batch write in foreachBatch",
        next_step="remove it",
    )
    return InvalidOptionsError(sink, [problem])
