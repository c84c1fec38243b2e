"""Options `kafka.*` as keyword arguments, and the properties read from them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from spark_ssp.common.options.spec import OptionProblem
from spark_ssp.kafka_source.options.property_names import CONSUMER
from spark_ssp.kafka_source.options.translation import ParsedProperties, read_properties

PLAIN: Final = (
    "org.apache.kafka.common.security.plain.PlainLoginModule required "
    'username="alice" password="p\\"w = 1;";'
)


def config_of(**options: str) -> dict[str, str]:
    """Return librdkafka's properties for the options `kafka.<name with dots>`, less the
    defaults."""
    reading = reading_of(options)
    assert reading.problems == ()
    config = reading.properties.config()
    return {name: one for name, one in config.items() if CONSUMER.defaults.get(name) != one}


def reading_of(options: Mapping[str, str]) -> ParsedProperties:
    return read_properties({option_of(name): value for name, value in options.items()})


def option_of(name: str) -> str:
    """Return the option of a name with underscores for dots, or with dots."""
    return f"kafka.{name if '.' in name else name.replace('_', '.')}"


def problem_of(**options: str) -> OptionProblem:
    (problem,) = reading_of(options).problems
    return problem
