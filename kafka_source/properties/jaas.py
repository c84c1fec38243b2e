"""The grammar of Kafka's `sasl.jaas.config`: one login module with its options.

It is that of Kafka's own parser, which is Java's `StreamTokenizer`: a word begins with a letter and
consists of letters, digits and `.-_$`; values in single or double quotes have backslash escapes; a
number without quotes is not a value; and a `/` outside of quotes begins a comment. The text
contains passwords, so messages quote only the class's name.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Final

from spark_ssp.common.options.spec import BadValueError, Fault

_CLASS: Final = re.compile(r"[A-Za-z_$][\w$]*(\.[A-Za-z_$][\w$]*)*", re.ASCII)
_FLAGS: Final = frozenset({"REQUIRED", "REQUISITE", "SUFFICIENT", "OPTIONAL"})
_END: Final = ""
_LINE_ENDS: Final = frozenset({"\n", "\r", _END})
_ESCAPES: Final = {"a": "\a", "b": "\b", "f": "\f", "n": "\n", "r": "\r", "t": "\t", "v": "\v"}
_OCTAL: Final = frozenset("01234567")
_DIGITS: Final = frozenset("0123456789")
_NUMBER_CHARACTERS: Final = _DIGITS | {".", "-"}
_EXPECTED: Final = (
    "one login module, such as org.apache.kafka.common.security.plain.PlainLoginModule required "
    'username="…" password="…";'
)


@dataclass(frozen=True, slots=True, kw_only=True)
class LoginModule:
    """A Java class and its options, which contain secrets."""

    name: str
    options: dict[str, str] = field(repr=False)


@dataclass(frozen=True, slots=True)
class _Token:
    """A word or a quoted value (`text`), or a single character that is neither (`sign`)."""

    text: str | None = None
    sign: str | None = None


def parse_jaas(text: str) -> LoginModule:
    """Parse the login module in `text`. Raises BadValueError."""
    tokens = list(_tokens(text))
    if not tokens or tokens[-1].sign != ";":
        raise _malformed("a text that does not end with ;")
    name = tokens[0].text
    if name is None or not _CLASS.fullmatch(name) or len(tokens) < 3:
        raise _malformed("a text that does not begin with a class and required")
    if (tokens[1].text or "").upper() not in _FLAGS:
        raise _malformed("a text that does not begin with a class and required")
    options: dict[str, str] = {}
    place = 2
    while tokens[place].sign != ";":
        entry = tokens[place : place + 3]
        if len(entry) < 3 or entry[0].text is None or entry[1].sign != "=":
            raise _malformed(f"the login module {name} with something other than key=value")
        if entry[2].text is None:
            raise _malformed(f"the login module {name} with a key without a value")
        # As in Kafka, the last one counts.
        options[entry[0].text] = entry[2].text
        place += 3
    if place != len(tokens) - 1:
        raise _malformed("more than one login module")
    return LoginModule(name=name, options=options)


def _tokens(text: str) -> Iterator[_Token]:
    source = _Characters(text)
    while (character := source.next()) != _END:
        if character <= " ":
            continue
        if character in "\"'":
            yield _Token(text=source.quoted(character))
        elif character == "/":
            source.skip_comment()
        elif character in _NUMBER_CHARACTERS:
            source.skip_number(character)
            yield _Token(sign=character)
        elif _is_letter(character):
            yield _Token(text=character + source.word())
        else:
            yield _Token(sign=character)


def _is_letter(character: str) -> bool:
    return character >= "\xa0" or (character.isascii() and character.isalpha()) or character in "_$"


class _Characters:
    """The characters of a text, one after another, then `_END`."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._place = 0

    def next(self) -> str:
        """Take the next character."""
        self._place += 1
        return self._text[self._place - 1 : self._place]

    def _peek(self) -> str:
        return self._text[self._place : self._place + 1]

    def word(self) -> str:
        """Take the rest of a word."""
        begin = self._place
        while (peeked := self._peek()) != _END and (
            _is_letter(peeked) or peeked in _NUMBER_CHARACTERS
        ):
            self._place += 1
        return self._text[begin : self._place]

    def skip_number(self, first: str) -> None:
        """Skip the rest of a number, which may be a sign without digits."""
        point = first == "."
        while (peeked := self._peek()) in _DIGITS or (peeked == "." and not point):
            point = point or peeked == "."
            self._place += 1

    def quoted(self, mark: str) -> str:
        """Take a value up to its closing mark, or to the end of the line."""
        characters: list[str] = []
        while self._peek() not in _LINE_ENDS:
            character = self.next()
            if character == mark:
                break
            characters.append(self._escaped() if character == "\\" else character)
        return "".join(characters)

    def _escaped(self) -> str:
        first = self.next()
        if first not in _OCTAL:
            return _ESCAPES.get(first, first)
        digits = first
        # Up to \377.
        while len(digits) < (3 if first <= "3" else 2) and self._peek() in _OCTAL:
            digits += self.next()
        return chr(int(digits, 8))

    def skip_comment(self) -> None:
        """Skip a comment whose first `/` was taken."""
        if self._peek() == "*":
            closing = self._text.find("*/", self._place + 1)
            self._place = len(self._text) if closing < 0 else closing + 2
            return
        # The character after the first / belongs to it, even if it ends the line.
        self._place += 1
        while self._peek() not in _LINE_ENDS:
            self._place += 1


def _malformed(found: str) -> BadValueError:
    return BadValueError(
        Fault(
            found=found,
            expected=_EXPECTED,
            next_step="use this form, with values in quotation marks, or set "
            "kafka.sasl.username and kafka.sasl.password instead",
        )
    )
