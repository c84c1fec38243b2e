"""The errors of this project, grouped by what the reader of the message would do about them.

Every error crosses from a Spark worker to the driver by pickle, and from there into the text of a
`StreamingQueryException`. So each is built from plain strings alone, survives pickling, and its
text says what was found, what was expected and what to do next. Never put credentials or record
data into one.
"""

from __future__ import annotations

from typing import ClassVar


class SspError(Exception):
    """Base of all errors raised on purpose.

    `kind` is a stable, lower-case name for programs to match on; it also opens the text.
    """

    kind: ClassVar[str] = "error"

    def __init__(self, subject: str, *, found: str, expected: str, next_step: str) -> None:
        super().__init__(subject, found, expected, next_step)
        self.subject = subject
        self.found = found
        self.expected = expected
        self.next_step = next_step

    def __str__(self) -> str:
        return (
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
    """No credentials, expired credentials or a missing permission: mend access, then restart."""

    kind = "access"


class StreamNotFoundError(SspError):
    """The stream does not exist (or no longer): mend `streamName`, `region` or `endpointUrl`."""

    kind = "stream-not-found"


class ServiceUnavailableError(SspError):
    """The service did not answer within the retry limits: wait or raise the limits, restart."""

    kind = "service-unavailable"


class DataLossError(SspError):
    """Records that were to be read are gone from the service: decide, see `failOnDataLoss`."""

    kind = "data-loss"


class IncompatibleStateError(SspError):
    """A persisted offset cannot be used by this version or for these options."""

    kind = "incompatible-state"


class UnsupportedError(SspError):
    """Something that this source does not do, refused by name with what to use instead."""

    kind = "unsupported"


class InvalidRequestError(SspError):
    """The service refused a request as malformed; retrying cannot help."""

    kind = "invalid-request"
