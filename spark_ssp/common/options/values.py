"""Parses values of options: durations, sizes, numbers, switches, choices, URLs. Each parser takes a
stripped, non-empty text (or returns a converter for such) and raises `BadValueError` with finding,
expectation and next step. The last functions decide which hosts are this machine."""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Callable, Mapping
from enum import StrEnum
from functools import lru_cache
from typing import Final, TypeVar
from urllib.parse import urlsplit

from spark_ssp.common.errors import shown
from spark_ssp.common.options.spec import BadValueError, Fault, closest

T = TypeVar("T")
E = TypeVar("E", bound=StrEnum)

_DURATION_UNITS: Final[Mapping[str, int]] = {
    **dict.fromkeys(("ms", "milli", "millis", "millisecond", "milliseconds"), 1),
    **dict.fromkeys(("s", "sec", "secs", "second", "seconds"), 1_000),
    **dict.fromkeys(("m", "min", "mins", "minute", "minutes"), 60_000),
    **dict.fromkeys(("h", "hr", "hrs", "hour", "hours"), 3_600_000),
    **dict.fromkeys(("d", "day", "days"), 86_400_000),
}

_SIZE_UNITS: Final[Mapping[str, int]] = {
    "b": 1,
    **dict.fromkeys(("k", "kb", "kib"), 1 << 10),
    **dict.fromkeys(("m", "mb", "mib"), 1 << 20),
    **dict.fromkeys(("g", "gb", "gib"), 1 << 30),
    **dict.fromkeys(("t", "tb", "tib"), 1 << 40),
}

# Nineteen digits hold every long of Java and keep all products far from Python's limit on digits.
_AMOUNT: Final = re.compile(r"([0-9]{1,19})\s*([a-z]*)", re.IGNORECASE | re.ASCII)
_INTEGER: Final = re.compile(r"[0-9]{1,19}")

MAX_LONG: Final = (1 << 63) - 1
"""The largest number that an option takes unless declared otherwise: Java's Long.MAX_VALUE."""


# --- Numbers with and without units --------------------------------------------------------------


def parse_duration(text: str) -> int:
    """Return the milliseconds of `400ms`, `10s`, `2 minutes`, `1h`, `1d`; by default ms."""
    return _amount(text, _DURATION_UNITS, "a duration such as 400ms, 10s or 2 minutes")


def parse_size(text: str) -> int:
    """Return the bytes of `64m`, `64MiB`, `10mb`, `512`. As in Spark, k is 1024."""
    return _amount(text, _SIZE_UNITS, "a size such as 64m, 64MiB or 1048576")


def _amount(text: str, units: Mapping[str, int], expected: str) -> int:
    match = _AMOUNT.fullmatch(text)
    factor = units.get(match[2].lower() or next(iter(units))) if match else None
    if match is None or factor is None:
        raise BadValueError(
            Fault(
                found=shown(text),
                expected=expected,
                next_step="write a whole number and a unit",
            )
        )
    return int(match[1]) * factor


def format_duration(millis: int) -> str:
    """Return the shortest text that `parse_duration` reads as `millis`."""
    return _format(millis, (("d", 86_400_000), ("h", 3_600_000), ("m", 60_000), ("s", 1_000)), "ms")


def format_size(size: int) -> str:
    """Return the shortest text that `parse_size` reads as `size`."""
    return _format(size, (("t", 1 << 40), ("g", 1 << 30), ("m", 1 << 20), ("k", 1 << 10)), "b")


def _format(amount: int, units: tuple[tuple[str, int], ...], smallest: str) -> str:
    for unit, factor in units:
        if amount and amount % factor == 0:
            return f"{amount // factor}{unit}"
    return f"{amount}{smallest}"


def duration(least: int, most: int) -> Callable[[str], int]:
    """Return a converter to milliseconds, both ends included."""
    expected = f"a duration from {format_duration(least)} to {format_duration(most)}"

    def convert(text: str) -> int:
        millis = parse_duration(text)
        if least <= millis <= most:
            return millis
        found = f"{shown(text)}, which is {format_duration(millis)}"
        if text.isdigit():
            found += " (a plain number is milliseconds)"
        raise BadValueError(Fault(found=found, expected=expected, next_step=_adjust(millis, least)))

    return convert


def size(least: int, most: int = MAX_LONG) -> Callable[[str], int]:
    """Return a converter to bytes, both ends included."""
    upper = "" if most == MAX_LONG else f" and at most {format_size(most)}"
    expected = f"a size of at least {format_size(least)}{upper}, such as 64m"

    def convert(text: str) -> int:
        amount = parse_size(text)
        if least <= amount <= most:
            return amount
        raise BadValueError(
            Fault(found=shown(text), expected=expected, next_step=_adjust(amount, least))
        )

    return convert


def integer(least: int, most: int = MAX_LONG) -> Callable[[str], int]:
    """Return a converter to a whole number, both ends included."""
    if most == MAX_LONG:
        expected = f"a whole number of {least} or more"
    else:
        expected = f"a whole number from {least} to {most}"

    def convert(text: str) -> int:
        if _INTEGER.fullmatch(text) is None:
            raise BadValueError(
                Fault(found=shown(text), expected=expected, next_step="write only digits")
            )
        number = int(text)
        if least <= number <= most:
            return number
        raise BadValueError(
            Fault(found=shown(text), expected=expected, next_step=_adjust(number, least))
        )

    return convert


def _adjust(amount: int, least: int) -> str:
    return "give a larger one" if amount < least else "give a smaller one"


# --- Words ---------------------------------------------------------------------------------------


def boolean(text: str) -> bool:
    """Parse `true` or `false`, in any case."""
    match text.lower():
        case "true":
            return True
        case "false":
            return False
    raise BadValueError(
        Fault(found=shown(text), expected="true or false", next_step="write true or false")
    )


def choice(*allowed: str) -> Callable[[str], str]:
    """Return a converter to one of `allowed`, matched in any case."""
    spellings = {word.lower(): word for word in allowed}

    def convert(text: str) -> str:
        if text.lower() in spellings:
            return spellings[text.lower()]
        suggestion = closest(text, spellings)
        raise BadValueError(
            Fault(
                found=shown(text),
                expected=" or ".join(allowed),
                next_step=f"did you mean {suggestion}?"
                if suggestion
                else "write one of the expected values",
            )
        )

    return convert


def member(kind: type[E]) -> Callable[[str], E]:
    """Return a converter to a member of `kind`, matched by its value in any case."""
    convert = choice(*kind)
    return lambda text: kind(convert(text))


def matching(pattern: str, expected: str, next_step: str) -> Callable[[str], str]:
    """Return a converter that accepts full matches of `pattern` (ASCII)."""

    def convert(text: str) -> str:
        if re.fullmatch(pattern, text, re.ASCII):
            return text
        raise BadValueError(Fault(found=shown(text), expected=expected, next_step=next_step))

    return convert


def listed(convert_one: Callable[[str], T]) -> Callable[[str], tuple[T, ...]]:
    """Return a converter of a comma separated list: every faulty or repeated part is reported."""

    def convert(text: str) -> tuple[T, ...]:
        parts = [part.strip() for part in text.split(",")]
        faults: list[Fault] = []
        converted: list[T] = []
        for part in dict.fromkeys(parts):
            try:
                converted.append(convert_one(part))
            except BadValueError as error:
                faults.extend(error.faults)
            if part and parts.count(part) > 1:
                faults.append(
                    Fault(
                        found=f"{shown(part)} {parts.count(part)} times",
                        expected="each entry once",
                        next_step="remove the repetitions",
                    )
                )
        if faults:
            raise BadValueError(*faults)
        return tuple(converted)

    return convert


# --- URLs ----------------------------------------------------------------------------------------


def url(text: str) -> str:
    """Check an http(s) URL of a service: no user, query or fragment. A faulty one is never quoted,
    since it may contain a password."""
    fault = _url_fault(text)
    if fault is None:
        return text
    raise BadValueError(
        Fault(
            found=fault,
            expected="a URL such as https://kinesis.eu-west-1.amazonaws.com or "
            "http://localhost:4567",
            next_step="write scheme, host and, if need be, port and path; nothing else",
        )
    )


def url_or_host(text: str) -> str:
    """Like `url`, but a host without a scheme gets https:// in front."""
    return url(text if "://" in text else f"https://{text}")


def credentials_url(text: str) -> str:
    """Like `url`, for a service that answers with credentials: https, or this machine."""
    if is_readable_on_the_way(url(text)):
        raise BadValueError(
            Fault(
                found="http:// to another machine",
                expected="https://, since the answer holds credentials",
                next_step="write https://",
            )
        )
    return text


def credentials_url_or_host(text: str) -> str:
    """Like `credentials_url`, but a host without a scheme gets https://."""
    return credentials_url(text if "://" in text else f"https://{text}")


@lru_cache(maxsize=64)
def is_loopback(endpoint_url: str | None) -> bool:
    """Return whether the endpoint is on this machine; None is a real endpoint of AWS."""
    try:
        host = urlsplit(endpoint_url or "").hostname or ""
        if host == "localhost" or host.endswith(".localhost"):
            return True
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def is_readable_on_the_way(text: str) -> bool:
    """Return whether a URL is plain http to another machine."""
    return text.lower().startswith("http://") and not is_loopback(text)


def _url_fault(text: str) -> str | None:
    if not text.isascii() or not text.isprintable() or " " in text:
        return "a URL with characters that URLs cannot have"
    if not text.lower().startswith(("http://", "https://")):
        return "a value without http:// or https:// in front"
    try:
        parts = urlsplit(text)
        port = parts.port
    except ValueError:
        return "a URL whose host or port is malformed"
    if "@" in text:
        return "a URL with a user or a password inside"
    if parts.query or parts.fragment or "?" in text or "#" in text:
        return "a URL with a query or a fragment"
    host = parts.hostname or ""
    if port == 0 or not re.fullmatch(r"[a-z0-9._-]+|[0-9a-f:.]+", host):
        return "a URL whose host or port is malformed"
    return None


# --- Hosts of HTTP servers -----------------------------------------------------------------------

# A page of another site can resolve its own name to this machine (DNS rebinding), and then read the
# answers of a server without a token. Its requests name that site as their host.

HOST_REFUSAL: Final = "the Host header must name this machine: 127.0.0.1, localhost or [::1]\n"
"""The answer to a request for another host, with the status 400."""


def base_url(host: str) -> str:
    """Return the URL of a host without its port."""
    return f"http://{f'[{host}]' if ':' in host else host}"


def is_local(host: str) -> bool:
    """Return whether only this machine can reach a server at `host`."""
    return is_loopback(base_url(host))


def names_this_machine(host_header: str | None) -> bool:
    """Return whether the Host header of a request is any loopback address, or localhost."""
    return is_loopback(f"http://{host_header or ''}")
