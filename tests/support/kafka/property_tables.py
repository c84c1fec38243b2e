"""The treatment of the properties `kafka.*`, as tables of the reference."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Final

from spark_ssp.kafka_source.properties.consumer_properties import (
    COMBINED,
    CONSUMER,
    SECRETS,
    PropertyNames,
)
from spark_ssp.kafka_source.properties.producer_properties import PRODUCER

_CLIENTS: Final[Sequence[PropertyNames]] = (CONSUMER, PRODUCER)
_CLIENT_TEXT: Final[Mapping[tuple[bool, ...], str]] = {
    (True, True): "source and sink",
    (True, False): "source",
    (False, True): "sink",
}


def property_tables() -> Mapping[str, str]:
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


def documented_properties(tables: Mapping[str, str]) -> frozenset[str]:
    """Return all names of properties in the tables."""
    text = "\n".join(tables.values())
    return frozenset(part for part in text.split("`")[1::2]) | COMBINED


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


def _table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines) + "\n"
