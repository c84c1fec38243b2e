"""Values on the command line, by the converters of the sources' options.

Callbacks, since the base class of click's types differs between its versions.
"""

from __future__ import annotations

from typing import Final

import click

from spark_ssp.common.options.spec import BadValueError
from spark_ssp.common.options.values import duration

_YEAR_MS: Final = 365 * 24 * 3_600_000


def to_millis(context: click.Context, parameter: click.Parameter, value: str | None) -> int | None:
    """Convert a duration such as 500ms, 10s, 5m or 2h."""
    return None if value is None else millis_of(value)


def millis_of(text: str) -> int:
    """Return a duration in milliseconds. Raises click.BadParameter."""
    try:
        return duration(1, _YEAR_MS)(text)
    except BadValueError as error:
        fault = error.faults[0]
        raise click.BadParameter(f"found {fault.found}; expected {fault.expected}") from None
