"""The errors of this project, grouped by remedy.

Every error crosses from a Spark worker to the driver by pickle, and from there into the text of a
`StreamingQueryException`. So each is built only from plain strings, survives pickling, and its
text contains the subject, the finding, the expectation and the next step. Never put credentials or
record data into one.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import ClassVar, Final

NEW_CHECKPOINT: Final = "a new checkpoint location, and with a new folder if its sink writes files"
"""For the remedies that need one. Its batches are numbered from 0, and Spark's file sink leaves out
the rows of every batch whose number the folder has."""

_SHOWN_LENGTH: Final = 80


def printable(text: str) -> str:
    """Escape characters that a terminal or a log viewer interprets: control and direction
    characters, line breaks. Names of options, topics and keys in an error may come from other
    users."""
    if text.isprintable():
        return text
    return "".join(
        sign if sign.isprintable() else sign.encode("unicode_escape").decode() for sign in text
    )


def shown(value: str) -> str:
    """Return a value as messages quote it: on one line, and cut if long."""
    if len(value) > _SHOWN_LENGTH:
        value = f"{value[:_SHOWN_LENGTH]}…"
    return repr(value)


class SspError(Exception):
    """Base of all errors raised on purpose. `kind` is a stable, lower-case name for programs to
    match on; it also opens the text. `subject`, `found`, `expected` and `next_step` are the parts
    of the text."""

    kind: ClassVar[str] = "error"

    def __init__(self, subject: str, *, found: str, expected: str, next_step: str) -> None:
        super().__init__(subject, found, expected, next_step)
        self.subject = subject
        self.found = found
        self.expected = expected
        self.next_step = next_step

    def __str__(self) -> str:
        return printable(
            f"[{self.kind}] {self.subject}: found {self.found}; expected {self.expected}. "
            f"Next step: {self.next_step}"
        )

    def __reduce__(self) -> tuple[object, ...]:
        return (_rebuild, (type(self), self.subject, self.found, self.expected, self.next_step))


def _rebuild(
    cls: type[SspError], subject: str, found: str, expected: str, next_step: str
) -> SspError:
    return cls(subject, found=found, expected=expected, next_step=next_step)


class AccessError(SspError):
    """No credentials, expired credentials or a missing permission: correct access, then restart."""

    kind = "access"


class StreamNotFoundError(SspError):
    """The stream or topic was not found: correct its name (`streamName`, `subscribe`, `assign`), or
    the region or cluster."""

    kind = "stream-not-found"


class ServiceUnavailableError(SspError):
    """The service did not answer within the retry limits: wait or raise the limits, restart."""

    kind = "service-unavailable"


class DataLossError(SspError):
    """Records that were to be read are gone from the service: see `failOnDataLoss`."""

    kind = "data-loss"


class IncompatibleStateError(SspError):
    """A persisted offset cannot be used by this version or for these options."""

    kind = "incompatible-state"


class UnsupportedError(SspError):
    """A request that this source does not support; the text names an alternative."""

    kind = "unsupported"


class InvalidRequestError(SspError):
    """The service refused a request as malformed, or a record cannot be returned as requested;
    retrying cannot help."""

    kind = "invalid-request"


class InvalidRowsError(SspError):
    """Rows cannot be written: correct the query's columns or values, then restart."""

    kind = "invalid-rows"


@dataclass(frozen=True, slots=True, kw_only=True)
class OptionProblem:
    """One thing wrong with one option. All four are plain text and never hold a secret."""

    option: str
    """The name that the user wrote, in the table's spelling; a missing option's own name."""
    found: str
    expected: str
    next_step: str

    def __str__(self) -> str:
        return printable(
            f"{self.option}: found {self.found}; expected {self.expected}. "
            f"Next step: {self.next_step}"
        )


class InvalidOptionsError(SspError):
    """The options of a source cannot be used: correct each one listed, then restart."""

    kind = "invalid-options"

    def __init__(self, source: str, problems: Sequence[OptionProblem]) -> None:
        """`source` is the format's name; `problems` holds at least one, in the order to show."""
        self.source = source
        self.problems = tuple(problems)

        def joined(texts: Iterable[str]) -> str:
            named = zip(self.problems, texts, strict=True)
            if len(self.problems) == 1:  # the subject names its option
                return "".join(text for _, text in named)
            return "; ".join(f"{problem.option}: {text}" for problem, text in named)

        super().__init__(
            ", ".join(problem.option for problem in self.problems),
            found=joined(problem.found for problem in self.problems),
            expected=joined(problem.expected for problem in self.problems),
            next_step=joined(problem.next_step for problem in self.problems),
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
