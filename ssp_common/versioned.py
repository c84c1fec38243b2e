"""Documents that carry a version: an offset, an assignment, a plan. Pure.

A version that is unknown, or a document of another layout, is an error and never a guess.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

from ssp_common.errors import IncompatibleStateError

T = TypeVar("T")

Json = dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class VersionedDocument:
    """A kind of document, and how it is called in errors."""

    subject: str
    """What the user knows it as: `checkpoint of a kinesis-ssp query`."""
    article: str
    noun: str
    """With its article: `an` `offset`."""
    full_name: str
    """With its article: `a kinesis-ssp offset`."""
    version: int
    next_step: str

    def read(self, document: Any, parse: Callable[[Json], T]) -> T:
        """What `parse` makes of a document of this version.

        Raises IncompatibleStateError, also where `parse` meets another layout and raises KeyError,
        TypeError, ValueError or AttributeError.
        """
        checked = self.of_this_version(document)
        try:
            return parse(checked)
        except KeyError as error:
            raise self.other_layout(f"{self.article} {self.noun} without {error}") from error
        except (TypeError, ValueError, AttributeError) as error:
            raise self.other_layout(
                f"{self.article} {self.noun} that does not parse ({error})"
            ) from error

    def of_this_version(self, document: Any) -> Json:
        """The document itself. Raises IncompatibleStateError when it says another version."""
        if not isinstance(document, dict) or "v" not in document:
            raise self.incompatible("no version", f'{self.full_name} with "v": {self.version}')
        if type(document["v"]) is not int or document["v"] != self.version:
            raise self.incompatible(
                f"{self.noun} version {document['v']!r}", f"version {self.version}"
            )
        return document

    def other_layout(self, found: str) -> IncompatibleStateError:
        """The error for a document that says this version and is none."""
        return self.incompatible(found, f"the layout of version {self.version}")

    def incompatible(self, found: str, expected: str) -> IncompatibleStateError:
        """The error for a document that cannot be used."""
        return IncompatibleStateError(
            self.subject, found=found, expected=expected, next_step=self.next_step
        )


def whole_number(value: object, *, what: str = "whole number") -> int:
    """A count, a time or a place, 0 or more; JSON's true and 1.5 are neither. ValueError otherwise,
    which calls it `what`."""
    if type(value) is not int or value < 0:
        raise ValueError(f"{value!r} is no {what}")
    return value
