"""The tables of the option references, from the declarations of the options. A table stands between
`<!-- begin NAME -->` and `<!-- end NAME -->` in a guide. `python -m website tables` writes them; a
test compares them."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from spark_ssp.common.options.spec import ForeignOption, Option, OptionTable
from spark_ssp.kafka_source.options.property_names import (
    CONSUMER,
    PRODUCER,
    SECRETS,
    PropertyNames,
)
from spark_ssp.kafka_source.options.values import KAFKA_OPTIONS
from spark_ssp.kafka_source.sink.parse import SINK_OPTIONS as KAFKA_SINK_OPTIONS
from spark_ssp.kinesis_source.options.values import KINESIS_OPTIONS
from spark_ssp.kinesis_source.sink.options import SINK_OPTIONS as KINESIS_SINK_OPTIONS

GUIDES: Final = Path(__file__).parents[1] / "docs" / "guide"


def reference_tables() -> Mapping[str, Mapping[str, str]]:
    """Return the tables by the guide's file and by the names of their markers."""
    sink = [one for one in KINESIS_SINK_OPTIONS.options if one not in KINESIS_OPTIONS.options]
    return {
        "kinesis-options.md": {
            **_of_source(KINESIS_OPTIONS),
            "sink-options": _options(sink),
            "sink-aliases": _aliases(sink),
        },
        "kafka-options.md": {
            **_of_source(KAFKA_OPTIONS),
            "sink-options": _options(KAFKA_SINK_OPTIONS.options),
            **_property_tables(),
        },
    }


def with_tables(text: str, tables: Mapping[str, str]) -> str:
    """Return the text of a guide with these tables between their markers."""

    def replaced(match: re.Match[str]) -> str:
        name = match[1]
        return f"<!-- begin {name} -->\n\n{tables[name]}\n<!-- end {name} -->"

    return re.sub(r"<!-- begin (\S+) -->\n.*?<!-- end \1 -->", replaced, text, flags=re.DOTALL)


def write_tables() -> None:
    """Write the tables into the guides."""
    for name, tables in reference_tables().items():
        guide = GUIDES / name
        text = guide.read_text(encoding="utf-8")
        guide.write_text(with_tables(text, tables), encoding="utf-8")


# --- Options -------------------------------------------------------------------------------------


def _of_source(table: OptionTable) -> Mapping[str, str]:
    foreign = table.all_foreign()
    return {
        "options": _options(table.options),
        "aliases": _aliases(table.options),
        "refused": _foreign(foreign, refused=True),
        "without-effect": _foreign(foreign, refused=False),
    }


def _options(options: Iterable[Option[Any]]) -> str:
    rows = [(f"`{one.name}`", one.default_text, one.doc) for one in options]
    return _table(("option", "default", "meaning"), rows)


def _aliases(options: Iterable[Option[Any]]) -> str:
    rows = [
        (f"`{alias.name}`", alias.origin, f"`{one.name}`")
        for one in options
        for alias in one.aliases
    ]
    return _table(("name", "of", "here"), rows)


def _foreign(options: Iterable[ForeignOption], *, refused: bool) -> str:
    rows = [(f"`{one.name}`", one.origin, one.advice) for one in options if one.refused is refused]
    return _table(("name", "of", "instead" if refused else "why it has no effect"), rows)


def _table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines) + "\n"


# --- Properties of the Kafka client --------------------------------------------------------------

_CLIENTS: Final[Sequence[PropertyNames]] = (CONSUMER, PRODUCER)
_CLIENT_TEXT: Final[Mapping[tuple[bool, ...], str]] = {
    (True, True): "source and sink",
    (True, False): "source",
    (False, True): "sink",
}


def _property_tables() -> Mapping[str, str]:
    """Return the tables by the names of their markers in the reference."""
    return {
        "properties-passed": _passed(),
        "properties-translated": _translated(),
        "properties-defaults": _defaults(),
        "properties-refused": _advised("instead", [names.refused for names in _CLIENTS]),
        "properties-without-effect": _advised(
            "reason", [names.without_effect for names in _CLIENTS]
        ),
        "properties-ranges": _ranges(),
        "properties-secret": _listed(SECRETS) + "\n",
    }


def _clients(given: Iterable[bool]) -> str:
    return _CLIENT_TEXT[tuple(given)]


def _listed(names: Iterable[str]) -> str:
    return ", ".join(f"`{name}`" for name in sorted(names))


def _passed() -> str:
    of: dict[str, list[str]] = defaultdict(list)
    for name in sorted(frozenset().union(*(names.supported for names in _CLIENTS))):
        of[_clients(name in names.supported for names in _CLIENTS)].append(name)
    return _table(
        ("of", "properties"), [(whose, _listed(of[whose])) for whose in _CLIENT_TEXT.values()]
    )


def _translated() -> str:
    pairs = sorted({pair for names in _CLIENTS for pair in names.aliases.items()})
    rows = [
        (f"`{name}`", f"`{twin}`", _clients(names.aliases.get(name) == twin for names in _CLIENTS))
        for name, twin in pairs
    ]
    return _table(("property", "passed on as", "of"), rows)


def _defaults() -> str:
    rows = [
        (
            f"`{name}`",
            f"`{value}`",
            _clients(names.defaults.get(name) == value for names in _CLIENTS),
        )
        for name, value in sorted({pair for names in _CLIENTS for pair in names.defaults.items()})
    ]
    return _table(("property", "default here", "of"), rows)


def _ranges() -> str:
    rows = [
        (
            f"`{name}`",
            f"{least} to {most}",
            _clients(names.ranges.get(name) == (least, most) for names in _CLIENTS),
        )
        for name, (least, most) in sorted(
            {pair for names in _CLIENTS for pair in names.ranges.items()}
        )
    ]
    return _table(("property", "librdkafka's range", "of"), rows)


def _advised(head: str, advice: Sequence[Mapping[str, str]]) -> str:
    """Return a row for each text and kind of client, in the order of the first name."""
    groups: dict[tuple[str, str], list[str]] = defaultdict(list)
    for name, text in sorted({pair for of_client in advice for pair in of_client.items()}):
        whose = _clients(of_client.get(name) == text for of_client in advice)
        groups[text, whose].append(name)
    return _table(
        ("properties", "of", head),
        [(_listed(names), whose, text) for (text, whose), names in groups.items()],
    )
