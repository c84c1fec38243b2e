"""Options `kafka.*`: properties of the Java client, as Spark's source takes them, for librdkafka.

A name of librdkafka is handed on. A name of the Java client is translated where librdkafka has the
same thing, refused by name with the remedy where going on without it would change what is read or
as whom, and named in a warning where it only tunes. Any other name is an error: Spark hands over
what was meant for this source alone. Values are not judged, but for the few that this source must
understand: librdkafka does that, and names the property.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final

from kafka_source.client_property_names import COMBINED, CONSUMER, SECRETS, PropertyNames
from kafka_source.jaas import parse_jaas
from ssp_common.option_values import boolean, choice, integer
from ssp_common.options import BadValueError, Fault, OptionProblem, closest, shown

PREFIX: Final = "kafka."
BOOTSTRAP_SERVERS: Final = "bootstrap.servers"
ISOLATION_LEVEL: Final = "isolation.level"
GROUP_ID: Final = "group.id"


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientProperties:
    """Properties for librdkafka, sorted by name. Hashable: clients are kept by them.

    The text never shows secrets; the pickle carries them, because executors need them.
    """

    public: tuple[tuple[str, str], ...] = ()
    secret: tuple[tuple[str, str], ...] = ()

    def config(self) -> dict[str, str]:
        """All of them, as a client takes them. Not for logs."""
        return dict(sorted((*self.public, *self.secret)))

    def __repr__(self) -> str:
        entries = sorted([*self.public, *((name, "***") for name, _ in self.secret)])
        return f"ClientProperties({', '.join(f'{name}={value}' for name, value in entries)})"


@dataclass(frozen=True, slots=True, kw_only=True)
class PropertyReading:
    """What became of the options `kafka.*`."""

    properties: ClientProperties
    problems: tuple[OptionProblem, ...]
    warnings: tuple[str, ...]


@dataclass(slots=True)
class _Draft:
    """Properties and problems so far. `origin`: by property, the option that it came from."""

    names: PropertyNames
    values: dict[str, str] = field(default_factory=dict)
    origin: dict[str, str] = field(default_factory=dict)
    problems: list[OptionProblem] = field(default_factory=list)

    def put(self, name: str, value: str, origin: str) -> None:
        if name in self.values:
            self.problem(
                origin,
                found=f"{_option(self.origin[name])} and {_option(origin)} together, which are "
                "names of one thing",
                expected="one of them",
                next_step=f"keep {_option(name)}",
            )
            return
        self.values[name] = value
        self.origin[name] = origin

    def problem(self, name: str, *, found: str, expected: str, next_step: str) -> None:
        self.problems.append(
            OptionProblem(option=_option(name), found=found, expected=expected, next_step=next_step)
        )


def read_properties(raw: Mapping[str, str], names: PropertyNames = CONSUMER) -> PropertyReading:
    """Read the options of `raw` whose names begin with `kafka.`, whatever their case, as properties
    of the kind of client that `names` is for. Pure."""
    draft = _Draft(names=names)
    given = _fold_case(raw, draft)
    warnings: list[str] = []
    for name in sorted(given):
        if name in names.refused:
            draft.problem(
                name,
                found="a property that cannot be obeyed here",
                expected=f"properties of {names.client} that do not change what it does",
                next_step=f"remove it: {names.refused[name]}",
            )
        elif name in names.without_effect:
            warnings.append(f"{_option(name)} has no effect: {names.without_effect[name]}.")
        elif name not in COMBINED and name not in names.passed and name not in names.twins:
            _unknown(name, draft)
        elif not given[name] and name not in _MAY_BE_EMPTY:
            draft.problem(
                name,
                found="an empty value",
                expected="a value",
                next_step="give one, or leave the option out",
            )
        elif name not in COMBINED and name not in _OF_STORES:
            _pass_on(name, given[name], draft)
    _sasl(given, draft)
    _stores(given, draft)
    if GROUP_ID in draft.values:
        warnings.append(
            "kafka.group.id is set: queries that share one are told apart by nobody, and "
            "groupIdPrefix has no effect."
        )
    if draft.values.get("enable.idempotence") == "false":
        warnings.append(
            "kafka.enable.idempotence is false: records may change their order, and be written "
            "twice, whenever a broker does not answer at once."
        )
    for name, value in names.defaults.items():
        draft.values.setdefault(name, value)
    return PropertyReading(
        properties=ClientProperties(
            public=tuple(
                (name, draft.values[name]) for name in sorted(draft.values.keys() - SECRETS)
            ),
            secret=tuple(
                (name, draft.values[name]) for name in sorted(draft.values.keys() & SECRETS)
            ),
        ),
        problems=tuple(draft.problems),
        warnings=tuple(warnings),
    )


def missing_brokers(reading: PropertyReading) -> Iterator[OptionProblem]:
    """The problem that no broker is named, unless one with its name was told already."""
    option = _option(BOOTSTRAP_SERVERS)
    told = any(problem.option == option for problem in reading.problems)
    if BOOTSTRAP_SERVERS not in dict(reading.properties.public) and not told:
        yield OptionProblem(
            option=option,
            found="no brokers",
            expected="one broker or several, such as host1:9092,host2:9092",
            next_step="name some of the cluster's brokers",
        )


def _option(name: str) -> str:
    return PREFIX + name


def _fold_case(raw: Mapping[str, str], draft: _Draft) -> dict[str, str]:
    given: dict[str, str] = {}
    for spelling in sorted(raw):
        key = spelling.strip().lower()
        if not key.startswith(PREFIX):
            continue
        name = key.removeprefix(PREFIX)
        if name in given:
            draft.problem(
                name,
                found="the same name twice, in different case",
                expected="each option once: the case of a name does not matter",
                next_step="remove one of them",
            )
        # A null set on the reader arrives as None, whatever the map's annotation says.
        given[name] = (raw[spelling] or "").strip()
    return given


def _unknown(name: str, draft: _Draft) -> None:
    names = draft.names
    known = {*names.passed, *names.twins, *COMBINED, *names.refused, *names.without_effect}
    suggestion = closest(name, {one: one for one in sorted(known)})
    draft.problem(
        name,
        found="an unknown property",
        expected=f"a property of {names.client} of librdkafka or of the Java client",
        next_step=f"did you mean {_option(suggestion)}?" if suggestion else "remove it",
    )


# --- Single values --------------------------------------------------------------------------------


def _host_check(text: str) -> str:
    """The Java client turns the check of host names off by an empty value."""
    return text or "none"


def _buffer(text: str) -> str:
    """-1 is the Java client's word for the system's default, 0 librdkafka's."""
    return "0" if text == "-1" else text


def _kinit(text: str) -> str:
    """Same name, other meaning: the Java client's is the program's path alone."""
    if " " not in text:
        raise BadValueError(
            Fault(
                found=f"{shown(text)}, a program alone, which is how the Java client takes it",
                expected="the whole command, as librdkafka runs it",
                next_step='write it like kinit -R -t "%{sasl.kerberos.keytab}" '
                "-k %{sasl.kerberos.principal}, or leave it out",
            )
        )
    return text


def _without_user(text: str) -> str:
    """A URL shows in texts."""
    if "@" in text:
        raise BadValueError(
            Fault(
                found="a URL with @, which is how one names a user and a password",
                expected="a URL without them, since it is shown in messages",
                next_step="give them by kafka.sasl.oauthbearer.client.id and "
                "kafka.sasl.oauthbearer.client.secret; write an @ of the path as %40",
            )
        )
    return text


def _acks(text: str) -> str:
    if text.lower() in ("all", "-1"):
        return "all"
    raise BadValueError(
        Fault(
            found=f"{shown(text)}, with which a record counts as written and may be lost",
            expected="all, since Spark does not write a batch again that was written",
            next_step="remove it",
        )
    )


def _switch(text: str) -> str:
    return "true" if boolean(text) else "false"


def _kilobytes(text: str) -> str:
    """Of Java's bytes: so many that all of them fit."""
    return str(-(-integer(1)(text) // 1024))


_INT: Final = integer(1, (1 << 31) - 1)


def _bounded(text: str) -> str:
    """librdkafka would take 0 for: without end."""
    return str(_INT(text))


_MAY_BE_EMPTY: Final = frozenset({"ssl.endpoint.identification.algorithm"})

_VALUES: Final[Mapping[str, Callable[[str], str]]] = {
    ISOLATION_LEVEL: choice("read_uncommitted", "read_committed"),
    "acks": _acks,
    "buffer.memory": _kilobytes,
    "delivery.timeout.ms": _bounded,
    "enable.idempotence": _switch,
    "partitioner": choice(
        "murmur2_random",
        "murmur2",
        "consistent_random",
        "consistent",
        "fnv1a_random",
        "fnv1a",
        "random",
    ),
    "sasl.kerberos.kinit.cmd": _kinit,
    "sasl.oauthbearer.token.endpoint.url": _without_user,
    "security.protocol": choice("PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL"),
    "socket.receive.buffer.bytes": _buffer,
    "socket.send.buffer.bytes": _buffer,
    "ssl.endpoint.identification.algorithm": _host_check,
}
"""By the name given or by the one that it is translated to."""


def _pass_on(name: str, text: str, draft: _Draft) -> None:
    twin = draft.names.twins.get(name, name)
    convert = _VALUES.get(name, _VALUES.get(twin))
    try:
        value = convert(text) if convert is not None else text
    except BadValueError as error:
        _faulty(name, error, draft)
        return
    draft.put(twin, value, name)


def _faulty(name: str, error: BadValueError, draft: _Draft) -> None:
    for fault in error.faults:
        draft.problem(name, found=fault.found, expected=fault.expected, next_step=fault.next_step)


# --- Values that belong together ------------------------------------------------------------------

_JAAS: Final = "sasl.jaas.config"
_CALLBACK: Final = "sasl.login.callback.handler.class"


def _sasl(given: Mapping[str, str], draft: _Draft) -> None:
    if given.get(_JAAS):
        try:
            for name, value in parse_jaas(given[_JAAS]).items():
                draft.put(name, value, _JAAS)
        except BadValueError as error:
            _faulty(_JAAS, error, draft)
    handler = given.get(_CALLBACK, "")
    if handler.rpartition(".")[2] == "OAuthBearerLoginCallbackHandler":
        draft.put("sasl.oauthbearer.method", "oidc", _CALLBACK)
    elif handler:
        draft.problem(
            _CALLBACK,
            found=f"{shown(handler)}, a class of Java",
            expected="Kafka's own OAuthBearerLoginCallbackHandler, or no handler",
            next_step="use a login that librdkafka has: see kafka.sasl.mechanism and "
            "kafka.sasl.oauthbearer.method",
        )


_KEYSTORE: Final = "ssl.keystore.location"
_KEYSTORE_TYPE: Final = "ssl.keystore.type"
_TRUSTSTORE: Final = "ssl.truststore.location"
_TRUSTSTORE_TYPE: Final = "ssl.truststore.type"
_TRUSTSTORE_PASSWORD: Final = "ssl.truststore.password"
_OF_STORES: Final = frozenset({_KEYSTORE})


def _stores(given: Mapping[str, str], draft: _Draft) -> None:
    """librdkafka takes keys as PEM or PKCS#12, and authorities as PEM alone."""
    keystore, key_type = given.get(_KEYSTORE), given.get(_KEYSTORE_TYPE, "").upper()
    if key_type not in ("", "JKS", "PKCS12", "PEM"):
        _faulty(_KEYSTORE_TYPE, _no_type(given[_KEYSTORE_TYPE], "PKCS12 or PEM"), draft)
    elif keystore and key_type == "PEM":
        draft.put("ssl.certificate.location", keystore, _KEYSTORE)
        draft.put("ssl.key.location", keystore, _KEYSTORE)
    elif key_type == "JKS" or (keystore or "").lower().endswith(".jks"):
        draft.problem(
            _KEYSTORE,
            found="a key store of Java (JKS)",
            expected="a PKCS#12 file, or PEM files by kafka.ssl.certificate.location and "
            "kafka.ssl.key.location",
            next_step="convert it: keytool -importkeystore -deststoretype PKCS12",
        )
    elif keystore:
        draft.put(_KEYSTORE, keystore, _KEYSTORE)
    authorities, trust_type = given.get(_TRUSTSTORE), given.get(_TRUSTSTORE_TYPE, "").upper()
    if trust_type not in ("", "JKS", "PKCS12", "PEM"):
        _faulty(_TRUSTSTORE_TYPE, _no_type(given[_TRUSTSTORE_TYPE], "PEM"), draft)
    elif authorities and trust_type == "PEM":
        draft.put("ssl.ca.location", authorities, _TRUSTSTORE)
    elif authorities or trust_type in ("JKS", "PKCS12"):
        draft.problem(
            _TRUSTSTORE,
            found="a trust store of Java",
            expected="the authorities' certificates as PEM, by kafka.ssl.ca.location",
            next_step="export them: keytool -exportcert -rfc",
        )
    if given.get(_TRUSTSTORE_PASSWORD):
        draft.problem(
            _TRUSTSTORE_PASSWORD,
            found="a password of certificates, which are public",
            expected="the authorities' certificates as PEM, by kafka.ssl.ca.location",
            next_step="remove it",
        )


def _no_type(found: str, expected: str) -> BadValueError:
    return BadValueError(
        Fault(found=shown(found), expected=expected, next_step="convert the file to one of these")
    )
