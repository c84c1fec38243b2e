"""Checks the properties of a Kafka client that name files or commands, or weaken encryption."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final

from spark_ssp.common.options.allowlists import CLASSES, PATHS, check_path, is_restricted
from spark_ssp.common.options.spec import BadValueError, OptionProblem, shown
from spark_ssp.common.options.values import is_readable_on_the_way
from spark_ssp.kafka_source.properties.translation import PREFIX, ClientProperties

_FILES: Final = (".location", ".file", ".keytab")
"""Suffixes of librdkafka's properties that name a file or a folder."""
_PROBE: Final = "probe"
"""The value of `ssl.ca.location` with which librdkafka searches for the system's certificates."""

_KINIT: Final = "sasl.kerberos.kinit.cmd"
_VERIFICATION: Final = "enable.ssl.certificate.verification"
_HOST_VERIFICATION: Final = "ssl.endpoint.identification.algorithm"
_PROTOCOL: Final = "security.protocol"
_TOKEN_URL: Final = "sasl.oauthbearer.token.endpoint.url"

_COMMAND_ARGUMENTS: Final = (
    "sasl.kerberos.keytab",
    "sasl.kerberos.principal",
    "sasl.kerberos.service.name",
)
"""librdkafka inserts these into `sasl.kerberos.kinit.cmd`, which it runs in a shell."""
_SHELL_SAFE: Final = re.compile(r"(?!-)[\w./@:+=,%-]*")


def access_problems(client: ClientProperties) -> Iterator[OptionProblem]:
    """Return problems of files outside the folders that the driver's owner allows, and of values
    that a shell would interpret."""
    values = dict(client.public)
    for name, value in sorted(values.items()):
        if name.endswith(_FILES) and value != _PROBE:
            yield from _path_problems(client.option(name), value)
    for name in _COMMAND_ARGUMENTS:
        value = values.get(name, "")
        if not _SHELL_SAFE.fullmatch(value):
            yield OptionProblem(
                option=client.option(name),
                found=f"{shown(value)}, which becomes part of a shell command",
                expected="letters, digits and the characters _./@:+=,%-",
                next_step="use a name or a path of these characters",
            )
    if _KINIT in values and is_restricted():
        yield OptionProblem(
            option=PREFIX + _KINIT,
            found="a command, which this driver does not allow",
            expected=f"no command where {CLASSES} or {PATHS} is set",
            next_step="remove it: librdkafka's own command calls kinit with the keytab",
        )


def access_warnings(client: ClientProperties) -> Iterator[str]:
    """Return a warning for each property that lets others on the network read data or impersonate
    brokers."""
    values = dict(client.public)
    if values.get(_VERIFICATION, "true").lower() in ("false", "f", "0"):
        yield f"{PREFIX}{_VERIFICATION} is false: anyone on the network can impersonate a broker"
    elif values.get(_HOST_VERIFICATION) == "none":
        yield (
            f"{PREFIX}{_HOST_VERIFICATION} is none: any server with a certificate of the same "
            "authority can impersonate a broker"
        )
    if values.get(_PROTOCOL) == "SASL_PLAINTEXT":
        yield f"{PREFIX}{_PROTOCOL} is SASL_PLAINTEXT: the login and the records are not encrypted"
    if is_readable_on_the_way(values.get(_TOKEN_URL, "")):
        yield f"{PREFIX}{_TOKEN_URL} is plain http to another machine: tokens are not encrypted"


def _path_problems(option: str, value: str) -> Iterator[OptionProblem]:
    try:
        check_path(value)
    except BadValueError as error:
        for fault in error.faults:
            yield OptionProblem(
                option=option,
                found=fault.found,
                expected=fault.expected,
                next_step=fault.next_step,
            )
