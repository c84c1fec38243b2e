"""Collects properties, problems and warnings while the options `kafka.*` are read, and translates
values from the Java client's form to librdkafka's. Only the values that this project interprets are
validated, and that numbers are numbers: librdkafka reads `5s` as 5. It validates the others when a
client is created, and names the property."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Final

from spark_ssp.common.errors import shown
from spark_ssp.common.options.endpoints import ConnectionOptions
from spark_ssp.common.options.spec import BadValueError, Fault, OptionProblem
from spark_ssp.common.options.values import boolean, choice, integer
from spark_ssp.kafka_source.options.client_properties import PREFIX
from spark_ssp.kafka_source.options.property_names import COMBINED, RECOVERY, PropertyNames

KEYSTORE: Final = "ssl.keystore.location"


def option_of(name: str) -> str:
    """Return the name of the option for a property."""
    return PREFIX + name


@dataclass(slots=True)
class PropertyDraft:
    """Properties, problems and warnings so far. `origin` maps librdkafka's name of a property to
    the name that the user gave it. `iam` is set where the login is AWS's. `not_idempotent` maps
    each property that turns idempotence off to the value that idempotence needs."""

    names: PropertyNames
    values: dict[str, str] = field(default_factory=dict)
    origin: dict[str, str] = field(default_factory=dict)
    problems: list[OptionProblem] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)
    iam: ConnectionOptions | None = None
    not_idempotent: dict[str, str] = field(default_factory=dict)

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
        self.problems.extend(error.problems(option_of(name)))

    def number(self, name: str, default: int) -> int:
        """Return a property's number, or `default` if it is not set or not a number, which
        librdkafka refuses by name."""
        text = self.values.get(name, "")
        return int(text) if text.isascii() and text.isdigit() else default


ISOLATION_LEVEL: Final = "isolation.level"
MAY_BE_EMPTY: Final = frozenset({"ssl.endpoint.identification.algorithm"})

_LINGER: Final = "linger.ms"
_NUMERIC_ENDINGS: Final = (
    ".ms",
    ".seconds",
    ".bytes",
    ".kbytes",
    ".messages",
    "retries",
    ".flight",
)
"""Suffixes of the names of numeric properties that a user could give with a unit."""
# Nineteen digits hold every long of Java.
_NUMBER: Final = re.compile("[+-]?[0-9]{1,19}")
_FRACTION: Final = re.compile(r"[0-9]{1,5}\.[0-9]+")

_SAME_MEANING: Final[Mapping[tuple[str, str], str]] = {
    # No limit; the system's default; one record per batch.
    ("connections.max.idle.ms", "-1"): "0",
    ("receive.buffer.bytes", "-1"): "0",
    ("send.buffer.bytes", "-1"): "0",
    ("batch.size", "0"): "1",
    # Both are answered at once.
    ("fetch.min.bytes", "0"): "1",
}
"""Values of the Java client for which librdkafka has another value with the same meaning."""


def set_property(name: str, text: str, draft: PropertyDraft) -> None:
    """Set the property that the user gave as `name`, translated where that is needed."""
    target = draft.names.aliases.get(name, name)
    text = _SAME_MEANING.get((name, text), text)
    convert = _VALUES.get(name, _VALUES.get(target))
    try:
        if name in draft.names.ranges:
            text = _limit_to_range(draft.names.ranges[name], name, text, draft)
        elif name.endswith(_NUMERIC_ENDINGS) or target.endswith(_NUMERIC_ENDINGS):
            _check_number(target, text, "a whole number")
        value = convert(text) if convert is not None else text
    except BadValueError as error:
        draft.add_faults(name, error)
        return
    draft.put(target, value, name)


def _limit_to_range(bounds: tuple[int, int], name: str, text: str, draft: PropertyDraft) -> str:
    """Replace a number outside librdkafka's range by the nearest one in it."""
    least, most = bounds
    if not _check_number(name, text, f"a whole number from {least} to {most}"):
        return text
    number = int(text)
    nearest = min(max(number, least), most)
    if nearest != number:
        draft.warnings.append(
            f"{option_of(name)}={number} is outside librdkafka's range of {least} to {most}: "
            f"{nearest} is used"
        )
    return str(nearest)


def _check_number(name: str, text: str, expected: str) -> bool:
    """Return whether a number is whole; `linger.ms` may be a fraction, to librdkafka alone. Raises
    BadValueError if it is no number."""
    if _NUMBER.fullmatch(text):
        return True
    if name == _LINGER and _FRACTION.fullmatch(text):
        return False
    raise BadValueError(
        Fault(
            found=shown(text),
            expected=expected,
            next_step="write only digits, without a unit",
        )
    )


def _host_verification(text: str) -> str:
    """Translate the empty value that disables host name verification in the Java client."""
    return text or "none"


def _kinit(text: str) -> str:
    """Refuse the Java client's form: its property of this name is the path of the program."""
    if " " not in text:
        raise BadValueError(
            Fault(
                found=f"{shown(text)}, a program without arguments, the form of the Java client",
                expected="the whole command, the form of librdkafka",
                next_step='write it like kinit -R -t "%{sasl.kerberos.keytab}" '
                "-k %{sasl.kerberos.principal}, or leave it out",
            )
        )
    return text


def url_without_user(text: str) -> str:
    """Refuse a URL with credentials, since URLs appear in messages."""
    if "@" in text:
        raise BadValueError(
            Fault(
                found="a URL with @, which separates a user and a password from the host",
                expected="a URL without credentials, since it appears in messages",
                next_step="set them by kafka.sasl.oauthbearer.client.id and "
                "kafka.sasl.oauthbearer.client.secret; write an @ of the path as %40",
            )
        )
    return text


def _acks(text: str) -> str:
    if text.lower() in ("all", "-1"):
        return "all"
    raise BadValueError(
        Fault(
            found=f"{shown(text)}, with which an acknowledged record may be lost",
            expected="all, since Spark never repeats a batch that succeeded",
            next_step="remove it",
        )
    )


def _switch(text: str) -> str:
    return "true" if boolean(text) else "false"


def _kilobytes(text: str) -> str:
    """Convert the Java client's bytes to kibibytes, rounded up."""
    return str(-(-integer(1)(text) // 1024))


_INT: Final = integer(1, (1 << 31) - 1)


def _positive(text: str) -> str:
    """Require a number that this source needs, or whose 0 would mean no limit."""
    return str(_INT(text))


_VALUES: Final[Mapping[str, Callable[[str], str]]] = {
    ISOLATION_LEVEL: choice("read_uncommitted", "read_committed"),
    "acks": _acks,
    "buffer.memory": _kilobytes,
    "delivery.timeout.ms": _positive,
    "enable.idempotence": _switch,
    "message.max.bytes": _positive,
    "partitioner": choice(
        "murmur2_random",
        "murmur2",
        "consistent_random",
        "consistent",
        "fnv1a_random",
        "fnv1a",
        "random",
    ),
    "receive.message.max.bytes": _positive,
    "sasl.kerberos.kinit.cmd": _kinit,
    "sasl.oauthbearer.token.endpoint.url": url_without_user,
    "security.protocol": choice("PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL"),
    "socket.timeout.ms": _positive,
    "ssl.endpoint.identification.algorithm": _host_verification,
}
"""Translations, by the name given or by the one that it is translated to."""


# --- Values that depend on each other -------------------------------------------------------------

_BACKOFF: Final = "reconnect.backoff.ms"
_BACKOFF_MAX: Final = "reconnect.backoff.max.ms"
_BACKOFF_DEFAULT: Final = 100

IDEMPOTENCE: Final = "enable.idempotence"
_IN_FLIGHT: Final = "max.in.flight.requests.per.connection"
_MOST_IN_FLIGHT: Final = 5
"""With idempotence (librdkafka and the Java client)."""
_RETRIES: Final = "retries"
_DELIVERY: Final = "delivery.timeout.ms"
_REQUEST: Final = "request.timeout.ms"
_REQUEST_DEFAULT: Final = 30_000


_FETCH: Final = "fetch.max.bytes"
_MESSAGE: Final = "message.max.bytes"
_MESSAGE_DEFAULT: Final = 1_000_000


def complete(draft: PropertyDraft) -> None:
    """Set the properties that the Java client derives from others, then the defaults."""
    _complete_backoffs(draft)
    if draft.number(_FETCH, _MESSAGE_DEFAULT) < _MESSAGE_DEFAULT and _MESSAGE not in draft.values:
        draft.warnings.append(
            f"{option_of(_FETCH)}={draft.values[_FETCH]} is less than librdkafka accepts without "
            f"kafka.message.max.bytes: {_MESSAGE_DEFAULT} is used"
        )
        draft.values[_FETCH] = str(_MESSAGE_DEFAULT)
    if _DELIVERY in draft.names.defaults:
        _complete_delivery(draft)
    for name, value in draft.names.defaults.items():
        draft.values.setdefault(name, value)


def _complete_idempotence(draft: PropertyDraft) -> None:
    """Turn idempotence off where other properties exclude it and the user did not turn it on, as
    the Java client of Spark 4 does (Kafka 3.9,
    ProducerConfig.postProcessAndValidateIdempotenceConfigs)."""
    given = draft.values.get(IDEMPOTENCE)
    excluding = {}
    if draft.number(_RETRIES, 1) == 0:
        excluding[_RETRIES] = "1 or more"
    if draft.number(_IN_FLIGHT, 1) > _MOST_IN_FLIGHT:
        excluding[_IN_FLIGHT] = f"at most {_MOST_IN_FLIGHT}"
    if given == "true":
        for name, expected in excluding.items():
            draft.add_problem(
                draft.origin[name],
                found=f"{draft.values[name]} together with kafka.enable.idempotence=true",
                expected=f"{expected}, which idempotence needs",
                next_step="remove this property or kafka.enable.idempotence",
            )
    else:
        own = {} if given is None else {IDEMPOTENCE: "true"}
        draft.not_idempotent = {**excluding, **own}
    if excluding:
        draft.values[IDEMPOTENCE] = "false"
    # Without retries, the client can neither reorder nor repeat records.
    if draft.values.get(IDEMPOTENCE) == "false" and draft.values.get(_RETRIES) != "0":
        cause = "kafka.enable.idempotence is false"
        if given is None:
            option = option_of(draft.origin[_IN_FLIGHT])
            cause = f"{option}={draft.values[_IN_FLIGHT]} turns idempotence off"
        draft.warnings.append(
            f"{cause}: records may be reordered or written twice whenever a broker does not answer "
            "at once"
        )


def _complete_backoffs(draft: PropertyDraft) -> None:
    """Raise the longest backoff to the first one, since librdkafka refuses a first one that is
    longer."""
    first = draft.number(_BACKOFF, _BACKOFF_DEFAULT)
    longest = draft.number(_BACKOFF_MAX, int(RECOVERY[_BACKOFF_MAX]))
    if first > longest:
        given = _BACKOFF_MAX if _BACKOFF in draft.values else _BACKOFF
        draft.values[given] = draft.values[_BACKOFF if given == _BACKOFF_MAX else _BACKOFF_MAX]
        draft.origin.setdefault(given, given)


def _complete_delivery(draft: PropertyDraft) -> None:
    _complete_idempotence(draft)
    if _DELIVERY not in draft.values:
        least = draft.number(_LINGER, 0) + draft.number(_REQUEST, _REQUEST_DEFAULT)
        if least > int(draft.names.defaults[_DELIVERY]):
            draft.values[_DELIVERY] = str(least)
