"""Declares options as fields of the dataclasses that hold their values, and reads the given ones.

    @dataclass(frozen=True, slots=True, kw_only=True)
    class Limits:
        max_records: int | None = option(
            "maxRecords", integer(1), "The most records.", unset="no limit", sister="use limit"
        )

This declaration is the only one: `option` returns the default of the field, mypy compares the type
of the field with that of the converter, `options_of` lists the declarations for parsers and for the
reference, and `OptionReading.values` makes an instance from what the user gave.

Spark passes options as a map of text whose keys may have lost their case, so names match
regardless of case and every message shows the declared spelling. `read_options` collects all
problems instead of raising at the first; the source adds its own checks (options that contradict
each other) and raises one `InvalidOptionsError` over all.

A name that is not in the table is an error if it starts like a name of the source or is a slip of
one. The caller warns about any other: Spark passes all options of the reader, so such an option may
be meant for another source. The value of such an option is never shown.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import Field, dataclass, field, fields
from enum import StrEnum
from importlib import import_module
from typing import Any, Final, Generic, TypedDict, TypeVar, Unpack, overload

from spark_ssp.common.errors import InvalidOptionsError, OptionProblem

__all__ = [
    "Alias",
    "BadValueError",
    "Fault",
    "ForeignOption",
    "InvalidOptionsError",
    "Option",
    "OptionProblem",
    "OptionReading",
    "OptionTable",
    "QueryKind",
    "closest",
    "defaults_of",
    "is_secret",
    "option",
    "options_of",
    "read_options",
]

T = TypeVar("T")

SLIP_SIMILARITY: Final = 0.8
"""difflib's ratio from which a name counts as a slip of another: one letter in five may differ."""

KINESIS: Final = "the Kinesis source"
KAFKA: Final = "the Kafka source"

_TABLES: Final[Mapping[str, tuple[str, str]]] = {
    KINESIS: ("spark_ssp.kinesis_source.options.values", "KINESIS_OPTIONS"),
    KAFKA: ("spark_ssp.kafka_source.options.values", "KAFKA_OPTIONS"),
}
"""The module and the name of each source's table. A source does not import the other one: its
table is looked up when a query has a name that is not in its own, since a user who moves a query
from one format to the other would else lose an option, such as a limit, without an error."""

_DECLARATION: Final = "option"
_HIDDEN: Final = "***"


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

    def problems(self, name: str, *, secret: bool = False) -> tuple[OptionProblem, ...]:
        """Return the faults as problems of an option."""
        return tuple(
            OptionProblem(
                option=name,
                found=_HIDDEN if secret else fault.found,
                expected=fault.expected,
                next_step=fault.next_step,
            )
            for fault in self.faults
        )


def bad_value(found: str, expected: str, next_step: str) -> BadValueError:
    """Return the error of one fault."""
    return BadValueError(Fault(found=found, expected=expected, next_step=next_step))


# --- Declarations --------------------------------------------------------------------------------


class QueryKind(StrEnum):
    """The kind of query: `readStream` or `read`."""

    STREAM = "stream"
    BATCH = "batch"


@dataclass(frozen=True, slots=True, kw_only=True)
class Alias:
    """Another product's name of an option; `convert` if its values have another form."""

    name: str
    origin: str
    """The product, for the documentation."""
    convert: Callable[[str], Any] | None = None


class _More(TypedDict, total=False):
    sister: str
    aliases: tuple[Alias, ...]
    secret: bool
    verbatim: bool
    only: QueryKind
    bounds_batch: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Option(Generic[T]):
    """The declaration of one option."""

    name: str
    convert: Callable[[str], T]
    """Takes the stripped, non-empty text; raises BadValueError."""
    doc: str
    default: T
    default_text: str
    """The default as the documentation shows it: a value in backquotes, or words."""
    sister: str = ""
    """The advice of the other source, which refuses the option: a sentence without its full stop.
    Empty if the other source has the option too."""
    aliases: tuple[Alias, ...] = ()
    secret: bool = False
    """Never quoted: its `found` is replaced by `***`."""
    verbatim: bool = False
    """Converted with the white space around it."""
    only: QueryKind | None = None
    """The kind of query that has the option."""
    bounds_batch: bool = False
    """With the option, a batch may leave records unread."""


@overload
def option(
    name: str,
    convert: Callable[[str], T],
    doc: str,
    *,
    default: str,
    default_text: str = "",
    **more: Unpack[_More],
) -> T: ...
@overload
def option(
    name: str,
    convert: Callable[[str], T],
    doc: str,
    *,
    unset: str,
    empty: T,
    **more: Unpack[_More],
) -> T: ...
@overload
def option(
    name: str, convert: Callable[[str], T], doc: str, *, unset: str, **more: Unpack[_More]
) -> T | None: ...
def option(
    name: str,
    convert: Callable[[str], Any],
    doc: str,
    *,
    default: str | None = None,
    default_text: str = "",
    unset: str = "",
    empty: Any = None,
    **more: Unpack[_More],
) -> Any:
    """Declare an option as a field of a dataclass. `default` is the default as a user would write
    it; `default_text` replaces it in the documentation. An option without one has the value
    `empty`, which `unset` describes."""
    value = empty if default is None else convert(default)
    declared = Option(
        name=name,
        convert=convert,
        doc=doc,
        default=value,
        default_text=default_text or unset or f"`{default}`",
        **more,
    )
    metadata = {_DECLARATION: declared}
    if type(value).__hash__ is None:
        return field(default_factory=lambda: value, metadata=metadata)
    return field(default=value, metadata=metadata)


def _declarations(cls: type[Any]) -> Iterator[tuple[str, Option[Any]]]:
    for entry in fields(cls):
        if _DECLARATION in entry.metadata:
            yield entry.name, entry.metadata[_DECLARATION]


def is_secret(entry: Field[Any]) -> bool:
    """Return whether a field is an option whose value is never shown."""
    return _DECLARATION in entry.metadata and entry.metadata[_DECLARATION].secret


def options_of(*classes: type[Any]) -> tuple[Option[Any], ...]:
    """Return the options that these dataclasses declare."""
    return tuple(declared for cls in classes for _, declared in _declarations(cls))


def defaults_of(cls: type[Any], query: QueryKind) -> dict[str, Any]:
    """Return the defaults of the options that only this kind of query has, by field."""
    return {
        name: declared.default for name, declared in _declarations(cls) if declared.only is query
    }


@dataclass(frozen=True, slots=True, kw_only=True)
class ForeignOption:
    """A name of another product that has no counterpart here. `refused` if it would change the
    records or the identity of the reader: ignoring it would be silently wrong. The others only
    tune, and are named in a warning."""

    name: str
    origin: str
    refused: bool
    advice: str
    """The reason why it has no effect, or the alternative: a sentence without its full stop."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OptionTable:
    """The options of a source or sink. `prefixes` are lower case."""

    options: tuple[Option[Any], ...]
    foreign: tuple[ForeignOption, ...] = ()
    sister: str = ""
    """The other source, KINESIS or KAFKA, whose options are refused."""
    prefixes: tuple[str, ...] = ()

    def all_foreign(self) -> tuple[ForeignOption, ...]:
        """Return the names without counterpart here, with those of the other source."""
        if not self.sister:
            return self.foreign
        module, name = _TABLES[self.sister]
        other: OptionTable = getattr(import_module(module), name)
        known = {option.name for option in self.options}
        return (
            *self.foreign,
            *(
                ForeignOption(
                    name=option.name,
                    origin=self.sister,
                    refused=True,
                    advice=option.sister or f"it has a meaning only for {self.sister}",
                )
                for option in other.options
                if option.name not in known
            ),
        )

    def spellings(self, *names: str) -> frozenset[str]:
        """Return all names of the options of these names, in lower case."""
        return frozenset(
            spelling.lower()
            for option in self.options
            if option.name in names
            for spelling, _ in _names(option)
        )

    def left_out(self, raw: Mapping[str, str], *names: str) -> dict[str, str]:
        """Return `raw` without these options, under any of their names."""
        spellings = self.spellings(*names)
        return {name: raw[name] for name in raw if name.strip().lower() not in spellings}


@dataclass(frozen=True, slots=True, kw_only=True)
class OptionReading:
    """The result of parsing the given options."""

    table: OptionTable
    problems: tuple[OptionProblem, ...]
    without_effect: tuple[ForeignOption, ...]
    """Known elsewhere, tuning only: to be named in a warning."""
    unknown: tuple[str, ...]
    """Neither known nor resembling anything known, sorted: to be named in a warning."""
    valid: Mapping[str, object]
    """The values of those given and valid, by the option's own name."""
    names: Mapping[str, str | None]
    """The name that the user wrote, by the option's own: of those given, valid or not. None for
    the others."""

    def fields(self, cls: type[Any]) -> dict[str, Any]:
        """Return the given and valid values of the options that a dataclass declares, by field."""
        return {
            name: self.valid[declared.name]
            for name, declared in _declarations(cls)
            if declared.name in self.valid
        }

    def values(self, cls: type[T]) -> T:
        """Return an instance of a dataclass all of whose required fields are options."""
        return cls(**self.fields(cls))

    def given(self, name: str) -> bool:
        """Return whether the option was given, under any of its names, valid or not."""
        return self.names[name] is not None

    def name(self, name: str) -> str:
        """Return the name that the user wrote for an option, or its own."""
        return self.names[name] or name

    def given_names(self, *names: str) -> list[str]:
        """Return those of the options that were given, as the user wrote them."""
        return [self.name(name) for name in names if self.given(name)]

    def only_given(self, query: QueryKind) -> list[str]:
        """Return the names of the given options that only this kind of query has."""
        return self.given_names(*(one.name for one in self.table.options if one.only is query))


# --- Reading -------------------------------------------------------------------------------------


def read_options(table: OptionTable, raw: Mapping[str, str]) -> OptionReading:
    """Match `raw` against the table. Raises nothing; problems come in the table's order."""
    given, problems = _fold_case(raw, table)
    valid: dict[str, object] = {}
    names: dict[str, str | None] = {}
    for declared in table.options:
        entries = [(n, c, given.pop(n.lower())) for n, c in _names(declared) if n.lower() in given]
        names[declared.name] = entries[0][0] if entries else None
        if not entries:
            continue
        name, convert, text = entries[0]
        if len(entries) > 1:
            problems.append(_twins(declared, [entry[0] for entry in entries]))
        elif not text.strip():
            problems.append(_empty(name))
        else:
            try:
                valid[declared.name] = convert(text if declared.verbatim else text.strip())
            except BadValueError as error:
                problems.extend(error.problems(name, secret=declared.secret))
    foreign = table.foreign
    if given.keys() - {option.name.lower() for option in foreign}:
        foreign = table.all_foreign()
    met = [option for option in foreign if given.pop(option.name.lower(), None) is not None]
    problems.extend(_refusal(option) for option in met if option.refused)
    unknown = []
    for name in sorted(given):
        problem = _unknown_problem(table, name)
        if problem is None:
            unknown.append(name)
        else:
            problems.append(problem)
    return OptionReading(
        table=table,
        problems=tuple(problems),
        without_effect=tuple(option for option in met if not option.refused),
        unknown=tuple(unknown),
        valid=valid,
        names=names,
    )


def _names(declared: Option[Any]) -> Iterator[tuple[str, Callable[[str], Any]]]:
    yield declared.name, declared.convert
    for alias in declared.aliases:
        yield alias.name, alias.convert or declared.convert


def _fold_case(
    raw: Mapping[str, str], table: OptionTable
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
    spelled = _spellings(table) if twice else {}
    return folded, [
        OptionProblem(
            option=spelled.get(key, key) or "(a blank name)",
            found="the same name twice, in different case",
            expected="each option once: the case of a name does not matter",
            next_step="remove all but one of the spellings",
        )
        for key in sorted(twice)
    ]


def _spellings(table: OptionTable) -> dict[str, str]:
    """Every known name by its lower-case form, in the table's order."""
    known = [name for declared in table.options for name, _ in _names(declared)]
    known.extend(option.name for option in table.all_foreign())
    return {name.lower(): name for name in known}


def _empty(name: str) -> OptionProblem:
    return OptionProblem(
        option=name,
        found="an empty value",
        expected="a value",
        next_step="give a value, or leave the option out",
    )


def _twins(declared: Option[Any], names: Sequence[str]) -> OptionProblem:
    return OptionProblem(
        option=declared.name,
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
    refused = {option.name.lower(): option for option in table.all_foreign() if option.refused}
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
        own = [one.name for one in table.options if one.name.lower().startswith(prefix)]
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
    Separators do not count: `stream_name` is a slip of `streamName`."""
    # Executors import the declarations, and never this.
    from difflib import get_close_matches

    plain: dict[str, str] = {}
    for key, spelling in spellings.items():
        plain.setdefault(_letters(key), spelling)
    matches = get_close_matches(_letters(name), list(plain), n=1, cutoff=SLIP_SIMILARITY)
    return plain[matches[0]] if matches else None


def _letters(name: str) -> str:
    return "".join(character for character in name.lower() if character.isalnum())
