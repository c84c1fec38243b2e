"""The limits of a healthy query as a program gives them: durations such as 10m."""

from __future__ import annotations

from typing import Final

from spark_ssp.common.errors import InvalidOptionsError, OptionProblem
from spark_ssp.common.options.spec import BadValueError
from spark_ssp.common.options.values import duration
from spark_ssp.operations.health import Limits

YEAR_MS: Final = 365 * 24 * 3_600_000


def limits_of(subject: str, **given: str) -> Limits:
    """Return the limits by their names without the unit. Raises InvalidOptionsError, which names
    the subject."""
    found: dict[str, int] = {}
    problems: list[OptionProblem] = []
    for name, text in given.items():
        try:
            found[f"{name}_ms"] = duration(1, YEAR_MS)(text)
        except BadValueError as error:
            problems += error.problems(name)
    if problems:
        raise InvalidOptionsError(subject, problems)
    return Limits(**found)
