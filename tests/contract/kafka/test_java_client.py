"""Options `kafka.*` beside Kafka's own client for Java: the same logins, and no number that only it
takes."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final

import pytest
from confluent_kafka import Producer
from hypothesis import example, given, settings
from hypothesis import strategies as st

from spark_ssp.common.errors import InvalidOptionsError
from spark_ssp.common.options.spec import BadValueError
from spark_ssp.kafka_source.client.admin_connection import AdminClient
from spark_ssp.kafka_source.client.client_config import ClientRole, create_client
from spark_ssp.kafka_source.options.logins import parse_jaas
from spark_ssp.kafka_source.options.property_names import (
    COMBINED,
    CONSUMER,
    PRODUCER,
    PropertyNames,
)
from spark_ssp.kafka_source.options.translation import read_properties
from spark_ssp.kafka_source.reading.pool import check_consumers
from tests.support.servers.java_client import JavaClient, JavaProperty, java_client


@pytest.fixture(scope="module")
def java() -> Iterator[JavaClient]:
    with java_client() as found:
        yield found


# --- Logins ---------------------------------------------------------------------------------------

PLAIN: Final = "org.apache.kafka.common.security.plain.PlainLoginModule"
PIECES: Final = (
    *(PLAIN, "a.B$C", "required", "ReQuisite", "optional", "username", "password", "a-b_c", "x,y"),
    *("=", "=", "=", ";", ";", " ", " ", "\n", "\r\n", "\t", "\x00"),
    *('"', "'", "\\", '"p w"', "'p w'", '"a\'b"', "'a\"b'", r'"a\"b"', r"'a\'b'", r'"\\"', '""'),
    *(r'"\n\t\q\7\101\477\377"', r'"\u0041"', '"open\n', "'open\r"),
    *("/", "//", "/*", "*/", "/* c */", "// c\n", "/\n", "/etc/krb5.keytab", "https://h/p", "*"),
    *("é", "€", "\x85", "\x9f", "\xa0", "\x7f", "\x80", "\U0001f600", "#", "!", "a=b", "5", "-1"),
)
WHOLE: Final = st.builds(
    "{0}{1} required{2}username={3}{2}password={4}{1};{5}".format,
    st.just(PLAIN),
    st.sampled_from(("", " ", "/* c */", "// c\n", "\n")),
    st.sampled_from((" ", "\n", "/* = ; */", "// '\"\n", "\r\n")),
    st.sampled_from(PIECES),
    st.sampled_from(PIECES),
    st.sampled_from(("", " ", "// end", "/* end */", f"{PLAIN} required a=b;")),
)


@given(WHOLE | st.lists(st.sampled_from(PIECES), max_size=14).map("".join))
@settings(max_examples=1_500)
@example(f"{PLAIN} required username='alice' password='it\\'s; \"s\" = 1';")
@example(f'{PLAIN} required username="alice" password="p\\101\\n"; // mine')
@example(f"/* the login */ {PLAIN} REQUIRED\n username=alice // who\n password=x/y;\n;")
@example(f"{PLAIN} required username=a username=b password=c;")
@example(f"{PLAIN} required username=a;{PLAIN} required username=b;")
def test_a_login_is_read_as_kafka_reads_it(java: JavaClient, text: str) -> None:
    theirs = java.login(text)
    try:
        module = parse_jaas(text)
    except BadValueError:
        # More is refused than by Kafka: a key that it takes for null, and a name of no class.
        assert theirs is None or None in theirs[1] or not _is_class(theirs[0])
    else:
        assert theirs == (module.name, module.options)


def _is_class(name: str) -> bool:
    return name.isascii() and all(part.isidentifier() for part in name.replace("$", "_").split("."))


# --- Names and numbers ----------------------------------------------------------------------------

LEAST: Final = {"kafka.bootstrap.servers": "127.0.0.1:1"}


def _consumers(raw: Mapping[str, str]) -> None:
    check_consumers(read_properties(raw).properties, "group")


def _producer(raw: Mapping[str, str]) -> None:
    create_client(Producer, read_properties(raw, PRODUCER).properties, role=ClientRole.PRODUCER)


def _admin(raw: Mapping[str, str]) -> None:
    create_client(AdminClient, read_properties(raw).properties, role=ClientRole.ADMIN)


MAKING: Final[Mapping[str, tuple[PropertyNames, Callable[[Mapping[str, str]], None]]]] = {
    "consumer": (CONSUMER, _consumers),
    "producer": (PRODUCER, _producer),
    "admin": (CONSUMER, _admin),
}

REFUSED: Final[Mapping[tuple[str, str, int], str]] = {
    ("producer", "delivery.timeout.ms", 0): "for librdkafka it means: without end",
}
"""Numbers that are within the Java client's ranges, and are refused: each with its reason."""


@pytest.mark.parametrize("client", MAKING)
def test_every_number_that_javas_client_takes_is_taken(java: JavaClient, client: str) -> None:
    names, make = MAKING[client]
    refused: set[tuple[str, str, int]] = set()
    tried = 0
    for known in java.properties(client):
        for number in known.accepted:
            if known.name in names.refused:
                continue
            tried += 1
            if _refuses(known, number, names, make):
                refused.add((client, known.name, number))
    assert refused == {key for key in REFUSED if key[0] == client}
    assert tried > 60


def _refuses(
    known: JavaProperty,
    number: int,
    names: PropertyNames,
    make: Callable[[Mapping[str, str]], None],
) -> bool:
    """Whether it is refused, and then by its own name."""
    raw = {**LEAST, f"kafka.{known.name}": str(number)}
    problems = read_properties(raw, names).problems
    if not problems:
        try:
            make(raw)
        except InvalidOptionsError as error:
            problems = error.problems
    assert [one.option for one in problems] in ([], [f"kafka.{known.name}"])
    return bool(problems)


@pytest.mark.parametrize("client", ["consumer", "producer"])
def test_every_name_of_javas_client_is_known(java: JavaClient, client: str) -> None:
    names, _ = MAKING[client]
    known: set[Any] = {*names.supported, *names.aliases, *names.refused, *names.without_effect}
    assert {one.name for one in java.properties(client)} <= known | COMBINED
