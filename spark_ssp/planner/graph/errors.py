"""Errors of pipelines: the problems of a description, each with its source location, in one error;
and the errors of stages that run. The cause of the latter is the error's `__cause__`: its text
comes from Spark and may contain data of records, so only its kind is quoted."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from spark_ssp.common.errors import SspError, printable


@dataclass(frozen=True, slots=True, kw_only=True, order=True)
class SourceLocation:
    """A line of the user's code: the file relative to the working directory, or only its name;
    never an absolute path."""

    file: str
    line: int

    def __str__(self) -> str:
        return f"{self.file}:{self.line}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
    """One problem of a pipeline, in plain text."""

    subject: str
    """Name of the operator, table, stream or argument."""
    found: str
    expected: str
    next_step: str
    place: SourceLocation | None = None

    def __str__(self) -> str:
        where = f" ({self.place})" if self.place else ""
        return printable(
            f"{self.subject}{where}: found {self.found}; expected {self.expected}. "
            f"Next step: {self.next_step}"
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Note:
    """A remark on a part of a pipeline that is valid."""

    subject: str
    text: str
    place: SourceLocation | None = None

    def __str__(self) -> str:
        where = f" ({self.place})" if self.place else ""
        return f"{self.subject}{where}: {self.text}"


class InvalidPipelineError(SspError):
    """The description of a pipeline has the listed problems."""

    kind = "invalid-pipeline"

    def __init__(self, pipeline: str, problems: Sequence[Problem]) -> None:
        """Create the error with one problem or more, in display order."""
        self.pipeline = pipeline
        self.problems = tuple(problems)
        super().__init__(
            ", ".join(problem.subject for problem in self.problems),
            found="; ".join(f"{p.subject}: {p.found}" for p in self.problems),
            expected="; ".join(f"{p.subject}: {p.expected}" for p in self.problems),
            next_step="; ".join(f"{p.subject}: {p.next_step}" for p in self.problems),
        )

    def __str__(self) -> str:
        if len(self.problems) == 1:
            return f"[{self.kind}] pipeline {self.pipeline}: {self.problems[0]}"
        head = f"[{self.kind}] pipeline {self.pipeline}: {len(self.problems)} problems:"
        lines = (f"  {number}. {p}" for number, p in enumerate(self.problems, start=1))
        return "\n".join([head, *lines])

    def __reduce__(self) -> tuple[object, ...]:
        return (type(self), (self.pipeline, self.problems))


class PartitionCountConflictError(InvalidPipelineError):
    """The streams' partition counts conflict with the joins: repartition, or change the streams."""

    kind = "partition-counts"


class PlanContradictionError(InvalidPipelineError):
    """The plan contradicts the one that the checkpoints were written with: restore that one, or
    start over with new checkpoints."""

    kind = "plan-contradiction"


# --- Running pipelines ---------------------------------------------------------------------------


_HEAD: Final = re.compile(r"(?:^|: )\d+ problems")
"""End of the first line of an error that lists several problems, such as `InvalidOptionsError`."""
_NUMBER: Final = re.compile(r"\n  \d+\. ")
"""Prefix of each listed problem."""


class PipelineStageError(SspError):
    """A stage failed, and the pipeline with it: fix the cause and run again under the same root,
    where every stage resumes from its checkpoint."""

    kind = "pipeline-stage"

    @property
    def stage(self) -> str:
        """The name of the stage."""
        return self.subject.removeprefix("stage ").partition(" ")[0]


class SessionSettingError(SspError):
    """A requirement of the queries that the Spark session or the Python environment does not
    meet."""

    kind = "session-setting"


def kind_of(error: BaseException) -> str:
    """Return an error's type, Spark's condition if it has one, and the text of a quoted error of
    this project, without other text."""
    name = type(error).__name__
    try:
        condition = getattr(error, "getCondition", None)
        known = condition() if callable(condition) else None
        text = str(error)
    except Exception:  # noqa: BLE001 - the JVM may have exited
        return name
    # The rest is the query's plan, which contains the error texts of all expressions.
    quoted = _quoted_error(text.partition("=== Streaming Query ===")[0])
    kind = f"{name} ({known})" if known else name
    return f"{kind}: {quoted}" if quoted else kind


def _quoted_error(text: str) -> str | None:
    """Return the last complete error of this project in `text`, on one line: those contain no data.
    The last, since Python prints an error after its cause. Other text in brackets may be data."""
    kinds = "|".join(sorted({re.escape(cls.kind) for cls in _subclasses(SspError)}))
    found, end = "", 0
    for kind in re.finditer(rf"\[(?:{kinds})\] ", text):
        if kind.start() >= end:
            after = _end_of_problems(text, kind.end()) or _end_of_problem(text, kind.end())
            if after is not None:
                found, end = text[kind.start() : after], after
    return " ".join(found.split()) or None


def _end_of_problem(text: str, begin: int) -> int | None:
    """Return the end of the line that has the text of an `SspError` at `begin`, after its kind;
    None for other text. A plain search: a text of Spark may be long and contain anything."""
    # Line breaks may also be escaped as two characters, in quoted text.
    ends = (text.find("\n", begin), text.find("\\n", begin), len(text))
    end = min(place for place in ends if place >= 0)
    place = begin
    for word in (": found ", "; expected ", ". Next step: "):
        place = text.find(word, place + 1, end)
        if place < 0:
            return None
        place += len(word)
    return end if place < end else None


def _end_of_problems(text: str, begin: int) -> int | None:
    """Return the end of the text of an `SspError` that lists several problems, or None."""
    end = text.find("\n", begin)
    head = _HEAD.search(text[begin:end]) if end >= 0 and text[end - 1] == ":" else None
    if head is None or "\\n" in text[begin : begin + head.start()]:
        return None
    last = None
    while (number := _NUMBER.match(text, end)) is not None:
        after = _end_of_problem(text, number.end())
        if after is None:
            break
        last = end = after
    return last


def _subclasses(cls: type[SspError]) -> Iterator[type[SspError]]:
    """Yield the subclasses imported in this process, which include all that its sources raise."""
    for child in cls.__subclasses__():
        yield child
        yield from _subclasses(child)


def start_failure(pipeline: str, stage: str, error: BaseException) -> PipelineStageError:
    """Return the error for a stage's query that Spark does not start."""
    return PipelineStageError(
        _subject(pipeline, stage),
        found=f"a query that does not start, {kind_of(error)}",
        expected="a query that Spark can run",
        next_step="see the cause; output_modes={stage: mode} chooses a stage's output mode",
    )


def stage_failure(pipeline: str, stage: str, error: BaseException) -> PipelineStageError:
    """Return the error for a stage's query that ended with an error."""
    return PipelineStageError(
        _subject(pipeline, stage),
        found=f"a query that failed, {kind_of(error)}; all other stages were stopped",
        expected="queries that run until they are stopped or have read everything",
        next_step="fix the cause and run the pipeline again under the same root",
    )


def ended_normally(pipeline: str, stage: str) -> PipelineStageError:
    """Return the error for a stage's query that ended normally before the pipeline was stopped."""
    return PipelineStageError(
        _subject(pipeline, stage),
        found="a query that was stopped from outside; all other stages were stopped",
        expected="a pipeline that is stopped as a whole",
        next_step="stop it by RunningPipeline.stop(), or run it again under the same root",
    )


def _subject(pipeline: str, stage: str) -> str:
    # Names contain no spaces.
    return f"stage {stage} of pipeline {pipeline}"
