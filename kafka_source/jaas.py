"""Kafka's `sasl.jaas.config`, as far as librdkafka has properties for it.

One login module, as the Java client takes it: `<class> required <key>=<value> …;`, values bare or
in double quotes with backslash escapes. The text holds passwords, so no message quotes more of it
than the class's name.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Final

from ssp_common.options import BadValueError, Fault

_TOKEN: Final = re.compile(r'\s*(?:"((?:[^"\\]|\\.)*)"|([^\s"=;]+)|(=)|(;))', re.DOTALL)
_CLASS: Final = re.compile(r"[A-Za-z_$][\w$]*(\.[A-Za-z_$][\w$]*)*", re.ASCII)
_KEY: Final = re.compile(r"[A-Za-z_][\w.-]*", re.ASCII)
_FLAGS: Final = frozenset({"required", "requisite", "sufficient", "optional"})

_EXPECTED: Final = (
    "one login module, such as org.apache.kafka.common.security.plain.PlainLoginModule required "
    'username="…" password="…";'
)


def parse_jaas(text: str) -> dict[str, str]:
    """librdkafka's properties for the login module in `text`. Raises BadValueError."""
    module, options = _module(text)
    name = module.rpartition(".")[2]
    translate = _MODULES.get(name)
    if translate is None:
        raise _bad(
            f"the login module {module}",
            f"one of {', '.join(sorted(_MODULES))}",
            "a class of Java cannot run here: use a mechanism that librdkafka has "
            "(kafka.sasl.mechanism PLAIN, SCRAM-SHA-256, SCRAM-SHA-512, GSSAPI or OAUTHBEARER)",
        )
    return translate(name, options)


def _module(text: str) -> tuple[str, dict[str, str]]:
    tokens = _tokens(text)
    if len(tokens) < 3 or tokens[-1] != ("sign", ";"):
        raise _malformed("a text that does not end with ;")
    (_, module), (_, flag) = tokens[0], tokens[1]
    if not _CLASS.fullmatch(module) or flag.lower() not in _FLAGS:
        raise _malformed("a text that does not begin with a class and required")
    options: dict[str, str] = {}
    entries = tokens[2:-1]
    if len(entries) % 3:
        raise _malformed(f"the login module {module} with a key or a value missing")
    for start in range(0, len(entries), 3):
        (_, key), sign, (kind, value) = entries[start : start + 3]
        if sign != ("sign", "=") or kind == "sign" or not _KEY.fullmatch(key):
            raise _malformed(f"the login module {module} with something other than key=value")
        if key in options:
            raise _malformed(f"the login module {module} with a key twice")
        options[key] = value
    return module, options


def _tokens(text: str) -> list[tuple[str, str]]:
    tokens: list[tuple[str, str]] = []
    place, end = 0, len(text.rstrip())
    while place < end:
        match = _TOKEN.match(text, place)
        if match is None:
            raise _malformed("a text with an unclosed quotation mark")
        quoted, word, equals, semicolon = match.groups()
        if quoted is not None:
            tokens.append(("value", re.sub(r"\\(.)", r"\1", quoted, flags=re.DOTALL)))
        elif word is not None:
            tokens.append(("word", word))
        else:
            tokens.append(("sign", equals or semicolon))
        place = match.end()
    return tokens


# --- The modules ----------------------------------------------------------------------------------


def _password(name: str, options: Mapping[str, str]) -> dict[str, str]:
    """PLAIN and SCRAM."""
    _only(name, options, required=("username", "password"))
    return {"sasl.username": options["username"], "sasl.password": options["password"]}


def _kerberos(name: str, options: Mapping[str, str]) -> dict[str, str]:
    if options.get("useTicketCache", "false").lower() == "true":
        raise _bad(
            f"{name} with useTicketCache",
            "a keytab",
            "give useKeyTab=true with keyTab and principal",
        )
    _only(
        name,
        options,
        required=("keyTab", "principal"),
        allowed=(
            "serviceName",
            "useKeyTab",
            "storeKey",
            "useTicketCache",
            "doNotPrompt",
            "refreshKrb5Config",
            "debug",
        ),
    )
    properties = {
        "sasl.kerberos.keytab": options["keyTab"],
        "sasl.kerberos.principal": options["principal"],
    }
    if "serviceName" in options:
        properties["sasl.kerberos.service.name"] = options["serviceName"]
    return properties


def _oauth(name: str, options: Mapping[str, str]) -> dict[str, str]:
    if not options:
        return {}  # The credentials stand in properties of their own.
    extensions = {key: value for key, value in options.items() if key.startswith("extension_")}
    _only(
        name,
        options,
        required=("clientId", "clientSecret"),
        allowed=("scope", *extensions),
    )
    properties = {
        "sasl.oauthbearer.client.id": options["clientId"],
        "sasl.oauthbearer.client.secret": options["clientSecret"],
    }
    if "scope" in options:
        properties["sasl.oauthbearer.scope"] = options["scope"]
    if extensions:
        properties["sasl.oauthbearer.extensions"] = ",".join(
            f"{key.removeprefix('extension_')}={extensions[key]}" for key in sorted(extensions)
        )
    return properties


_MODULES: Final[Mapping[str, Callable[[str, Mapping[str, str]], dict[str, str]]]] = {
    "PlainLoginModule": _password,
    "ScramLoginModule": _password,
    "Krb5LoginModule": _kerberos,
    "OAuthBearerLoginModule": _oauth,
}


def _only(
    name: str,
    options: Mapping[str, str],
    *,
    required: tuple[str, ...],
    allowed: tuple[str, ...] = (),
) -> None:
    missing = [key for key in required if not options.get(key)]
    if missing:
        raise _bad(
            f"{name} without {' and '.join(missing)}",
            f"{name} with {' and '.join(required)}",
            "give them",
        )
    if options.keys() - {*required, *allowed}:
        raise _bad(
            f"{name} with other keys than its own",
            f"{name} with {', '.join((*required, *allowed))}",
            "remove the others: librdkafka has nothing like them",
        )


def _malformed(found: str) -> BadValueError:
    return _bad(found, _EXPECTED, "write it like that, or set kafka.sasl.username and the like")


def _bad(found: str, expected: str, next_step: str) -> BadValueError:
    return BadValueError(Fault(found=found, expected=expected, next_step=next_step))
