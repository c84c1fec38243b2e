"""Imports and makes classes that options name by a dotted path, and checks their protocol.

Faults are raised as `BadValueError`, and the caller adds the option's name. Only a class that has
the protocol's method is called; `allowlists` restricts which classes may be imported. An exception
raised by the class is neither shown nor chained: its text may contain a secret.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from spark_ssp.common.options.allowlists import check_class
from spark_ssp.common.options.spec import BadValueError, Fault, shown

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
            raise _bad(
                f"{shown(dotted_path)}, which is not a class",
                f"the dotted path of a class that has {self.method}()",
                "name the class itself",
            )
        if not callable(getattr(factory, self.method, None)):
            raise self._without_method(dotted_path)
        try:
            made = make()
        except Exception as error:  # noqa: BLE001 - the user's code
            raise _bad(
                f"{shown(dotted_path)}, whose constructor raised {type(error).__name__}",
                self.made_how,
                "correct its constructor",
            ) from None
        if not isinstance(made, self.protocol):
            raise self._without_method(dotted_path)
        return made

    def _without_method(self, dotted_path: str) -> BadValueError:
        return _bad(
            f"{shown(dotted_path)}, which has no method {self.method}",
            f"a class like {self.protocol.__module__}.{self.protocol.__qualname__}",
            "add the method, or name another class",
        )


def _imported(dotted_path: str, example: str) -> Any:
    module_name, _, name = dotted_path.rpartition(".")
    if not all(part.isidentifier() for part in dotted_path.split(".")) or not module_name:
        raise _bad(
            shown(dotted_path),
            f"a dotted path such as {example}",
            "write the module, a dot and the class",
        )
    check_class(dotted_path)
    try:
        module = importlib.import_module(module_name)
    except Exception as error:  # noqa: BLE001 - the user's code
        raise _bad(
            f"{shown(dotted_path)}, whose module {module_name} cannot be imported "
            f"({type(error).__name__})",
            "a module that the driver can import",
            "check the name, and that the module is installed on the driver",
        ) from None
    if not hasattr(module, name):
        raise _bad(
            f"{shown(dotted_path)}: {module_name} has no {name}",
            "a class of that module",
            "check the name",
        )
    return getattr(module, name)


def _bad(found: str, expected: str, next_step: str) -> BadValueError:
    return BadValueError(Fault(found=found, expected=expected, next_step=next_step))
