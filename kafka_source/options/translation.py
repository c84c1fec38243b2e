"""Translates the options `kafka.*`, properties of the Java client, for librdkafka.

A name of librdkafka is passed on. A name of the Java client is translated if librdkafka has an
equivalent; refused, with advice, if ignoring it would change the records or the login; and reported
in a warning if it only tunes the client. Any other name is an error, since Spark passes only the
options of this source. librdkafka validates the values and names the property, except numbers, the
few values that this source interprets and those that only the Java client accepts
(`property_values`).
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Final

from spark_ssp.common.errors import shown
from spark_ssp.common.options.spec import BadValueError, OptionProblem, closest
from spark_ssp.common.options.user_code import CLASSES, PATHS, check_path, is_restricted
from spark_ssp.common.options.values import is_readable_on_the_way
from spark_ssp.kafka_source.options.client_properties import (
    BOOTSTRAP_SERVERS,
    GROUP_ID,
    PREFIX,
    ClientProperties,
)
from spark_ssp.kafka_source.options.logins import read_logins, read_stores
from spark_ssp.kafka_source.options.property_names import (
    COMBINED,
    CONSUMER,
    SECRETS,
    PropertyNames,
)
from spark_ssp.kafka_source.options.property_values import (
    ISOLATION_LEVEL,
    KEYSTORE,
    MAY_BE_EMPTY,
    PropertyDraft,
    complete,
    option_of,
    set_property,
)

__all__ = [
    "ISOLATION_LEVEL",
    "ParsedProperties",
    "access_problems",
    "access_warnings",
    "missing_brokers",
    "read_properties",
]


@dataclass(frozen=True, slots=True, kw_only=True)
class ParsedProperties:
    """The result of parsing the options `kafka.*`. `not_idempotent` maps each property that turns
    a producer's idempotence off, and is no problem by itself, to the value that idempotence
    needs."""

    properties: ClientProperties
    problems: tuple[OptionProblem, ...]
    warnings: tuple[str, ...]
    not_idempotent: Mapping[str, str]


def read_properties(raw: Mapping[str, str], names: PropertyNames = CONSUMER) -> ParsedProperties:
    """Parse the options of `raw` whose names begin with `kafka.`, in any case, as properties of the
    kind of client of `names`."""
    draft = PropertyDraft(names=names)
    given = _fold_case(raw, draft)
    for name in sorted(given):
        if name in names.refused:
            draft.add_problem(
                name,
                found="a property that is not supported here",
                expected=f"properties of {names.client} that keep its behaviour",
                next_step=f"remove it: {names.refused[name]}",
            )
        elif name in names.without_effect:
            draft.warnings.append(f"{option_of(name)} has no effect: {names.without_effect[name]}")
        elif name not in COMBINED and name not in names.supported and name not in names.aliases:
            _add_unknown(name, draft)
        elif not given[name] and name not in MAY_BE_EMPTY:
            draft.add_problem(
                name,
                found="an empty value",
                expected="a value",
                next_step="set a value, or leave the option out",
            )
        elif name not in COMBINED and name != KEYSTORE:
            set_property(name, given[name], draft)
    read_logins(given, draft)
    read_stores(given, draft)
    complete(draft)
    if GROUP_ID in draft.values:
        draft.warnings.append(
            "kafka.group.id is set: brokers cannot distinguish queries that share one, and "
            "groupIdPrefix has no effect"
        )
    return ParsedProperties(
        properties=ClientProperties(
            public=tuple(
                (name, draft.values[name]) for name in sorted(draft.values.keys() - SECRETS)
            ),
            secret=tuple(
                (name, draft.values[name]) for name in sorted(draft.values.keys() & SECRETS)
            ),
            origins=tuple(sorted(pair for pair in draft.origin.items() if pair[0] != pair[1])),
            iam=draft.iam,
        ),
        problems=tuple(draft.problems),
        warnings=tuple(draft.warnings),
        not_idempotent=draft.not_idempotent,
    )


def missing_brokers(reading: ParsedProperties) -> Iterator[OptionProblem]:
    """Return the problem that no broker is named, unless the option has a problem already."""
    option = option_of(BOOTSTRAP_SERVERS)
    reported = any(problem.option == option for problem in reading.problems)
    if BOOTSTRAP_SERVERS not in dict(reading.properties.public) and not reported:
        yield OptionProblem(
            option=option,
            found="no brokers",
            expected="one or more brokers, such as host1:9092,host2:9092",
            next_step="name some of the cluster's brokers",
        )


def _fold_case(raw: Mapping[str, str], draft: PropertyDraft) -> dict[str, str]:
    given: dict[str, str] = {}
    for spelling in sorted(raw):
        key = spelling.strip().lower()
        if not key.startswith(PREFIX):
            continue
        name = key.removeprefix(PREFIX)
        if name in given:
            draft.add_problem(
                name,
                found="the same name twice, in different case",
                expected="each option once: names are not case-sensitive",
                next_step="remove all but one of the spellings",
            )
        # A null set on the reader arrives as None, despite the annotation of the map.
        given[name] = (raw[spelling] or "").strip()
    return given


def _add_unknown(name: str, draft: PropertyDraft) -> None:
    names = draft.names
    known = {*names.supported, *names.aliases, *COMBINED, *names.without_effect}
    suggestion = closest(name, {one: one for one in sorted(known)})
    draft.add_problem(
        name,
        found="an unknown property",
        expected=f"a property of {names.client} of librdkafka or of the Java client",
        next_step=f"did you mean {option_of(suggestion)}?" if suggestion else "remove it",
    )


# --- Access: files, commands, encryption ----------------------------------------------------------

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
        yield from error.problems(option)
