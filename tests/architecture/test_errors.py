"""Errors are pickled from a Spark worker to the driver, and printed to terminals and logs."""

from __future__ import annotations

import ast
import importlib
import pickle
import re
from collections.abc import Iterator

import pytest

from spark_ssp.common.errors import SspError
from spark_ssp.common.options.spec import InvalidOptionsError, OptionProblem
from spark_ssp.planner.graph.errors import InvalidPipelineError, Problem, SourceLocation
from tests.architecture.layers import LAYERS
from tests.architecture.modules import distributed_modules
from tests.support.guides import PAGES

for _module in distributed_modules():
    importlib.import_module(_module.import_name)


def _subclasses(cls: type[SspError]) -> Iterator[type[SspError]]:
    yield cls
    for child in cls.__subclasses__():
        yield from _subclasses(child)


ERRORS = sorted(set(_subclasses(SspError)), key=lambda cls: cls.__qualname__)


def _example(cls: type[SspError], subject: str = "orders") -> SspError:
    if issubclass(cls, InvalidOptionsError):
        problem = OptionProblem(option=subject, found="0", expected="1 or more", next_step="mend")
        return cls("kinesis-ssp", [problem, problem])
    if issubclass(cls, InvalidPipelineError):
        place = SourceLocation(file="flow.py", line=3)
        fault = Problem(subject=subject, found="b", expected="c", next_step="d", place=place)
        return cls("delays", [fault, fault])
    return cls(subject, found="nothing", expected="something", next_step="look again")


@pytest.mark.parametrize("cls", ERRORS, ids=lambda cls: cls.__qualname__)
def test_an_error_survives_pickling(cls: type[SspError]) -> None:
    error = _example(cls)
    copy = pickle.loads(pickle.dumps(error))
    assert type(copy) is cls
    assert str(copy) == str(error)
    assert vars(copy) == vars(error)


@pytest.mark.parametrize("cls", ERRORS, ids=lambda cls: cls.__qualname__)
def test_control_characters_are_escaped(cls: type[SspError]) -> None:
    """Names in errors may come from other users."""
    text = str(_example(cls, "or\x1b[2Jders\n2026 INFO all is well\u202e\x9b"))
    assert r"or\x1b[2Jders\n2026 INFO all is well\u202e\x9b" in text
    assert all(line.isprintable() for line in text.splitlines())


def test_every_kind_is_a_name_to_match_on() -> None:
    """A subclass may inherit its parent's kind; only the base class has the default."""
    assert [cls.kind for cls in ERRORS if not re.fullmatch(r"[a-z]+(-[a-z]+)*", cls.kind)] == []
    assert [cls for cls in ERRORS if cls.kind == SspError.kind] == [SspError]


def _advice() -> Iterator[tuple[str, str]]:
    """The texts given as `next_step`, each with its module."""
    for module in distributed_modules():
        for node in ast.walk(module.tree):
            if isinstance(node, ast.keyword) and node.arg == "next_step":
                for part in ast.walk(node.value):
                    if isinstance(part, ast.Constant) and isinstance(part.value, str):
                        yield module.name, part.value


def test_advice_names_what_the_guides_explain() -> None:
    """Options, settings and columns are words of the guides, which tests compare with the options;
    of the packages only the public one is named."""
    explained = set(re.findall(r"\w+", "".join(page.read_text("utf-8") for page in PAGES)))
    advice = list(_advice())
    named = [
        (name, word) for name, text in advice for word in re.findall(r"\b[a-z]+[A-Z]\w*", text)
    ]
    assert len({word for _, word in named}) > 30
    assert [found for found in named if found[1] not in explained] == []
    private = "|".join(package for package in LAYERS if package != "spark_ssp")
    assert [found for found in advice if re.search(rf"\b({private})\.\w", found[1])] == []
