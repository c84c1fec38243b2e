"""Errors of pipelines: each problem with its source location, and all of them in one error."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

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
