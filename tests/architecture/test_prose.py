"""Docstrings, comments, messages and documents stay free of the habits that `prose.py` lists, and
identifiers of words that the field does not use."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

from tests.architecture.modules import Module, distributed_modules
from tests.architecture.prose import HABITS, LIMIT, Habit, Kind, Text, broken, find, judged_files

FINDINGS: Final = find(judged_files())

RETIRED: Final = frozenset(
    ["asker", "coworking", "frontier", "looking", "sightings", "standing", "tip", "told"]
)
"""Former names; use probe, latest record, lease agent, observed, reported and the like."""


@pytest.mark.parametrize("kind", Kind)
@pytest.mark.parametrize("habit", HABITS, ids=lambda habit: habit.name)
def test_habits_are_rare(habit: Habit, kind: Kind) -> None:
    hits = "\n".join(str(hit) for hit in FINDINGS.habits[kind] if hit.habit == habit.name)
    assert FINDINGS.rate(kind, habit) <= LIMIT, hits


def test_docstrings_and_errors_keep_the_rules() -> None:
    assert [str(hit) for hit in FINDINGS.rules] == []


@pytest.mark.parametrize(
    ("text", "rule"),
    [
        ("Whether it ends.", "opening of a function's docstring"),
        ("See `open_store`.", "only refers"),
        ("Return the end. Pure.", "ends with Pure."),
    ],
)
def test_a_broken_rule_would_be_found(text: str, rule: str) -> None:
    docstring = Text(Path("a.py"), 1, Kind.CODE, text, docstring_of="function")
    assert list(broken(docstring)) == [rule]


def test_a_habit_would_be_found() -> None:
    text = "None of it says what is missing. Decide what to read; there is no end."
    assert [habit.name for habit in HABITS for _ in habit.hits(text)] == [
        "headless what",
        "say",
        "is no, none of",
    ]


def test_no_identifier_has_a_retired_word() -> None:
    wrong = {
        f"{module.name}: {name}"
        for module in distributed_modules()
        for name in _names(module)
        if {part.lower() for part in re.findall(r"[A-Z]?[a-z]+|[A-Z]+", name)} & RETIRED
    }
    assert sorted(wrong) == []


def _names(module: Module) -> Iterator[str]:
    yield module.name
    for node in ast.walk(module.tree):
        for field in ("id", "attr", "name", "arg", "module"):
            name = getattr(node, field, None)
            if isinstance(name, str):
                yield name
