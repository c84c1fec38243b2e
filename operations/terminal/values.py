"""Types of values on the command line, by the converters of the sources' options."""

from __future__ import annotations

from typing import Any, Final

import click

from ssp_common.options.spec import BadValueError
from ssp_common.options.values import duration

_DAY: Final = 24 * 3_600_000


class _Duration(click.ParamType[int]):
    name = "duration"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        """Return milliseconds."""
        if isinstance(value, int):
            return value
        try:
            return duration(1, 365 * _DAY)(str(value))
        except BadValueError as error:
            fault = error.faults[0]
            self.fail(f"found {fault.found}; expected {fault.expected}", param, ctx)


DURATION: Final = _Duration()
"""A duration such as 500ms, 10s, 5m or 2h, in milliseconds."""
