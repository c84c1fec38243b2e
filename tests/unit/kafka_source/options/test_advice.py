"""The advice of errors about options: once it is followed, that error is gone."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

import pytest

from spark_ssp.common.errors import InvalidOptionsError
from spark_ssp.kafka_source.options.parse import parse_options
from spark_ssp.kafka_source.options.property_names import CONSUMER, PRODUCER, PropertyNames
from spark_ssp.kafka_source.options.values import QueryKind
from spark_ssp.kafka_source.sink.parse import parse_sink_options

Options = Mapping[str, str | None]
"""None removes an option."""

LEAST: Final = {"kafka.bootstrap.servers": "host1:9092", "subscribe": "orders"}
PLAIN: Final = "org.apache.kafka.common.security.plain.PlainLoginModule"
LOGIN: Final = f"{PLAIN} required username='alice' password='p';"
SCRAM: Final = "ScramLoginModule required username=a password=p tokenauth=true;"
KERBEROS: Final = "Krb5LoginModule required"
KEYTAB: Final = "useKeyTab=true keyTab='/k' principal='p@R'"
IAM: Final = "IAMLoginModule required"
MSK: Final = {"kafka.sasl.mechanism": "AWS_MSK_IAM"}
PROVIDER: Final = {"credentialsProvider": "my_company.aws:credentials"}
TOKEN: Final = {"tokenProvider": "my_company.kafka:token"}
OAUTH: Final = {"kafka.security.protocol": "SASL_SSL", "kafka.sasl.mechanism": "OAUTHBEARER"}
JAAS: Final = "kafka.sasl.jaas.config"
HANDLER: Final = "kafka.sasl.login.callback.handler.class"


def _stream(raw: Mapping[str, str]) -> object:
    return parse_options(raw)


def _batch(raw: Mapping[str, str]) -> object:
    return parse_options(raw, QueryKind.BATCH)


def _sink(raw: Mapping[str, str]) -> object:
    return parse_sink_options(raw)


Case = tuple[Callable[[Mapping[str, str]], object], Options, str, Options]
"""How options are parsed, the faulty ones, part of the advice, and the options that follow it."""

OFFSETS: Final = '{"orders": {"0": %d}}'

CASES: Final[Mapping[str, Case]] = {
    "two selections": (_stream, {"assign": '{"t": [0]}'}, "keep one", {"assign": None}),
    "no selection": (_stream, {"subscribe": None}, "name the topics", {"subscribe": "t"}),
    "no brokers": (
        _stream,
        {"kafka.bootstrap.servers": None},
        "name some of the cluster's brokers",
        {"kafka.bootstrap.servers": "h:1"},
    ),
    "an end in a stream": (
        _stream,
        {"endingOffsets": "latest"},
        "remove it, or read with spark.read",
        {"endingOffsets": None},
    ),
    "a start at the latest": (
        _batch,
        {"startingOffsets": "latest"},
        "write an offset",
        {"startingOffsets": OFFSETS % 3},
    ),
    "an end at the earliest": (
        _batch,
        {"endingOffsets": OFFSETS % -2},
        "write an offset",
        {"endingOffsets": OFFSETS % 3},
    ),
    "an end before its start": (
        _batch,
        {"startingOffsets": OFFSETS % 7, "endingOffsets": OFFSETS % 3},
        "swap the start and the end of",
        {"startingOffsets": OFFSETS % 3, "endingOffsets": OFFSETS % 7},
    ),
    "an end of another partition": (
        _batch,
        {"startingOffsets": OFFSETS % 3, "endingOffsets": '{"orders": {"0": 3, "1": 4}}'},
        "in both",
        {"startingOffsets": '{"orders": {"0": 3, "1": 4}}'},
    ),
    "a least above the most": (
        _stream,
        {"minOffsetsPerTrigger": "9", "maxOffsetsPerTrigger": "5"},
        "lower it",
        {"minOffsetsPerTrigger": "5"},
    ),
    "tasks of another grouper": (
        _stream,
        {"grouper": "ssp", "tasks": "4"},
        "use grouper=partition",
        {"grouper": "partition"},
    ),
    "a partitioner by chance": (
        _sink,
        {"includeRepeatHeaders": "true", "kafka.partitioner": "random"},
        "remove it",
        {"kafka.partitioner": None},
    ),
    "a batch without headers": (
        _sink,
        {"batchWriteId": "a:1"},
        "set includeRepeatHeaders=true",
        {"includeRepeatHeaders": "true"},
    ),
    "an empty value": (_stream, {"kafka.client.id": ""}, "set a value", {"kafka.client.id": "me"}),
    "a slip": (
        _stream,
        {"kafka.client.idd": "me"},
        "did you mean kafka.client.id?",
        {"kafka.client.idd": None, "kafka.client.id": "me"},
    ),
    "a null": (_stream, {"kafka.zzz": "1"}, "remove it", {"kafka.zzz": None}),
    "two names": (
        _stream,
        {"kafka.request.timeout.ms": "9", "kafka.socket.timeout.ms": "9"},
        "keep kafka.socket.timeout.ms",
        {"kafka.request.timeout.ms": None},
    ),
    "a login twice": (
        _stream,
        {"kafka.sasl.username": "alice", JAAS: LOGIN},
        "remove kafka.sasl.username",
        {"kafka.sasl.username": None},
    ),
    "a certificate twice": (
        _stream,
        {
            "kafka.ssl.certificate.location": "c.pem",
            "kafka.ssl.keystore.type": "PEM",
            "kafka.ssl.keystore.location": "k.pem",
        },
        "remove kafka.ssl.certificate.location",
        {"kafka.ssl.certificate.location": None},
    ),
    "kinit of java": (
        _stream,
        {"kafka.sasl.kerberos.kinit.cmd": "/usr/bin/kinit"},
        "write it like kinit -R",
        {
            "kafka.sasl.kerberos.kinit.cmd": 'kinit -R -t "%{sasl.kerberos.keytab}" '
            "-k %{sasl.kerberos.principal}"
        },
    ),
    "a user in a url": (
        _stream,
        {"kafka.sasl.oauthbearer.token.endpoint.url": "https://a:b@h/t"},
        "kafka.sasl.oauthbearer.client.secret",
        {
            "kafka.sasl.oauthbearer.token.endpoint.url": "https://h/t",
            "kafka.sasl.oauthbearer.client.id": "a",
            "kafka.sasl.oauthbearer.client.secret": "b",
        },
    ),
    "fewer acknowledgements": (_sink, {"kafka.acks": "1"}, "remove it", {"kafka.acks": None}),
    "no retries and idempotence": (
        _sink,
        {"kafka.retries": "0", "kafka.enable.idempotence": "true"},
        "or kafka.enable.idempotence",
        {"kafka.enable.idempotence": None},
    ),
    "requests in flight and idempotence": (
        _sink,
        {"kafka.max.in.flight": "6", "kafka.enable.idempotence": "true"},
        "or kafka.enable.idempotence",
        {"kafka.enable.idempotence": None},
    ),
    "no retries and transactions": (
        _sink,
        {"topic": "t", "deliveryGuarantee": "exactly-once", "kafka.retries": "0"},
        "remove it",
        {"kafka.retries": None},
    ),
    "a topic of markers beside the topic": (
        _sink,
        {"topic": "t", "deliveryGuarantee": "exactly-once", "markerTopic": "m"},
        "remove it",
        {"markerTopic": None},
    ),
    "a service credential of the source": (
        _stream,
        {"databricks.serviceCredential": "s"},
        "kafka.sasl.mechanism=AWS_MSK_IAM",
        {"databricks.serviceCredential": None, **MSK, **PROVIDER},
    ),
    "a service credential of the sink": (
        _sink,
        {"databricks.serviceCredential": "s"},
        "kafka.sasl.mechanism=AWS_MSK_IAM",
        {"databricks.serviceCredential": None, **MSK, **PROVIDER},
    ),
    "a handler of google": (
        _stream,
        {HANDLER: "com.google.cloud.hosted.kafka.auth.GcpLoginCallbackHandler"},
        "kafka.sasl.mechanism PLAIN",
        {
            HANDLER: None,
            "kafka.sasl.mechanism": "PLAIN",
            "kafka.sasl.username": "u",
            "kafka.sasl.password": "p",
        },
    ),
    "a mistyped key": (
        _stream,
        {JAAS: "OAuthBearerLoginModule required clientId=a clientSecret=b scopes=c;"},
        "did you mean scope?",
        {JAAS: "OAuthBearerLoginModule required clientId=a clientSecret=b scope=c;"},
    ),
    "no module": (_stream, {JAAS: "alice:p"}, "use this form", {JAAS: LOGIN}),
    "no quotation marks": (
        _stream,
        {JAAS: f"{PLAIN} required username=alice password=5;"},
        "values in quotation marks",
        {JAAS: f"{PLAIN} required username='alice' password='5';"},
    ),
    "names in place of a module": (
        _stream,
        {JAAS: "alice:p"},
        "set kafka.sasl.username and kafka.sasl.password",
        {JAAS: None, "kafka.sasl.username": "alice", "kafka.sasl.password": "p"},
    ),
    "another module": (
        _stream,
        {JAAS: "my.LoginModule required;"},
        "use a mechanism that librdkafka has",
        {JAAS: LOGIN, "kafka.sasl.mechanism": "PLAIN"},
    ),
    "a key missing": (_stream, {JAAS: f"{PLAIN} required username=a;"}, "give them", {JAAS: LOGIN}),
    "a key too many": (
        _stream,
        {JAAS: SCRAM},
        "without tokenauth",
        {JAAS: SCRAM.replace("tokenauth=true", "")},
    ),
    "a cache of tickets": (
        _stream,
        {JAAS: f"{KERBEROS} useTicketCache=true;"},
        "give useKeyTab=true with keyTab and principal",
        {JAAS: f"{KERBEROS} {KEYTAB};"},
    ),
    "another handler": (
        _stream,
        {"kafka.sasl.login.callback.handler.class": "my.Handler"},
        "remove it",
        {"kafka.sasl.login.callback.handler.class": None},
    ),
    "an identity without its mechanism": (
        _stream,
        {JAAS: f"{IAM};"},
        "set kafka.sasl.mechanism=AWS_MSK_IAM",
        {JAAS: f"{IAM};", **MSK},
    ),
    "an identity with a password": (
        _stream,
        {JAAS: LOGIN, **MSK},
        "name IAMLoginModule",
        {JAAS: f"software.amazon.msk.auth.iam.{IAM};"},
    ),
    "a profile and a role": (
        _stream,
        {JAAS: f"{IAM} awsProfileName=p awsRoleArn='r';", **MSK},
        "keep one",
        {JAAS: f"{IAM} awsProfileName=p;"},
    ),
    "a key store of another type": (
        _stream,
        {"kafka.ssl.keystore.type": "BKS", "kafka.ssl.keystore.location": "k"},
        "convert the file",
        {"kafka.ssl.keystore.type": "PKCS12"},
    ),
    "a trust store of another type": (
        _stream,
        {"kafka.ssl.truststore.type": "BKS", "kafka.ssl.truststore.location": "t"},
        "convert the file",
        {"kafka.ssl.truststore.type": "PEM"},
    ),
    "a provider without a use": (_stream, PROVIDER, "set kafka.sasl.mechanism=AWS_MSK_IAM", MSK),
    "a provider for a store of files": (
        _stream,
        {**PROVIDER, "assignmentStore": "file:///tmp/a"},
        "or remove it",
        {"assignmentStore": "s3://lake/a"},
    ),
    "a provider and a profile": (
        _stream,
        {**PROVIDER, **MSK, JAAS: f"{IAM} awsProfileName=etl;"},
        "remove awsProfileName in kafka.sasl.jaas.config",
        {JAAS: f"{IAM} awsRoleArn='arn:aws:iam::1:role/r';"},
    ),
    "arguments of no provider": (
        _sink,
        {"credentialsProviderSecretArguments": "{}", **MSK},
        "give credentialsProvider too",
        PROVIDER,
    ),
    "tokens without a mechanism": (
        _stream,
        {**TOKEN, "kafka.security.protocol": "SASL_SSL"},
        "set kafka.sasl.mechanism=OAUTHBEARER",
        OAUTH,
    ),
    "tokens for a login by password": (
        _sink,
        {**TOKEN, **OAUTH, "kafka.sasl.mechanism": "PLAIN"},
        "set kafka.sasl.mechanism=OAUTHBEARER",
        OAUTH,
    ),
    "tokens without a login": (
        _batch,
        {**TOKEN, "kafka.sasl.mechanism": "OAUTHBEARER"},
        "set kafka.security.protocol=SASL_SSL",
        OAUTH,
    ),
    "tokens of two sources": (
        _sink,
        {**TOKEN, **OAUTH, JAAS: "OAuthBearerLoginModule required clientId=a clientSecret=b;"},
        f"remove {JAAS}",
        {JAAS: "OAuthBearerLoginModule required;"},
    ),
    "tokens and a handler": (
        _stream,
        {**TOKEN, **OAUTH, HANDLER: "a.OAuthBearerLoginCallbackHandler"},
        f"remove {HANDLER}",
        {HANDLER: None, "kafka.sasl.oauthbearer.method": "default"},
    ),
    "tokens and extensions": (
        _stream,
        {**TOKEN, **OAUTH, "kafka.sasl.oauthbearer.extensions": "a=b"},
        "remove kafka.sasl.oauthbearer.extensions",
        {"kafka.sasl.oauthbearer.extensions": None},
    ),
    "tokens and a login of aws": (
        _stream,
        {**TOKEN, **OAUTH, **MSK},
        "set kafka.sasl.mechanism=OAUTHBEARER",
        OAUTH,
    ),
    "arguments of no function of tokens": (
        _stream,
        {"tokenProviderSecretArguments": "{}", **OAUTH},
        "give tokenProvider too",
        TOKEN,
    ),
    "pkcs12 under a name of jks": (
        _stream,
        {"kafka.ssl.keystore.location": "k.jks"},
        "only set the type if the file is PKCS#12 already",
        {"kafka.ssl.keystore.type": "PKCS12"},
    ),
}


@pytest.mark.parametrize("case", CASES.values(), ids=CASES.keys())
def test_an_error_is_gone_once_its_advice_is_followed(case: Case) -> None:
    parse, faulty, advice, followed = case
    given = _merged(LEAST, faulty)
    with pytest.raises(InvalidOptionsError) as caught:
        parse(given)
    assert advice in " ".join(problem.next_step for problem in caught.value.problems)
    parse(_merged(given, followed))


def _merged(options: Mapping[str, str], changes: Options) -> dict[str, str]:
    merged: dict[str, Any] = {**options, **changes}
    return {name: value for name, value in merged.items() if value is not None}


@pytest.mark.parametrize(("names", "parse"), [(CONSUMER, _stream), (PRODUCER, _sink)])
def test_a_refused_property_can_be_removed(
    names: PropertyNames, parse: Callable[[Mapping[str, str]], object]
) -> None:
    least = LEAST if parse is _stream else {"kafka.bootstrap.servers": "h:1"}
    for name in names.refused:
        with pytest.raises(InvalidOptionsError, match="remove it"):
            parse({**least, f"kafka.{name}": "x"})
    parse(least)


@pytest.mark.parametrize("names", [CONSUMER, PRODUCER], ids=lambda names: str(names.client))
def test_what_advice_names_exists(names: PropertyNames) -> None:
    """Each `kafka.<name>` in the advice of a property is one that is taken."""
    words = " ".join([*names.refused.values(), *names.without_effect.values()]).split()
    named = {word.strip(",;:").removeprefix("kafka.") for word in words if "kafka." in word}
    assert named
    assert named <= {*names.supported, *names.aliases}
