"""Properties of a Kafka client by which it reads files of the machine or runs a command."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final

from kafka_source.client_properties import PREFIX, ClientProperties
from ssp_common.allowlists import CLASSES, PATHS, check_path, is_restricted
from ssp_common.options import BadValueError, OptionProblem, shown

_FILES: Final = (".location", ".file", ".keytab")
"""How librdkafka's properties that name a file or a folder end."""
_PROBE: Final = "probe"
"""`ssl.ca.location`: librdkafka looks for the system's certificates."""

_KINIT: Final = "sasl.kerberos.kinit.cmd"
_IN_COMMAND: Final = (
    "sasl.kerberos.keytab",
    "sasl.kerberos.principal",
    "sasl.kerberos.service.name",
)
"""librdkafka puts these into `sasl.kerberos.kinit.cmd`, which it hands to a shell."""
_WORD: Final = re.compile(r"(?!-)[\w./@:+=,%-]*")


def access_problems(client: ClientProperties) -> Iterator[OptionProblem]:
    """Find files outside the folders that the driver's owner allows, and values that a shell would
    take for a command."""
    values = dict(client.public)
    for name, value in sorted(values.items()):
        if name.endswith(_FILES) and value != _PROBE:
            yield from _path_problems(name, value)
    for name in _IN_COMMAND:
        value = values.get(name, "")
        if not _WORD.fullmatch(value):
            yield OptionProblem(
                option=PREFIX + name,
                found=f"{shown(value)}, part of a command of the shell",
                expected="letters, digits and any of _./@:+=,%-",
                next_step="use a name or a path without other characters",
            )
    if _KINIT in values and is_restricted():
        yield OptionProblem(
            option=PREFIX + _KINIT,
            found="a command, which this driver does not allow",
            expected=f"no command where {CLASSES} or {PATHS} is set",
            next_step="remove it: librdkafka's own command calls kinit with the keytab",
        )


def _path_problems(name: str, value: str) -> Iterator[OptionProblem]:
    try:
        check_path(value)
    except BadValueError as error:
        for fault in error.faults:
            yield OptionProblem(
                option=PREFIX + name,
                found=fault.found,
                expected=fault.expected,
                next_step=fault.next_step,
            )
