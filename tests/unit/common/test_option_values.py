"""How values of options are written."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spark_ssp.common.options.spec import BadValueError
from spark_ssp.common.options.values import (
    MAX_LONG,
    boolean,
    choice,
    duration,
    format_duration,
    format_size,
    integer,
    listed,
    matching,
    parse_duration,
    parse_size,
    size,
    url,
    url_or_host,
)


@pytest.mark.parametrize(
    ("text", "millis"),
    [
        ("400ms", 400),
        ("10s", 10_000),
        ("10 sec", 10_000),
        ("2 minutes", 120_000),
        ("2m", 120_000),
        ("1 Hour", 3_600_000),
        ("1d", 86_400_000),
        ("250", 250),
        ("0s", 0),
    ],
)
def test_a_duration_is_a_number_and_a_unit(text: str, millis: int) -> None:
    assert parse_duration(text) == millis


@pytest.mark.parametrize(
    ("text", "amount"),
    [
        ("64m", 64 << 20),
        ("64MiB", 64 << 20),
        ("10mb", 10 << 20),
        ("1 g", 1 << 30),
        ("2k", 2048),
        ("1tb", 1 << 40),
        ("77", 77),
        ("77b", 77),
    ],
)
def test_a_size_is_a_number_and_a_unit_of_1024(text: str, amount: int) -> None:
    assert parse_size(text) == amount


@pytest.mark.parametrize(
    "text", ["", "s", "-1s", "1.5s", "1e3", "10 parsecs", "\u0661s", "1s 2ms", "9" * 99, "1s1"]
)
@pytest.mark.parametrize("parse", [parse_duration, parse_size])
def test_anything_else_is_refused(parse: Callable[[str], int], text: str) -> None:
    with pytest.raises(BadValueError):
        parse(text)


@given(st.integers(0, 10**15))
def test_a_duration_survives_being_written_and_read(millis: int) -> None:
    assert parse_duration(format_duration(millis)) == millis


@given(st.integers(0, 10**15))
def test_a_size_survives_being_written_and_read(amount: int) -> None:
    assert parse_size(format_size(amount)) == amount


def test_both_ends_of_a_range_are_inside() -> None:
    assert duration(200, 1_000)("200ms") == 200
    assert duration(200, 1_000)("1s") == 1_000
    assert size(1 << 20)(str(MAX_LONG)) == MAX_LONG
    assert integer(1, 10_000)("10000") == 10_000


@pytest.mark.parametrize(
    ("convert", "text", "next_step"),
    [
        (duration(200, 1_000), "199ms", "larger"),
        (duration(200, 1_000), "2s", "smaller"),
        (size(1 << 20, 1 << 30), "1k", "larger"),
        (size(1 << 20, 1 << 30), "2g", "smaller"),
        (integer(1, 10), "0", "larger"),
        (integer(1, 10), "11", "smaller"),
        (integer(1), "1_000", "digits"),
        (integer(1), "\u0663", "digits"),
        (integer(1), "9" * 5_000, "digits"),
    ],
)
def test_outside_a_range_the_error_says_which_way_to_go(
    convert: Callable[[str], int], text: str, next_step: str
) -> None:
    with pytest.raises(BadValueError) as caught:
        convert(text)
    assert next_step in caught.value.faults[0].next_step


def test_a_plain_number_out_of_range_is_explained() -> None:
    with pytest.raises(BadValueError) as caught:
        duration(100, 60_000)("10")
    assert "a plain number is milliseconds" in caught.value.faults[0].found


@pytest.mark.parametrize(("text", "value"), [("true", True), ("False", False)])
def test_a_switch(text: str, value: bool) -> None:
    assert boolean(text) is value


@pytest.mark.parametrize("text", ["yes", "1", "0", "on", "tru"])
def test_a_switch_takes_no_other_word(text: str) -> None:
    with pytest.raises(BadValueError):
        boolean(text)


def test_a_choice_suggests_the_near_miss() -> None:
    convert = choice("free", "hash-range")
    assert convert("HASH-RANGE") == "hash-range"
    with pytest.raises(BadValueError) as caught:
        convert("hash_range")
    assert caught.value.faults[0].next_step == "did you mean hash-range?"


def test_a_list_reports_every_faulty_part() -> None:
    convert = listed(matching("[a-z]+", "letters", "write letters"))
    assert convert("b , a") == ("b", "a")
    with pytest.raises(BadValueError) as caught:
        convert("a,1,,a,2")
    found = [fault.found for fault in caught.value.faults]
    assert found == ["'a' 2 times", "'1'", "''", "'2'"]


@pytest.mark.parametrize(
    "text",
    [
        "https://kinesis.eu-west-1.amazonaws.com",
        "http://localhost:4567",
        "http://127.0.0.1:4567/",
        "HTTP://host_of_docker:80/some/path",
        "http://[::1]:4567",
    ],
)
def test_a_url_of_a_service(text: str) -> None:
    assert url(text) == text
    assert url_or_host(text) == text


def test_a_host_alone_gets_https() -> None:
    assert url_or_host("sts.eu-west-1.amazonaws.com") == "https://sts.eu-west-1.amazonaws.com"


@pytest.mark.parametrize(
    "text",
    [
        "localhost:4567",
        "ftp://host",
        "http://",
        "http://:80",
        "http://host:0",
        "http://host:port",
        "http://host:99999",
        "http://ho st",
        "http://h\u00f6st",
        "http://[::1",
        "http://host/?a=b",
        "http://host/#a",
        "http://host?",
    ],
)
def test_a_url_with_anything_else_is_refused(text: str) -> None:
    with pytest.raises(BadValueError):
        url(text)


@pytest.mark.parametrize(
    "text",
    [
        "http://user:{0}@host",
        "http://{0}@host",
        "http://host:{0}",
        "http://host/?token={0}",
        "http://host/#{0}",
        "ftp://{0}",
        "{0}",
        "http://user:{0}%40host",
        "http://{0}\\@host",
    ],
)
def test_a_faulty_url_is_never_quoted(text: str) -> None:
    with pytest.raises(BadValueError) as caught:
        url(text.format("canary$"))
    assert "canary" not in str(caught.value.faults)


@given(st.text())
def test_no_text_breaks_a_converter(text: str) -> None:
    converters: tuple[Callable[[str], object], ...] = (
        boolean,
        choice("free", "hash-range"),
        duration(1, 2),
        integer(1),
        listed(matching(".", "a character", "write one")),
        size(1),
        url,
        url_or_host,
    )
    for convert in converters:
        with suppress(BadValueError):
            convert(text)
