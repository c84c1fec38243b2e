"""Rejects operators by name and source location, before a query starts."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import NoReturn

from pyspark.errors import PySparkException
from pyspark.sql import Column, DataFrame

from spark_ssp.common.errors import SspError
from spark_ssp.planner.graph.errors import InvalidPipelineError, Problem
from spark_ssp.planner.graph.operators import Operator, described
from spark_ssp.planner.running.errors import kind_of


class Refusal:
    """Raises the errors of one operator."""

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
        """Raise InvalidPipelineError with the missing and the existing columns, if any is
        missing."""
        missing = [name for name in wanted if name not in frame.columns]
        if missing:
            self.refuse(
                f"no column {listed(missing)} among {listed(frame.columns)}",
                f"the key's columns: {listed(wanted)}",
                "name columns that its rows have, or add them with transform",
            )

    def refuse_repeated_columns(self, frame: DataFrame) -> None:
        """Raise InvalidPipelineError with columns that differ at most in case, if there are any."""
        times = Counter(name.lower() for name in frame.columns)
        twice = [name for name in frame.columns if times[name.lower()] > 1]
        if twice:
            self.refuse(
                f"columns of one name: {listed(twice)}",
                "names that differ in more than case",
                "rename or drop one of them with transform",
            )

    def frame(self, result: object) -> DataFrame:
        """Return a function's result if it is a DataFrame, else raise InvalidPipelineError."""
        if not isinstance(result, DataFrame):
            self.refuse(
                f"a function that returned {_type_of(result)}",
                "a function that returns a DataFrame",
                "return the resulting frame",
            )
        return result

    def condition(self, result: object) -> Column:
        """Return the result of a filter's function if it is a Column, else raise
        InvalidPipelineError."""
        if not isinstance(result, Column):
            self.refuse(
                f"a function that returned {_type_of(result)}",
                "a function that returns a Column, as frame['delay'] > 0",
                "return the condition, not the frame",
            )
        return result

    @contextmanager
    def on_errors_of_services(self) -> Iterator[None]:
        """Add the operator to errors of a service."""
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
        """Add the operator to Spark's errors about user code; other errors have the line that
        raised them."""
        try:
            yield
        except PySparkException as error:
            problem = Problem(
                subject=described(self._operator),
                found=f"an expression that Spark rejects, {kind_of(error)}",
                expected="expressions over the columns of its rows",
                next_step="see the cause, and correct the function or condition",
                place=self._operator.place,
            )
            raise InvalidPipelineError(self._pipeline, [problem]) from error


def listed(names: Iterable[str]) -> str:
    """Return names as text for a message."""
    found: Sequence[str] = list(names)
    return ", ".join(found) or "none"


def _type_of(result: object) -> str:
    return "nothing" if result is None else f"a {type(result).__name__}"
