"""Amount of work without a clock: the number of function calls."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable
from typing import Any, Final

_CALLS: Final = ("call", "c_call")


def calls_of(work: Callable[[], object]) -> int:
    """The calls that `work` makes, also by comparisons and hashes written in Python; a generator
    counts at each step."""
    found = 0

    def count(frame: Any, event: str, argument: Any) -> None:
        nonlocal found
        found += event in _CALLS

    before = sys.getprofile()
    sys.setprofile(count)
    try:
        work()
    finally:
        sys.setprofile(before)
    return found


def growth(work_of: Callable[[int], Callable[[], object]], size: int) -> float:
    """Return the exponent by which the work grows from `size` to four times that: 1 is linear, 2
    square. Calls made by `work_of` itself are not counted, those of the function that it returns
    are."""
    few, many = calls_of(work_of(size)), calls_of(work_of(4 * size))
    return math.log(many / few, 4)
