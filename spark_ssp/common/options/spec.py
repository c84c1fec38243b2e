"""Declares options as a table of specifications, and parses the given options by it.

Spark passes options as a map of text whose keys may have lost their case, so names match
regardless of case and every message shows the spelling of the table. `read_options` collects all
problems instead of raising at the first; the source adds its own checks (options that contradict
each other) and raises one `InvalidOptionsError` over all.

A name that is not in the table is an error if it starts like a name of the source or is a slip of
one. The caller warns about any other: Spark passes all options of the reader, so such an option may
be meant for another source. The value of such an option is never shown.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Any, Final, Generic, TypeVar, cast

from spark_ssp.common.errors import InvalidOptionsError, OptionProblem

__all__ = [
    "Alias",
    "BadValueError",
    "Fault",
    "ForeignOption",
    "InvalidOptionsError",
    "OptionProblem",
    "OptionReading",
    "OptionSpec",
    "OptionTable",
    "aliases_table",
    "closest",
    "foreign_table",
    "left_out",
    "options_table",
    "read_options",
    "shown",
    "spellings",
]

T = TypeVar("T")

SLIP_SIMILARITY: Final = 0.8
"""difflib's ratio from which a name counts as a slip of another: one letter in five may differ."""

_HIDDEN: Final = "***"
_SHOWN_LENGTH: Final = 80


# --- Problems ------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """A problem with a value, as a converter found it, without the name of the option."""

    found: str
    expected: str
    next_step: str


class BadValueError(ValueError):
    """Raised by a converter: the value is invalid, for each of `faults`."""

    def __init__(self, *faults: Fault) -> None:
        super().__init__(*faults)
        self.faults = faults


def shown(value: str) -> str:
    """Return a value as messages quote it: on one line, and cut if long."""
    if len(value) > _SHOWN_LENGTH:
        value = f"{value[:_SHOWN_LENGTH]}…"
    return repr(value)


# --- The table -----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Alias(Generic[T]):
    """Another product's name of an option; `convert` if its values have another form."""

    name: str
    origin: str
    """The product, for the documentation."""
    convert: Callable[[str], T] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class OptionSpec(Generic[T]):
    """One option. `convert` takes the stripped, non-empty text and raises BadValueError.

    A `secret` one is never quoted: its `found` is replaced by `***`. A `verbatim` one is converted
    with the white space around it.
    """

    name: str
    convert: Callable[[str], T]
    default: T
    default_text: str
    """The default as the documentation shows it: a value in backquotes, or words."""
    doc: str
    aliases: tuple[Alias[T], ...] = ()
    secret: bool = False
    verbatim: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class ForeignOption:
    """A name of another product that has no counterpart here.

    `refused` if it would change the records or the identity of the reader: ignoring it would be
    silently wrong. The others only tune, and are named in a warning.
    """

    name: str
    origin: str
    refused: bool
    advice: str
    """The reason why it has no effect, or the alternative: a sentence without its full stop."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OptionTable:
    """The options of a source. `prefixes` are lower case."""

    specs: tuple[OptionSpec[Any], ...]
    foreign: tuple[ForeignOption, ...] = ()
    prefixes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class OptionReading:
    """The result of parsing the given options."""

    problems: tuple[OptionProblem, ...]
    without_effect: tuple[ForeignOption, ...]
    """Known elsewhere, tuning only: to be named in a warning."""
    unknown: tuple[str, ...]
    """Neither known nor resembling anything known, sorted: to be named in a warning."""
    values: Mapping[str, object]
    """By the option's own name: those given and valid."""
    names: Mapping[str, str]
    """By the option's own name, the name that the user wrote: those given, valid or not."""

    def value(self, spec: OptionSpec[T]) -> T:
        """Return the given value; the default if none was given or it was invalid."""
        return cast(T, self.values.get(spec.name, spec.default))

    def given(self, spec: OptionSpec[Any]) -> bool:
        """Return whether the option was given, under any of its names, valid or not."""
        return spec.name in self.names

    def name(self, spec: OptionSpec[Any]) -> str:
        """Return the name that the user wrote, or the option's own."""
        return self.names.get(spec.name, spec.name)


# --- Reading -------------------------------------------------------------------------------------


def read_options(table: OptionTable, raw: Mapping[str, str]) -> OptionReading:
    """Match `raw` against the table. Raises nothing; problems come in the table's order."""
    given, problems = _fold_case(raw, _spellings(table))
    values: dict[str, object] = {}
    names: dict[str, str] = {}
    for spec in table.specs:
        entries = [(n, c, given.pop(n.lower())) for n, c in _names(spec) if n.lower() in given]
        if not entries:
            continue
        name, convert, text = entries[0]
        names[spec.name] = name
        if len(entries) > 1:
            problems.append(_twins(spec, [entry[0] for entry in entries]))
            continue
        if not text.strip():
            problems.append(_empty(name))
            continue
        try:
            values[spec.name] = convert(text if spec.verbatim else text.strip())
        except BadValueError as error:
            problems.extend(_problem(name, fault, secret=spec.secret) for fault in error.faults)
    foreign = [option for option in table.foreign if option.name.lower() in given]
    for option in foreign:
        del given[option.name.lower()]
    problems.extend(_refusal(option) for option in foreign if option.refused)
    unknown = []
    for name in sorted(given):
        problem = _unknown_problem(table, name)
        if problem is None:
            unknown.append(name)
        else:
            problems.append(problem)
    return OptionReading(
        problems=tuple(problems),
        without_effect=tuple(option for option in foreign if not option.refused),
        unknown=tuple(unknown),
        values=values,
        names=names,
    )


def _names(spec: OptionSpec[T]) -> Iterator[tuple[str, Callable[[str], T]]]:
    yield spec.name, spec.convert
    for alias in spec.aliases:
        yield alias.name, alias.convert or spec.convert


def _spellings(table: OptionTable) -> dict[str, str]:
    """Every known name by its lower-case form, in the table's order."""
    known = [name for spec in table.specs for name, _ in _names(spec)]
    known.extend(option.name for option in table.foreign)
    return {name.lower(): name for name in known}


def _fold_case(
    raw: Mapping[str, str], spellings: Mapping[str, str]
) -> tuple[dict[str, str], list[OptionProblem]]:
    """Return the values by lower-case name, and a problem for each name given in two cases."""
    folded: dict[str, str] = {}
    twice: set[str] = set()
    for name in sorted(raw):
        key = name.strip().lower()
        if key in folded:
            twice.add(key)
        # A null set on the reader arrives as None, despite the annotation.
        folded[key] = raw[name] or ""
    return folded, [
        OptionProblem(
            option=spellings.get(key, key) or "(a blank name)",
            found="the same name twice, in different case",
            expected="each option once: the case of a name does not matter",
            next_step="remove all but one of the spellings",
        )
        for key in sorted(twice)
    ]


def _empty(name: str) -> OptionProblem:
    return OptionProblem(
        option=name,
        found="an empty value",
        expected="a value",
        next_step="give a value, or leave the option out",
    )


def _problem(name: str, fault: Fault, *, secret: bool) -> OptionProblem:
    return OptionProblem(
        option=name,
        found=_HIDDEN if secret else fault.found,
        expected=fault.expected,
        next_step=fault.next_step,
    )


def _twins(spec: OptionSpec[Any], names: Sequence[str]) -> OptionProblem:
    return OptionProblem(
        option=spec.name,
        found=f"{' and '.join(names)} together, which are names of one option",
        expected="one of them",
        next_step=f"keep {names[0]} and remove {' and '.join(names[1:])}",
    )


def _refusal(option: ForeignOption) -> OptionProblem:
    return OptionProblem(
        option=option.name,
        found=f"an option of {option.origin} that this source cannot obey",
        expected="only options of this source, or of others where they mean the same",
        next_step=f"remove it: {option.advice}",
    )


def _unknown_problem(table: OptionTable, name: str) -> OptionProblem | None:
    refused = {option.name.lower(): option for option in table.foreign if option.refused}
    suggestion = closest(
        name, {key: text for key, text in _spellings(table).items() if key not in refused}
    )
    other = closest(name, {key: key for key in refused})
    prefix = next((prefix for prefix in table.prefixes if name.startswith(prefix)), None)
    if suggestion is not None:
        next_step = f"did you mean {suggestion}?"
    elif other is not None:
        next_step = f"remove it: it resembles {refused[other].name}; {refused[other].advice}"
    elif prefix is not None:
        own = [spec.name for spec in table.specs if spec.name.lower().startswith(prefix)]
        hint = f" ({', '.join(own)})" if own else ""
        next_step = f"remove it, or use an option of this source{hint}"
    else:
        return None
    return OptionProblem(
        option=name,
        found="an unknown option",
        expected="the name of an option of this source",
        next_step=next_step,
    )


def closest(name: str, spellings: Mapping[str, str]) -> str | None:
    """Return the entry of `spellings` (comparable form to text) that `name` resembles, if any.

    Separators do not count: `stream_name` is a slip of `streamName`.
    """
    plain: dict[str, str] = {}
    for key, spelling in spellings.items():
        plain.setdefault(_letters(key), spelling)
    matches = get_close_matches(_letters(name), list(plain), n=1, cutoff=SLIP_SIMILARITY)
    return plain[matches[0]] if matches else None


def _letters(name: str) -> str:
    return "".join(character for character in name.lower() if character.isalnum())


def spellings(*specs: OptionSpec[Any]) -> frozenset[str]:
    """Return all names of these options, in lower case."""
    return frozenset(name.lower() for spec in specs for name, _ in _names(spec))


def left_out(raw: Mapping[str, str], *specs: OptionSpec[Any]) -> dict[str, str]:
    """Return `raw` without these options, under any of their names."""
    names = spellings(*specs)
    return {name: raw[name] for name in raw if name.strip().lower() not in names}


# --- Documentation -------------------------------------------------------------------------------


def options_table(specs: Iterable[OptionSpec[Any]]) -> str:
    """Return the options as a Markdown table: name, default, meaning."""
    rows = [(f"`{spec.name}`", spec.default_text, spec.doc) for spec in specs]
    return _markdown(("option", "default", "meaning"), rows)


def aliases_table(specs: Iterable[OptionSpec[Any]]) -> str:
    """Return the aliases as a Markdown table: name, product, option."""
    rows = [
        (f"`{alias.name}`", alias.origin, f"`{spec.name}`")
        for spec in specs
        for alias in spec.aliases
    ]
    return _markdown(("name", "of", "here"), rows)


def foreign_table(options: Iterable[ForeignOption], *, refused: bool) -> str:
    """Return the names without counterpart as a Markdown table: name, product, advice."""
    rows = [
        (f"`{option.name}`", option.origin, option.advice)
        for option in options
        if option.refused is refused
    ]
    return _markdown(("name", "of", "instead" if refused else "why it has no effect"), rows)


def _markdown(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join(f"| {' | '.join(cell for cell in line)} |" for line in lines) + "\n"
