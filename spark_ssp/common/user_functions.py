"""Imports a function of the user, which an option names as `module:function`, and calls it.

Exceptions of the user's code are neither quoted nor chained, since their text may contain a secret.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any, TypeVar

from spark_ssp.common.errors import AccessError

T = TypeVar("T")

Refusal = Callable[[str, str, str], AccessError]
"""Returns the error of an option for what was found, what was expected and the next step."""


def import_function(path: str, refusal: Refusal) -> Callable[..., object]:
    """Return the function at `path`. Raises the error that `refusal` returns."""
    module_name, _, name = path.partition(":")
    try:
        module = importlib.import_module(module_name)
    except Exception as error:  # noqa: BLE001  (the user's code)
        raise refusal(
            f"a module that cannot be imported ({type(error).__name__})",
            "a module that the driver and every executor can import",
            "check its name, and install it on all machines, or add it to the driver's PYTHONPATH "
            "and ship it to the executors (spark.submit.pyFiles)",
        ) from None
    function = getattr(module, name, None)
    if not callable(function):
        exists = hasattr(module, name)
        raise refusal(
            f"an attribute of type {type_name(function)}" if exists else f"no {name} in the module",
            "a function of the module",
            "check its name",
        )
    return function  # type: ignore[no-any-return]


def call_guarded(
    call: Callable[[], T],
    refusal: Refusal,
    *,
    what: str = "which raised",
    expected: str,
    attempt: str = "call it with the arguments",
    name_of: Callable[[Exception], str] = lambda error: type(error).__name__,
) -> T:
    """Return the result of `call`. Raises the error that `refusal` returns, which has only the name
    of the exception."""
    try:
        return call()
    except (Exception, SystemExit) as error:  # noqa: BLE001  (the user's code)
        name = name_of(error) if isinstance(error, Exception) else type(error).__name__
        raise refusal(
            f"a function {what} {name}",
            expected,
            f"{attempt} in a Python of the driver and of an executor to see the error, whose text "
            "is not shown, since it may contain secrets",
        ) from None


def type_name(value: Any) -> str:
    """Return the name of a value's type, with its module unless it is built in."""
    if value is None:
        return "None"
    kind = type(value)
    return kind.__name__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__name__}"
