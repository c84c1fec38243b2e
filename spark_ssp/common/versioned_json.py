"""Documents that carry a version: an offset, an assignment, a plan; and a cache of offsets.

An unknown version, another layout or an unknown key is an error and never a guess: a key that a
later release added may change which records are read. `docs/design/stored-documents.md` has the
policy for versions and keys.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final, Generic, TypeVar

from spark_ssp.common.errors import IncompatibleStateError, shown

T = TypeVar("T")

Json = dict[str, Any]

_MOST_SHOWN: Final = 200
"""Characters of a stored value or error that a message quotes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Codec(Generic[T]):
    """The reader and the writer of one version of a document. `write` is the inverse of `parse`."""

    parse: Callable[[Json], T]
    write: Callable[[T], Json]


@dataclass(frozen=True, slots=True, kw_only=True)
class VersionedDocument:
    """Reads one kind of document; the names are for errors."""

    subject: str
    """The name in errors: `checkpoint of a kinesis-ssp query`."""
    article: str
    noun: str
    """Article and noun: `an` `offset`."""
    full_name: str
    """The noun in full, with its article: `a kinesis-ssp offset`."""
    next_step: str

    def read(self, document: Any, codecs: Mapping[int, Codec[T]]) -> T:
        """Return the value of a document that one of `codecs`, by version, can read.

        A document that its codec would not write has a key or a value that this release does not
        know, and that `parse` has dropped.

        Raises IncompatibleStateError, also where `parse` meets another layout and raises KeyError,
        TypeError, ValueError, AttributeError or RecursionError.
        """
        version = self._version(document, codecs)
        codec, noun = codecs[version], f"{self.article} {self.noun}"
        try:
            value = codec.parse(document)
        except KeyError as error:
            raise self._other_layout(f"{noun} without {error}", version) from None
        except (TypeError, ValueError, AttributeError, RecursionError) as error:
            raise self._other_layout(
                f"{noun} that does not parse ({_cut(str(error))})", version
            ) from None
        added = _addition(document, codec.write(value), ())
        if added is not None:
            raise self._other_layout(f"{noun} with {added}", version)
        return value

    def _version(self, document: Any, known: Mapping[int, object]) -> int:
        """Return the version of a document. Raises IncompatibleStateError for one that is not
        known."""
        versions = " or ".join(map(str, sorted(known)))
        if not isinstance(document, dict) or "v" not in document:
            raise self.incompatible("no version", f'{self.full_name} with "v": {versions}')
        version = document["v"]
        if type(version) is not int or version not in known:
            raise self.incompatible(
                f"{self.noun} version {_cut(repr(version))}", f"version {versions}"
            )
        return version

    def _other_layout(self, found: str, version: int) -> IncompatibleStateError:
        """Return the error for a document with the number of a version and another layout."""
        return self.incompatible(found, f"the layout of version {version}")

    def incompatible(self, found: str, expected: str) -> IncompatibleStateError:
        """Return the error for a document that cannot be used."""
        return IncompatibleStateError(
            self.subject, found=found, expected=expected, next_step=self.next_step
        )


def _addition(given: Any, written: Any, path: tuple[str, ...]) -> str | None:
    """Describe the first part of `given` that is not in `written`, or None if they are equal."""
    if given == written:
        return None
    place = f" in {' / '.join(map(_cut, path))}" if path else ""
    if isinstance(given, dict) and isinstance(written, dict):
        for key in sorted(given.keys() - written.keys()):
            return f"the unknown key {shown(key)}{place}"
        pairs = [(key, given[key], written.get(key)) for key in sorted(given)]
    elif isinstance(given, list) and isinstance(written, list) and len(given) == len(written):
        pairs = [(str(n), *pair) for n, pair in enumerate(zip(given, written, strict=True))]
    else:
        pairs = []
    for step, one, other in pairs:
        if (found := _addition(one, other, (*path, step))) is not None:
            return found
    return f"another value than this version writes{place}"


def _cut(text: str) -> str:
    return text if len(text) <= _MOST_SHOWN else f"{text[:_MOST_SHOWN]}…"


def whole_number(value: object, *, what: str = "whole number") -> int:
    """Return a whole number of 0 or more, which JSON's true and 1.5 are not. Raises ValueError
    otherwise, which calls it `what`."""
    if type(value) is not int or value < 0:
        raise ValueError(f"{value!r} is no {what}")
    return value


Written = TypeVar("Written")
Read = TypeVar("Read")


class OffsetCache(Generic[Written, Read]):
    """Encodes and decodes the offsets of one query, with a cache of the last two. Spark passes the
    offsets of a batch several times, and that of an idle query at every trigger. Comparing two
    documents is cheaper than decoding one."""

    def __init__(self, encode: Callable[[Written], Json], decode: Callable[[Any], Read]) -> None:
        self._encode = encode
        self._decode = decode
        self._recent: deque[tuple[Json, Written | Read]] = deque(maxlen=2)

    def encode(self, offset: Written) -> Json:
        """Encode an offset. The returned document must not be changed."""
        document = self._encode(offset)
        self._recent.append((document, offset))
        return document

    def decode(self, document: Any) -> Written | Read:
        """Decode an offset. The document must not be changed afterwards."""
        for known, offset in self._recent:
            if known == document:
                return offset
        decoded = self._decode(document)
        self._recent.append((document, decoded))
        return decoded
