"""Refusing an operator by its name and its place in the user's code, before anything runs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import NoReturn

from pyspark.errors import PySparkException
from pyspark.sql import Column, DataFrame

from pipeline_planner.graph.errors import InvalidPipelineError, Problem
from pipeline_planner.graph.operators import Operator, described
from pipeline_planner.running.errors import kind_of
from ssp_common.errors import SspError


class Refusal:
    """Speaks of one operator."""

    def __init__(self, pipeline: str, operator: Operator) -> None:
        self._pipeline = pipeline
        self._operator = operator

    def refuse(self, found: str, expected: str, next_step: str) -> NoReturn:
        """Raise InvalidPipelineError."""
        problem = Problem(
            subject=described(self._operator),
            found=found,
            expected=expected,
            next_step=next_step,
            place=self._operator.place,
        )
        raise InvalidPipelineError(self._pipeline, [problem])

    def refuse_missing_columns(self, frame: DataFrame, wanted: Iterable[str]) -> None:
        """Names those that are missing, and what is there."""
        missing = [name for name in wanted if name not in frame.columns]
        if missing:
            self.refuse(
                f"no column {listed(missing)}; there are {listed(frame.columns)}",
                f"the key's columns: {listed(wanted)}",
                "name columns that its rows have, or add them with transform",
            )

    def refuse_repeated_columns(self, frame: DataFrame) -> None:
        """Names columns that differ from others in nothing, or in case alone."""
        times = Counter(name.lower() for name in frame.columns)
        twice = [name for name in frame.columns if times[name.lower()] > 1]
        if twice:
            self.refuse(
                f"columns of one name: {listed(twice)}",
                "names that differ, and not in case alone",
                "rename or drop one of them with transform",
            )

    def frame(self, result: object) -> DataFrame:
        """What a function gave, if it is a DataFrame."""
        if not isinstance(result, DataFrame):
            self.refuse(
                f"a function that gave {_told(result)}",
                "a function that returns a DataFrame",
                "return the frame that it makes",
            )
        return result

    def condition(self, result: object) -> Column:
        """What a filter's function gave, if it is a Column."""
        if not isinstance(result, Column):
            self.refuse(
                f"a function that gave {_told(result)}",
                "a function that returns a Column, as frame['delay'] > 0",
                "return the condition, not the frame",
            )
        return result

    @contextmanager
    def on_errors_of_services(self) -> Iterator[None]:
        """Say which operator wanted what a service refuses."""
        try:
            yield
        except SspError as error:
            problem = Problem(
                subject=described(self._operator),
                found=f"{error.subject}: {error.found}",
                expected=error.expected,
                next_step=error.next_step,
                place=self._operator.place,
            )
            raise InvalidPipelineError(self._pipeline, [problem]) from error

    @contextmanager
    def on_errors_of_functions(self) -> Iterator[None]:
        """Say in which operator Spark refuses what the user wrote; other errors speak for
        themselves, with the line that raised them."""
        try:
            yield
        except PySparkException as error:
            problem = Problem(
                subject=described(self._operator),
                found=f"an expression that Spark refuses, {kind_of(error)}",
                expected="expressions over the columns that its rows have",
                next_step="see the cause, and mend the function or condition",
                place=self._operator.place,
            )
            raise InvalidPipelineError(self._pipeline, [problem]) from error


def listed(names: Iterable[str]) -> str:
    """Names for a message."""
    found: Sequence[str] = list(names)
    return ", ".join(found) or "none"


def _told(result: object) -> str:
    return "nothing" if result is None else f"a {type(result).__name__}"
