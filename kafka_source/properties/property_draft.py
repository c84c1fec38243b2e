"""Collects properties, problems and warnings while the options `kafka.*` are read."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

from spark_ssp.common.options.endpoints import ConnectionOptions
from spark_ssp.common.options.spec import BadValueError, OptionProblem
from spark_ssp.kafka_source.properties.consumer_properties import COMBINED, PropertyNames

PREFIX: Final = "kafka."
KEYSTORE: Final = "ssl.keystore.location"


def option_of(name: str) -> str:
    """Return the name of the option for a property."""
    return PREFIX + name


@dataclass(slots=True)
class PropertyDraft:
    """Properties, problems and warnings so far.

    `origin` maps librdkafka's name of a property to the name that the user gave it. `iam` is set
    where the login is AWS's.
    """

    names: PropertyNames
    values: dict[str, str] = field(default_factory=dict)
    origin: dict[str, str] = field(default_factory=dict)
    problems: list[OptionProblem] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)
    iam: ConnectionOptions | None = None

    def put(self, name: str, value: str, origin: str) -> None:
        """Set a property of librdkafka that the user gave as `origin`."""
        if name in self.values:
            self.add_problem(
                origin,
                found=f"{option_of(self.origin[name])} and {option_of(origin)} together, which are "
                "names of the same property",
                expected="one of them",
                # An option for several properties contains settings that the others would leave
                # out.
                next_step=f"remove {option_of(self.origin[name])}"
                if origin in COMBINED or origin == KEYSTORE
                else f"keep {option_of(name)}",
            )
            return
        self.values[name] = value
        self.origin[name] = origin

    def add_problem(self, name: str, *, found: str, expected: str, next_step: str) -> None:
        """Record a problem of the property that the user gave as `name`."""
        self.problems.append(
            OptionProblem(
                option=option_of(name), found=found, expected=expected, next_step=next_step
            )
        )

    def add_faults(self, name: str, error: BadValueError) -> None:
        """Record the fault in the value of the property that the user gave as `name`."""
        for fault in error.faults:
            self.add_problem(
                name, found=fault.found, expected=fault.expected, next_step=fault.next_step
            )

    def number(self, name: str, default: int) -> int:
        """Return a property's number, or `default` if it is not set or not a number, which
        librdkafka refuses by name."""
        text = self.values.get(name, "")
        return int(text) if text.isascii() and text.isdigit() else default
