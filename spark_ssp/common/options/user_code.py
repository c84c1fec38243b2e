"""The user's code that options name: classes by a dotted path, functions as `module:function`.

The owner of a driver may restrict these names, and paths of files (`check_class`, `check_path`). A
fault of a class, and a name that is not allowed, is raised as `BadValueError`, and the caller adds
the option's name. An exception that the user's code raises is neither shown nor chained: its text
may contain a secret.
"""

from __future__ import annotations

import importlib
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final, Generic, TypeVar

from spark_ssp.common.errors import AccessError, shown
from spark_ssp.common.options.spec import BadValueError, Fault, bad_value

CLASSES: Final = "SPARK_SSP_ALLOWED_CLASSES"
"""Dotted paths of classes and functions, comma separated; `my_company.ids.*` is every one of the
module."""
PATHS: Final = "SPARK_SSP_ALLOWED_PATHS"
"""Folders whose files may be named, separated by colons."""


def is_restricted() -> bool:
    """Return whether the owner has set either variable."""
    return CLASSES in os.environ or PATHS in os.environ


def check_class(dotted_path: str, environment: Mapping[str, str] = os.environ) -> None:
    """Raise BadValueError for a class or function that is not listed."""
    if CLASSES not in environment:
        return
    module = dotted_path.rpartition(".")[0]
    allowed = {entry.strip() for entry in environment[CLASSES].split(",")}
    if allowed.isdisjoint({dotted_path, f"{module}.*"}):
        raise BadValueError(
            Fault(
                found=f"{shown(dotted_path)}, which this driver does not allow",
                expected=f"a class or function that {CLASSES} lists",
                next_step=f"ask the owner of the driver to add it to {CLASSES}, or use another",
            )
        )


def check_path(path: str, environment: Mapping[str, str] = os.environ) -> None:
    """Raise BadValueError for a file or folder that is outside the folders listed."""
    if PATHS not in environment:
        return
    real = os.path.realpath(path)
    folders = [os.path.realpath(one) for one in environment[PATHS].split(os.pathsep) if one]
    if not any(os.path.commonpath([real, folder]) == folder for folder in folders):
        raise BadValueError(
            Fault(
                found=f"{shown(path)}, which this driver does not allow",
                expected=f"a path in a folder that {PATHS} lists",
                next_step=f"ask the owner of the driver to add its folder to {PATHS}, or use "
                "another file",
            )
        )


# --- Classes --------------------------------------------------------------------------------------

T = TypeVar("T")


def _no_arguments(factory: Any) -> Callable[[], object] | None:
    return factory if callable(factory) else None


@dataclass(frozen=True, slots=True, kw_only=True)
class PluginSpec(Generic[T]):
    """The kind of class that an option names. `protocol` must be checkable at run time."""

    protocol: type[T]
    method: str
    """The method that makes it one, for messages."""
    example: str
    """A dotted path as a user would write it."""
    made_how: str = "a class made without arguments"
    maker: Callable[[Any], Callable[[], object] | None] = _no_arguments
    """Returns the factory of instances for an imported object; None if it is not a class."""

    def load(self, dotted_path: str) -> T:
        """Return a new instance of the class at `dotted_path`. Raises BadValueError."""
        factory = _imported(dotted_path, self.example)
        make = self.maker(factory) if isinstance(factory, type) else None
        if make is None:
            raise bad_value(
                f"{shown(dotted_path)}, which is not a class",
                f"the dotted path of a class that has {self.method}()",
                "name the class itself",
            )
        if not callable(getattr(factory, self.method, None)):
            raise self._without_method(dotted_path)
        try:
            made = make()
        except Exception as error:  # noqa: BLE001 - the user's code
            raise bad_value(
                f"{shown(dotted_path)}, whose constructor raised {type(error).__name__}",
                self.made_how,
                "correct its constructor",
            ) from None
        if not isinstance(made, self.protocol):
            raise self._without_method(dotted_path)
        return made

    def _without_method(self, dotted_path: str) -> BadValueError:
        return bad_value(
            f"{shown(dotted_path)}, which has no method {self.method}",
            f"a class like {self.protocol.__module__}.{self.protocol.__qualname__}",
            "add the method, or name another class",
        )


def _imported(dotted_path: str, example: str) -> Any:
    module_name, _, name = dotted_path.rpartition(".")
    if not all(part.isidentifier() for part in dotted_path.split(".")) or not module_name:
        raise bad_value(
            shown(dotted_path),
            f"a dotted path such as {example}",
            "write the module, a dot and the class",
        )
    check_class(dotted_path)
    try:
        module = importlib.import_module(module_name)
    except Exception as error:  # noqa: BLE001 - the user's code
        raise bad_value(
            f"{shown(dotted_path)}, whose module {module_name} cannot be imported "
            f"({type(error).__name__})",
            "a module that the driver can import",
            "check the name, and that the module is installed on the driver",
        ) from None
    if not hasattr(module, name):
        raise bad_value(
            f"{shown(dotted_path)}: {module_name} has no {name}",
            "a class of that module",
            "check the name",
        )
    return getattr(module, name)


# --- Functions ------------------------------------------------------------------------------------

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
