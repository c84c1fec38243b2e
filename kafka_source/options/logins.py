"""Translates the Java client's logins and stores of keys for librdkafka. Login modules and handlers
(SASL) become librdkafka's properties; logins by AWS's IAM are detected. Key stores and trust stores
become files that librdkafka accepts: keys as PEM or PKCS#12, authorities only as PEM."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final

from spark_ssp.common.errors import shown
from spark_ssp.common.options.endpoints import ConnectionOptions
from spark_ssp.common.options.spec import BadValueError, Fault, bad_value, closest
from spark_ssp.kafka_source.options.property_names import words
from spark_ssp.kafka_source.options.property_values import (
    KEYSTORE,
    PropertyDraft,
    url_without_user,
)

_JAAS: Final = "sasl.jaas.config"
_LOGIN_HANDLER: Final = "sasl.login.callback.handler.class"
_CLIENT_HANDLER: Final = "sasl.client.callback.handler.class"
MECHANISM: Final = "sasl.mechanism"
_IAM_MECHANISM: Final = "AWS_MSK_IAM"
OAUTHBEARER: Final = "OAUTHBEARER"
_IAM_MODULE: Final = "IAMLoginModule"
_OAUTH_MODULE: Final = "OAuthBearerLoginModule"
_OAUTH_HANDLER: Final = "OAuthBearerLoginCallbackHandler"
_STRIMZI_HANDLER: Final = "JaasClientOauthLoginCallbackHandler"
_OIDC_HANDLERS: Final = frozenset({_OAUTH_HANDLER, _STRIMZI_HANDLER})
_ROUTES: Final = {
    "GcpLoginCallbackHandler": "remove it, and name a function that returns Google's tokens by "
    "tokenProvider; or log in by kafka.sasl.mechanism PLAIN, with a service account's e-mail "
    "address as kafka.sasl.username and its key file in base64 as kafka.sasl.password; or run "
    "Google's local authentication server beside the driver and every executor, as "
    "kafka.sasl.oauthbearer.token.endpoint.url",
}
"""The next step for handlers of others, by their simple names."""
_ANY_ROUTE: Final = (
    "remove it, and use a login that librdkafka has: see kafka.sasl.mechanism and "
    "kafka.sasl.oauthbearer.method; or name a function that returns the tokens by tokenProvider"
)
_IAM_LOGIN_HANDLER: Final = "IAMOAuthBearerLoginCallbackHandler"
_IAM_CLIENT_HANDLERS: Final = frozenset({"IAMClientCallbackHandler", _IAM_LOGIN_HANDLER})
METHOD: Final = "sasl.oauthbearer.method"
_OTHER_TOKEN_PROPERTIES: Final = ("sasl.oauthbearer.config", METHOD)
DEFAULT_METHOD: Final = "default"
"""librdkafka's default for `sasl.oauthbearer.method`: tokens come from a callback."""
_REGION: Final = re.compile(
    r"\.kafka(?:-serverless)?\.([a-z]{2}(?:-[a-z]+)+-\d+)\.amazonaws\.com(?:\.cn)?(?::|,|\s|$)"
)


def read_logins(given: Mapping[str, str], draft: PropertyDraft) -> None:
    """Translate the properties of logins; `draft` contains those that are passed on unchanged."""
    module = None
    if given.get(_JAAS):
        try:
            module = parse_jaas(given[_JAAS])
        except BadValueError as error:
            draft.add_faults(_JAAS, error)
            return
    if _is_iam(given, module, draft):
        _configure_iam(given, module, draft)
        return
    if module is not None:
        try:
            translated = _translate_module(module)
        except BadValueError as error:
            draft.add_faults(_JAAS, error)
        else:
            for name, value in translated.items():
                draft.put(name, value, _JAAS)
    _translate_handlers(given, draft)


def _translate_handlers(given: Mapping[str, str], draft: PropertyDraft) -> None:
    handler = given.get(_LOGIN_HANDLER, "")
    if _simple_name(handler) in _OIDC_HANDLERS:
        draft.put(METHOD, "oidc", _LOGIN_HANDLER)
    elif handler:
        _refuse_handler(_LOGIN_HANDLER, handler, draft)
    if given.get(_CLIENT_HANDLER):
        _refuse_handler(_CLIENT_HANDLER, given[_CLIENT_HANDLER], draft)


def _refuse_handler(name: str, handler: str, draft: PropertyDraft) -> None:
    draft.add_problem(
        name,
        found=f"{shown(handler)}, a Java class",
        expected="Kafka's own OAuthBearerLoginCallbackHandler, Strimzi's "
        f"{_STRIMZI_HANDLER}, the handlers of Amazon MSK's IAM, or no handler",
        next_step=_ROUTES.get(_simple_name(handler), _ANY_ROUTE),
    )


def _simple_name(name: str) -> str:
    return name.rpartition(".")[2]


# --- The login modules of Kafka -------------------------------------------------------------------


def _translate_module(module: LoginModule) -> dict[str, str]:
    name = _simple_name(module.name)
    translate = _MODULES.get(name)
    if translate is None:
        raise bad_value(
            f"the login module {module.name}",
            f"one of {', '.join(sorted((*_MODULES, _IAM_MODULE)))}",
            "Java classes cannot run here: use a mechanism that librdkafka has "
            "(kafka.sasl.mechanism PLAIN, SCRAM-SHA-256, SCRAM-SHA-512 or OAUTHBEARER)",
        )
    return translate(name, module.options)


def _password(name: str, options: Mapping[str, str]) -> dict[str, str]:
    """PLAIN and SCRAM."""
    if options.get("tokenauth", "false").lower() != "false":
        raise bad_value(
            f"{name} with tokenauth: a delegation token",
            "a user and a password",
            "give a user's own name and password without tokenauth: librdkafka does not log in by "
            "Kafka's delegation tokens",
        )
    _check_keys(name, options, required=("username", "password"), allowed=("tokenauth",))
    return {"sasl.username": options["username"], "sasl.password": options["password"]}


def _kerberos(name: str, options: Mapping[str, str]) -> dict[str, str]:
    if options.get("useTicketCache", "false").lower() == "true":
        raise bad_value(
            f"{name} with useTicketCache",
            "a keytab",
            "give useKeyTab=true with keyTab and principal",
        )
    _check_keys(
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
        return {}  # Other properties set the credentials.
    if any(key.startswith("oauth.") for key in options):
        return _strimzi(name, options)
    extensions = {key: value for key, value in options.items() if key.startswith("extension_")}
    _check_keys(
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


def _strimzi(name: str, options: Mapping[str, str]) -> dict[str, str]:
    """The keys of Strimzi's handler that librdkafka has a property for."""
    required = ("oauth.client.id", "oauth.client.secret", "oauth.token.endpoint.uri")
    _check_keys(name, options, required=required, allowed=("oauth.scope",))
    properties = {
        "sasl.oauthbearer.client.id": options["oauth.client.id"],
        "sasl.oauthbearer.client.secret": options["oauth.client.secret"],
        "sasl.oauthbearer.token.endpoint.url": url_without_user(
            options["oauth.token.endpoint.uri"]
        ),
    }
    if "oauth.scope" in options:
        properties["sasl.oauthbearer.scope"] = options["oauth.scope"]
    return properties


_MODULES: Final[Mapping[str, Callable[[str, Mapping[str, str]], dict[str, str]]]] = {
    "PlainLoginModule": _password,
    "ScramLoginModule": _password,
    "Krb5LoginModule": _kerberos,
    _OAUTH_MODULE: _oauth,
}


# --- AWS's IAM ------------------------------------------------------------------------------------


def _is_iam(given: Mapping[str, str], module: LoginModule | None, draft: PropertyDraft) -> bool:
    return (
        draft.values.get(MECHANISM, "").upper() == _IAM_MECHANISM
        or (module is not None and _simple_name(module.name) == _IAM_MODULE)
        or _simple_name(given.get(_LOGIN_HANDLER, "")) == _IAM_LOGIN_HANDLER
    )


def _configure_iam(
    given: Mapping[str, str], module: LoginModule | None, draft: PropertyDraft
) -> None:
    """Log in by OAUTHBEARER: brokers of Amazon MSK accept IAM credentials as such a token too."""
    mechanism = draft.values.get(MECHANISM, "")
    if mechanism.upper() not in (_IAM_MECHANISM, OAUTHBEARER):
        draft.add_problem(
            MECHANISM,
            found=f"{shown(mechanism) if mechanism else 'no mechanism'} with a login of AWS's IAM",
            expected=_IAM_MECHANISM,
            next_step=f"set kafka.sasl.mechanism={_IAM_MECHANISM}",
        )
    if module is not None and _simple_name(module.name) not in (_IAM_MODULE, _OAUTH_MODULE):
        draft.add_problem(
            _JAAS,
            found=f"the login module {module.name} with a login of AWS's IAM",
            expected=f"software.amazon.msk.auth.iam.{_IAM_MODULE} required;",
            next_step=f"name {_IAM_MODULE}, or remove the option",
        )
    elif module is not None:
        _read_iam_options(module, draft)
    handler = given.get(_LOGIN_HANDLER, "")
    if handler and _simple_name(handler) != _IAM_LOGIN_HANDLER:
        _refuse_handler(_LOGIN_HANDLER, handler, draft)
    handler = given.get(_CLIENT_HANDLER, "")
    if handler and _simple_name(handler) not in _IAM_CLIENT_HANDLERS:
        _refuse_handler(_CLIENT_HANDLER, handler, draft)
    for name in _OTHER_TOKEN_PROPERTIES:
        if draft.values.get(name, DEFAULT_METHOD) != DEFAULT_METHOD:
            draft.add_problem(
                name,
                found="a token of another kind with a login of AWS's IAM",
                expected="one login: tokens of AWS's IAM take no such property",
                next_step="remove it",
            )
    draft.values[MECHANISM] = OAUTHBEARER
    if draft.iam is None:
        draft.iam = _connection({}, draft)


def _read_iam_options(module: LoginModule, draft: PropertyDraft) -> None:
    name, options = _simple_name(module.name), module.options
    try:
        _check_keys(name, options, required=(), allowed=(*_IAM_OPTIONS, *_IAM_WITHOUT_EFFECT))
        if "awsProfileName" in options and "awsRoleArn" in options:
            raise bad_value(
                f"{name} with awsProfileName and awsRoleArn",
                "one of them",
                "keep one: a profile can name a role by role_arn",
            )
    except BadValueError as error:
        draft.add_faults(_JAAS, error)
        return
    draft.iam = _connection(options, draft)


_IAM_OPTIONS: Final = (
    "awsProfileName",
    "awsRoleArn",
    "awsRoleExternalId",
    "awsRoleSessionName",
    "awsStsRegion",
)
_IAM_WITHOUT_EFFECT: Final = ("awsDebugCreds", "awsMaxBackOffTimeMs", "awsMaxRetries")


def _connection(options: Mapping[str, str], draft: PropertyDraft) -> ConnectionOptions:
    """Return the identity that signs; `region` is where the role is assumed."""
    return ConnectionOptions(
        region=options.get("awsStsRegion") or region_of(draft.values.get("bootstrap.servers", "")),
        aws_profile=options.get("awsProfileName"),
        role_arn=options.get("awsRoleArn"),
        role_session_name=options.get("awsRoleSessionName"),
        role_external_id=options.get("awsRoleExternalId"),
    )


def region_of(bootstrap_servers: str) -> str | None:
    """Return the AWS region that the brokers' names contain, if they are those of Amazon MSK."""
    found = _REGION.search(bootstrap_servers)
    return None if found is None else found[1]


def _check_keys(
    name: str,
    options: Mapping[str, str],
    *,
    required: tuple[str, ...],
    allowed: tuple[str, ...] = (),
) -> None:
    missing = [key for key in required if not options.get(key)]
    if missing:
        raise bad_value(
            f"{name} without {' and '.join(missing)}",
            f"{name} with {' and '.join(required)}",
            "give them",
        )
    taken = (*required, *allowed)
    others = [key for key in options if key not in taken]
    if others:
        places = {key: place for place, key in enumerate(options, start=1)}
        named = [
            key if key in _JAVA_KEYS else f"an unknown key in place {places[key]}" for key in others
        ]
        meant = [found for key in others if (found := closest(key, {one: one for one in taken}))]
        raise bad_value(
            f"{name} with {' and '.join(named)}",
            f"{name} with {', '.join(taken)}",
            f"did you mean {' and '.join(meant)}?"
            if len(meant) == len(others)
            else "remove the others, which have no equivalent here",
        )


_JAVA_KEYS: Final = words(
    """
    awsRoleAccessKeyId awsRoleSecretAccessKey awsRoleSessionToken clearPass clientId
    clientSecret isInitiator keyTab oauth.access.token oauth.access.token.is.jwt
    oauth.audience oauth.client.assertion oauth.connect.timeout.seconds
    oauth.max.token.expiry.seconds oauth.password.grant.password
    oauth.password.grant.username oauth.read.timeout.seconds oauth.refresh.token
    oauth.sasl.extension.key oauth.ssl.truststore.location oauth.ssl.truststore.password
    oauth.ssl.truststore.type oauth.username.claim password principal renewTGT scope
    storePass ticketCache tokenauth tryFirstPass unsecuredLoginLifetimeSeconds
    unsecuredLoginPrincipalClaimName unsecuredLoginScopeClaimName
    unsecuredLoginStringClaim_sub useFirstPass username
    """
)
"""Keys of Java's login modules, which an error may name. Another word may be part of a secret that
is not quoted as it must be."""


# --- The grammar of `sasl.jaas.config`: one login module with its options -------------------------

# That of Kafka's own parser, Java's `StreamTokenizer`: a word begins with a letter and consists of
# letters, digits and `.-_$`; values in single or double quotes, which end with the line, have
# backslash escapes; a number without quotes is not a value; and a `/` outside of quotes begins a
# comment. The text contains passwords, so messages quote only the class's name.

_CLASS: Final = re.compile(r"[A-Za-z_$][\w$]*(\.[A-Za-z_$][\w$]*)*", re.ASCII)
_FLAGS: Final = frozenset({"REQUIRED", "REQUISITE", "SUFFICIENT", "OPTIONAL"})
_TOKEN: Final = re.compile(
    r"""
    (?P<space> [\x00-\x20]+ | /\*.*?(?:\*/|\Z) | /.?[^\n\r]* )
    | (?P<mark>["']) (?P<quoted>(?:\\. | (?!(?P=mark))[^\\\n\r])*) (?:(?P=mark) | \\\Z)?
    | (?P<word>[A-Za-z_$\xa0-\U0010ffff][A-Za-z_$\xa0-\U0010ffff0-9.-]*)
    | (?P<number> \.[0-9]* | [0-9-][0-9]*(?:\.[0-9]*)? )
    | (?P<sign>.)
    """,
    re.DOTALL | re.VERBOSE,
)
_ESCAPE: Final = re.compile(
    r"\\(?:(?P<octal>[0-3][0-7]{0,2}|[4-7][0-7]?)|(?P<letter>.))", re.DOTALL
)
_ESCAPES: Final = {"a": "\a", "b": "\b", "f": "\f", "n": "\n", "r": "\r", "t": "\t", "v": "\v"}
_EXPECTED: Final = (
    "one login module, such as org.apache.kafka.common.security.plain.PlainLoginModule required "
    'username="…" password="…";'
)


@dataclass(frozen=True, slots=True, kw_only=True)
class LoginModule:
    """A Java class and its options, which contain secrets."""

    name: str
    options: dict[str, str] = field(repr=False)


@dataclass(frozen=True, slots=True)
class _Token:
    """A word or a quoted value (`text`), or a single character that is neither (`sign`)."""

    text: str | None = None
    sign: str | None = None


def parse_jaas(text: str) -> LoginModule:
    """Parse the login module in `text`. Raises BadValueError."""
    tokens = list(_tokens(text))
    if not tokens or tokens[-1].sign != ";":
        raise _malformed("a text that does not end with ;")
    name = tokens[0].text
    if name is None or not _CLASS.fullmatch(name) or len(tokens) < 3:
        raise _malformed("a text that does not begin with a class and required")
    if (tokens[1].text or "").upper() not in _FLAGS:
        raise _malformed("a text that does not begin with a class and required")
    options: dict[str, str] = {}
    place = 2
    while tokens[place].sign != ";":
        entry = tokens[place : place + 3]
        if len(entry) < 3 or entry[0].text is None or entry[1].sign != "=":
            raise _malformed(f"the login module {name} with something other than key=value")
        if entry[2].text is None:
            raise _malformed(f"the login module {name} with a key without a value")
        # As in Kafka, the last one counts.
        options[entry[0].text] = entry[2].text
        place += 3
    if place != len(tokens) - 1:
        raise _malformed("more than one login module")
    return LoginModule(name=name, options=options)


def _tokens(text: str) -> Iterator[_Token]:
    for match in _TOKEN.finditer(text):
        if match["mark"] is not None:
            yield _Token(text=_ESCAPE.sub(_unescaped, match["quoted"]))
        elif match["word"] is not None:
            yield _Token(text=match["word"])
        elif match["space"] is None:
            yield _Token(sign=match[0][0])


def _unescaped(match: re.Match[str]) -> str:
    if match["octal"] is not None:
        return chr(int(match["octal"], 8))
    return _ESCAPES.get(match["letter"], match["letter"])


def _malformed(found: str) -> BadValueError:
    return BadValueError(
        Fault(
            found=found,
            expected=_EXPECTED,
            next_step="use this form, with values in quotation marks, or set "
            "kafka.sasl.username and kafka.sasl.password instead",
        )
    )


# --- Key stores and trust stores ------------------------------------------------------------------

_KEYSTORE_TYPE: Final = "ssl.keystore.type"
_TRUSTSTORE: Final = "ssl.truststore.location"
_TRUSTSTORE_TYPE: Final = "ssl.truststore.type"
_TRUSTSTORE_SECRET: Final = "ssl.truststore.password"
_TYPES: Final = ("", "JKS", "PKCS12", "PEM")


def read_stores(given: Mapping[str, str], draft: PropertyDraft) -> None:
    """Translate the properties of stores."""
    _translate_keystore(given, draft)
    _translate_truststore(given, draft)


def _translate_keystore(given: Mapping[str, str], draft: PropertyDraft) -> None:
    keystore, kind = given.get(KEYSTORE), given.get(_KEYSTORE_TYPE, "").upper()
    if kind not in _TYPES:
        draft.add_faults(_KEYSTORE_TYPE, _unknown_type(given[_KEYSTORE_TYPE], "PKCS12 or PEM"))
    elif keystore and kind == "PEM":
        draft.put("ssl.certificate.location", keystore, KEYSTORE)
        draft.put("ssl.key.location", keystore, KEYSTORE)
    elif kind == "JKS" or (not kind and (keystore or "").lower().endswith(".jks")):
        draft.add_problem(
            KEYSTORE,
            found="a Java key store (JKS)",
            expected="a PKCS#12 file, or PEM files by kafka.ssl.certificate.location and "
            "kafka.ssl.key.location",
            next_step="convert it by keytool -importkeystore -srckeystore <it> -destkeystore "
            "<new>.p12 -deststoretype PKCS12, give the new file, and set "
            "kafka.ssl.keystore.type=PKCS12; only set the type if the file is PKCS#12 already, the "
            "default of keytool since Java 9",
        )
    elif keystore:
        draft.put(KEYSTORE, keystore, KEYSTORE)


def _translate_truststore(given: Mapping[str, str], draft: PropertyDraft) -> None:
    authorities, kind = given.get(_TRUSTSTORE), given.get(_TRUSTSTORE_TYPE, "").upper()
    if kind not in _TYPES:
        draft.add_faults(_TRUSTSTORE_TYPE, _unknown_type(given[_TRUSTSTORE_TYPE], "PEM"))
    elif authorities and kind == "PEM":
        draft.put("ssl.ca.location", authorities, _TRUSTSTORE)
    elif authorities or kind in ("JKS", "PKCS12"):
        draft.add_problem(
            _TRUSTSTORE,
            found="a Java trust store",
            expected="the authorities' certificates as PEM, by kafka.ssl.ca.location",
            next_step="export them by keytool -list -rfc -keystore <it> > ca.pem, set that file by "
            "kafka.ssl.ca.location, and remove kafka.ssl.truststore.*",
        )
    if given.get(_TRUSTSTORE_SECRET):
        draft.add_problem(
            _TRUSTSTORE_SECRET,
            found="a password of certificates, which are public",
            expected="the authorities' certificates as PEM, by kafka.ssl.ca.location",
            next_step="remove it",
        )


def _unknown_type(found: str, expected: str) -> BadValueError:
    return BadValueError(
        Fault(found=shown(found), expected=expected, next_step=f"convert the file to {expected}")
    )
