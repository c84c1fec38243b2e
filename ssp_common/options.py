"""What both sources' options share: the error that reports every problem at once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from ssp_common.errors import SspError


@dataclass(frozen=True, slots=True, kw_only=True)
class OptionProblem:
    """One thing wrong with one option. All four are plain text and never hold a secret."""

    option: str
    """The name as the user wrote it; for a missing option its canonical name."""
    found: str
    expected: str
    next_step: str

    def __str__(self) -> str:
        return (
            f"{self.option}: found {self.found}; expected {self.expected}. "
            f"Next step: {self.next_step}"
        )


class InvalidOptionsError(SspError):
    """The options of a source cannot be used: mend every one that is listed, then start again."""

    kind: ClassVar[str] = "invalid-options"

    def __init__(self, source: str, problems: Sequence[OptionProblem]) -> None:
        """`source` is the format's name; `problems` holds at least one, in the order to show."""
        self.source = source
        self.problems = tuple(problems)
        super().__init__(
            ", ".join(problem.option for problem in self.problems),
            found="; ".join(f"{p.option}: {p.found}" for p in self.problems),
            expected="; ".join(f"{p.option}: {p.expected}" for p in self.problems),
            next_step="; ".join(f"{p.option}: {p.next_step}" for p in self.problems),
        )

    def __str__(self) -> str:
        if len(self.problems) == 1:
            return f"[{self.kind}] {self.problems[0]}"
        head = f"[{self.kind}] {len(self.problems)} problems with the options of {self.source}:"
        return "\n".join(
            [head, *(f"  {number}. {p}" for number, p in enumerate(self.problems, start=1))]
        )

    def __reduce__(self) -> tuple[object, ...]:
        return (type(self), (self.source, self.problems))
