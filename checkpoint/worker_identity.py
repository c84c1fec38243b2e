"""The worker's id: the owner that it writes to leases (Samza's SEP-1).

The option `workerId` takes precedence. Otherwise a generator creates the id: the one named in the
option `processorIdGenerator` by a dotted path, by default `UuidGenerator`. An id is text, even if
it looks like a number, and must be unique among the workers of an application: two workers with the
same id would mistake each other's leases for their own.
"""

from __future__ import annotations

import itertools
import os
import re
import socket
import uuid
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, Protocol, Self, runtime_checkable

from spark_ssp.common.errors import InvalidOptionsError, OptionProblem, shown
from spark_ssp.common.options.spec import BadValueError, Fault
from spark_ssp.common.options.user_code import PluginSpec
from spark_ssp.grouping.identifiers import WorkerId as WorkerId

WORKER_ID: Final = "workerId"
GENERATOR: Final = "processorIdGenerator"

_SOURCE: Final = "kinesis-ssp"

MAX_BYTES: Final = 2048
"""DynamoDB's longest partition key: KCL 3 has an index of leases by owner, and from 3.5 on a
worker's metrics have its id as key."""

_RESERVED: Final = frozenset({"Leader", "Migration3.0", "TableMigration3.5"})
"""Keys of the KCL's own rows in the table of the worker's metrics."""

_OF_A_SHARD: Final = re.compile(r"(^|:)shardId-")


# --- Generators ----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Query:
    """The query that needs an id."""

    application: str
    """The name under which workers share a lease table."""
    name: str
    """Identifies the query among those of the application for people; need not be unique."""


@runtime_checkable
class ProcessorIdGenerator(Protocol):
    """Generates a worker's id. The class is named by a dotted path (`my_company.ids.PodName`) and
    instantiated without arguments, or, if it has a class method `for_query(query: Query)`, by that
    method."""

    def generate_processor_id(self) -> str:
        """Return the id: not blank, at most 2,048 bytes, without white space or control characters,
        and unique among the workers of the application. Called once when a query starts."""


class UuidGenerator:
    """The default: generates a random id."""

    def generate_processor_id(self) -> str:
        """Return a random UUID."""
        return str(uuid.uuid4())


class HostAndQueryGenerator:
    """Generates a readable id: `host:query:process`, with a number from the second id of a process
    on. Unique if host names are."""

    _given = itertools.count(1)

    def __init__(self, *, host: str, query: str, process: int) -> None:
        self._host = host
        self._query = query
        self._process = process

    @classmethod
    def for_query(cls, query: Query) -> Self:
        """Return a generator for a query of this process."""
        return cls(host=socket.gethostname(), query=query.name, process=os.getpid())

    def generate_processor_id(self) -> str:
        """Return the next id."""
        number = next(self._given)
        parts = [_word(self._host), _word(self._query), str(self._process)]
        return ":".join(parts if number == 1 else [*parts, str(number)])


def _word(text: str) -> str:
    """Return the text with each sequence of characters other than letters, digits, `.`, `_` and `-`
    replaced by a dash."""
    return re.sub(r"[^A-Za-z0-9._-]+", "-", text).strip("-") or "unnamed"


# --- The id of this worker -----------------------------------------------------------------------


def worker_id(
    worker_id_option: str | None, generator_option: str | None, *, query: Query
) -> WorkerId:
    """Return the id to use. Raises InvalidOptionsError, which names the option to correct."""
    if worker_id_option is not None:
        return _check_id(WORKER_ID, worker_id_option, origin="")
    if generator_option is None:
        return WorkerId(UuidGenerator().generate_processor_id())
    generator = load_generator(generator_option, query)
    try:
        given = generator.generate_processor_id()
    except Exception as error:  # noqa: BLE001 - the user's code
        raise _invalid(
            GENERATOR,
            found=f"{shown(generator_option)}, which raised {type(error).__name__}",
            expected="an id from generate_processor_id()",
            next_step="correct the generator, or set workerId",
        ) from None
    return _check_id(GENERATOR, given, origin=f" from {generator_option}")


def load_generator(dotted_path: str, query: Query) -> ProcessorIdGenerator:
    """Return an instance of the class with this dotted path. Raises InvalidOptionsError, which
    names `processorIdGenerator`."""

    def maker(factory: Any) -> Callable[[], object] | None:
        if hasattr(factory, "for_query"):
            return partial(factory.for_query, query)
        return factory if callable(factory) else None

    pluggable = PluginSpec(
        protocol=ProcessorIdGenerator,  # type: ignore[type-abstract]
        method="generate_processor_id",
        example="my_company.ids.PodName",
        made_how="a class made without arguments, or by its for_query(query)",
        maker=maker,
    )
    try:
        return pluggable.load(dotted_path)
    except BadValueError as error:
        fault = error.faults[0]
        raise _invalid(
            GENERATOR, found=fault.found, expected=fault.expected, next_step=fault.next_step
        ) from None


def _check_id(option: str, given: object, *, origin: str) -> WorkerId:
    fault = find_fault(given)
    if fault is None:
        return WorkerId(str(given))
    raise _invalid(
        option, found=fault.found + origin, expected=fault.expected, next_step=fault.next_step
    )


def find_fault(given: object) -> Fault | None:
    """Return why `given` cannot be used as an id, or None."""
    if not isinstance(given, str):
        return Fault(
            found=f"a value of type {type(given).__name__}",
            expected="text",
            next_step="return text: 7 and 007 are two workers",
        )
    if not given.strip():
        return Fault(
            found="a blank id",
            expected="an id that identifies this worker",
            next_step="set one, or omit the option for a random one",
        )
    if not all(sign.isprintable() and not sign.isspace() for sign in given):
        return Fault(
            found=f"{shown(given)}, with white space or control characters",
            expected="an id of visible characters",
            next_step="use - or _ instead",
        )
    size = len(given.encode())
    if size > MAX_BYTES:
        return Fault(
            found=f"an id of {size} bytes ({shown(given)})",
            expected=f"at most {MAX_BYTES} bytes, DynamoDB's limit for a key",
            next_step="shorten it",
        )
    if given in _RESERVED or _OF_A_SHARD.search(given):
        return Fault(
            found=f"{shown(given)}, which is the key of another row of the lease table",
            expected="an id that is not used by another row",
            next_step="choose another",
        )
    return None


def _invalid(option: str, *, found: str, expected: str, next_step: str) -> InvalidOptionsError:
    problem = OptionProblem(option=option, found=found, expected=expected, next_step=next_step)
    return InvalidOptionsError(_SOURCE, [problem])
