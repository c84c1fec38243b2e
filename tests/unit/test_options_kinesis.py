"""The options of the Kinesis source, from Spark's map of text to `KinesisOptions`."""

from __future__ import annotations

import dataclasses
import logging
import pickle
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kinesis_source.model import (
    AtTimestamp,
    EpochMillis,
    Latest,
    StartingPosition,
    StreamRef,
    TrimHorizon,
)
from kinesis_source.option_table import KINESIS_OPTIONS
from kinesis_source.options import (
    ConnectionOptions,
    InvalidOptionsError,
    KinesisOptions,
    SlotAssignment,
    parse_options,
)
from ssp_common.errors import OptionProblem
from task_grouping.identifiers import StreamName

CANARY = "Canary/wJalrXUtnFEMI+K7MDENG"
ARN = "arn:aws:kinesis:eu-west-1:123456789012:stream/orders"
ROLE = "arn:aws:iam::123456789012:role/team/reader"

GOOD: dict[str, str] = {
    "streamName": "orders",
    "streamARN": ARN,
    "region": "eu-west-1",
    "endpointUrl": "http://localhost:4567",
    "startingPosition": "trim_horizon",
    "consumerMode": "polling",
    "failOnDataLoss": "false",
    "deaggregate": "false",
    "slots": "16",
    "slotAssignment": "hash-range",
    "maxRecordsPerTrigger": "100000",
    "maxBytesPerTrigger": "1g",
    "shardDiscoveryInterval": "30s",
    "maxRecordsPerFetch": "500",
    "minFetchPeriod": "1s",
    "maxBytesInFlight": "32MiB",
    "awsProfile": "reader",
    "awsAccessKeyId": "AKIAIOSFODNN7EXAMPLE",
    "awsSecretAccessKey": CANARY,
    "awsSessionToken": CANARY,
    "roleArn": ROLE,
    "roleExternalId": CANARY,
    "roleSessionName": "orders-query",
    "stsEndpointUrl": "https://sts.eu-west-1.amazonaws.com",
    "retry.maxAttempts": "3",
    "retry.maxBackoff": "2s",
    "connectTimeout": "5s",
    "readTimeout": "1 minute",
}
"""A valid value of every option."""

BAD: dict[str, tuple[str, ...]] = {
    "streamName": ("my stream", "a" * 129, ARN, "orders,orders", "orders,"),
    "streamARN": ("orders", f"{ARN},{ARN}", ARN.replace("kinesis", "sqs"), f"{ARN}/consumer/x:1"),
    "region": ("eu-west-1a", "EU West", "eu_west_1", "-"),
    "endpointUrl": ("localhost:4567", "ftp://host", f"http://user:{CANARY}@host"),
    "startingPosition": ("lates", "at_timestamp", "{", '{"shardId-0": 1}'),
    "consumerMode": ("efo", "EFO", "push"),
    "failOnDataLoss": ("yes", "0"),
    "deaggregate": ("on", "2"),
    "slots": ("0", "-1", "many", "1.5"),
    "slotAssignment": ("hash_range", "random"),
    "maxRecordsPerTrigger": ("0", "1k"),
    "maxBytesPerTrigger": ("0", "much", "1.5g"),
    "shardDiscoveryInterval": ("10", "2d", "soon"),
    "maxRecordsPerFetch": ("0", "10001", "10_000"),
    "minFetchPeriod": ("199ms", "5m", "0.4s"),
    "maxBytesInFlight": ("1023k", "64 megs"),
    "awsProfile": ("a\nb", "\u00e4"),
    "awsAccessKeyId": (f"{CANARY} x",),
    "awsSecretAccessKey": (f"{CANARY}\n{CANARY}",),
    "awsSessionToken": (f"{CANARY}\u00e4",),
    "roleArn": ("reader", ROLE.replace("role", "user")),
    "roleExternalId": ("x", f"{CANARY} x"),
    "roleSessionName": ("x", "orders query", "x" * 65),
    "stsEndpointUrl": ("sts.eu-west-1.amazonaws.com", f"https://{CANARY}@host"),
    "retry.maxAttempts": ("0", "101"),
    "retry.maxBackoff": ("10", "1h"),
    "connectTimeout": ("10", "1h"),
    "readTimeout": ("30", "1h"),
}
"""For every option, values that are wrong whatever the others are."""

NEEDS: dict[str, dict[str, str]] = {
    "awsAccessKeyId": {"awsSecretAccessKey": "secret"},
    "awsSecretAccessKey": {"awsAccessKeyId": "key"},
    "awsSessionToken": {"awsAccessKeyId": "key", "awsSecretAccessKey": "secret"},
    "roleExternalId": {"roleArn": ROLE},
    "roleSessionName": {"roleArn": ROLE},
    "stsEndpointUrl": {"roleArn": ROLE},
}
"""What an option is never given without."""

SPECS = {spec.name: spec for spec in KINESIS_OPTIONS.specs}
ALIASES = {alias.name: spec.name for spec in KINESIS_OPTIONS.specs for alias in spec.aliases}
STREAM_OPTIONS = {name for name in SPECS if name.startswith("stream")}


def with_stream(raw: dict[str, str], *, option: str = "") -> dict[str, str]:
    """`raw` with a stream to read, unless it (or `option`) says which."""
    named = {SPECS[option].name if option in SPECS else ALIASES.get(option, "")}
    named |= {ALIASES.get(name, name) for name in raw}
    return raw if named & STREAM_OPTIONS else {"streamName": "orders", **raw}


def parse(**raw: str) -> KinesisOptions:
    return parse_options(with_stream({name.replace("__", "."): raw[name] for name in raw}))


def problems(raw: dict[str, str]) -> tuple[OptionProblem, ...]:
    with pytest.raises(InvalidOptionsError) as caught:
        parse_options(raw)
    assert "Canary" not in str(caught.value)
    assert "Canary" not in repr(caught.value)
    assert "Canary" not in repr(pickle.loads(pickle.dumps(caught.value)))
    return caught.value.problems


# --- Each option ---------------------------------------------------------------------------------


def test_the_examples_cover_every_option() -> None:
    assert list(GOOD) == list(BAD) == list(SPECS)


def test_a_stream_alone_is_enough() -> None:
    assert parse_options({"streamname": "orders"}) == KinesisOptions(
        streams=(StreamRef(name=StreamName("orders")),),
        starting_position=StartingPosition(default=Latest()),
        connection=ConnectionOptions(),
    )


def test_every_option_reaches_its_place() -> None:
    left_out = {"streamName", "awsProfile"}
    raw = {name: value for name, value in GOOD.items() if name not in left_out}
    assert parse_options(raw) == KinesisOptions(
        streams=(StreamRef(name=StreamName("orders"), arn=ARN),),
        starting_position=StartingPosition(default=TrimHorizon()),
        slots=16,
        slot_assignment=SlotAssignment.HASH_RANGE,
        max_records_per_trigger=100_000,
        max_bytes_per_trigger=1 << 30,
        shard_discovery_interval_ms=30_000,
        max_records_per_fetch=500,
        min_fetch_period_ms=1_000,
        fail_on_data_loss=False,
        deaggregate=False,
        max_bytes_in_flight=32 << 20,
        connection=ConnectionOptions(
            region="eu-west-1",
            endpoint_url="http://localhost:4567",
            aws_access_key_id="AKIAIOSFODNN7EXAMPLE",
            aws_secret_access_key=CANARY,
            aws_session_token=CANARY,
            role_arn=ROLE,
            role_external_id=CANARY,
            role_session_name="orders-query",
            sts_endpoint_url="https://sts.eu-west-1.amazonaws.com",
            retry_max_attempts=3,
            retry_max_backoff_ms=2_000,
            connect_timeout_ms=5_000,
            read_timeout_ms=60_000,
        ),
    )
    assert parse(awsProfile="reader").connection.aws_profile == "reader"


@pytest.mark.parametrize("name", list(SPECS))
def test_a_good_value_is_taken_in_any_case_of_the_name(name: str) -> None:
    raw = {name.upper(): GOOD[name], **NEEDS.get(name, {})}
    assert len(parse_options(with_stream(raw, option=name)).streams) == 1


@pytest.mark.parametrize(("name", "value"), [(name, v) for name in SPECS for v in BAD[name]])
def test_a_bad_value_is_reported_under_its_name(name: str, value: str) -> None:
    raw = with_stream({name.lower(): value, **NEEDS.get(name, {})}, option=name)
    assert {problem.option for problem in problems(raw)} == {name}


@pytest.mark.parametrize("name", list(SPECS))
def test_an_empty_value_is_reported(name: str) -> None:
    raw = with_stream({name: " ", **NEEDS.get(name, {})}, option=name)
    (problem,) = problems(raw)
    assert (problem.option, problem.found) == (name, "an empty value")


@pytest.mark.parametrize("name", list(SPECS))
def test_the_documented_default_is_the_default(name: str) -> None:
    spec = SPECS[name]
    if spec.default_text.startswith("`"):
        assert spec.convert(spec.default_text.strip("`")) == spec.default
    else:
        assert spec.default in (None, ())


def test_every_problem_is_reported_at_once() -> None:
    raw = {name: BAD[name][0] for name in SPECS}
    assert {problem.option for problem in problems(raw)} == set(SPECS)


# --- Names ---------------------------------------------------------------------------------------


def slips(name: str) -> set[str]:
    """The name with one letter left out, doubled, or exchanged with the next."""
    return {
        slip
        for at in range(len(name))
        for slip in (
            name[:at] + name[at + 1 :],
            name[: at + 1] + name[at:],
            name[:at] + name[at + 1 : at + 2] + name[at] + name[at + 2 :],
        )
    }


KNOWN = {
    *(name.lower() for name in SPECS),
    *(name.lower() for name in ALIASES),
    *(option.name.lower() for option in KINESIS_OPTIONS.foreign),
}


@pytest.mark.parametrize("name", list(SPECS))
def test_a_slip_of_a_name_is_an_error_that_suggests_a_name(name: str) -> None:
    for slip in sorted({slip.lower() for slip in slips(name)} - KNOWN):
        (problem,) = problems({"streamName": "orders", slip: "1"})
        assert problem.option == slip
        assert problem.next_step in (f"did you mean {name}?", *_similar(name)), slip


def _similar(name: str) -> list[str]:
    """Suggestions that are right as well: other spellings of the same option, or a close name."""
    others = {"streamName": ["streamARN"], "streamARN": ["streamName"]}.get(name, [])
    others += [alias for alias, option in ALIASES.items() if option == name]
    return [f"did you mean {other}?" for other in others]


@pytest.mark.parametrize("name", ["kinesis.foo", "retry.foo", "awsFoo", "roleFoo", "consumerFoo"])
def test_an_unknown_name_with_a_known_beginning_is_an_error(name: str) -> None:
    (problem,) = problems({"streamName": "orders", name: CANARY})
    assert problem.option == name.lower()
    assert problem.found == "an unknown option"


SPARKS_OWN = ["path", "header", "inferSchema", "mode", "format", "checkpointLocation", "multiLine"]


def test_other_names_are_ignored_with_one_warning(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        parse_options({"streamName": "orders", **dict.fromkeys(SPARKS_OWN, CANARY)})
    (record,) = caplog.records
    assert record.name == "spark_ssp.kinesis_source.parse_options"
    for name in SPARKS_OWN:
        assert repr(name.lower()) in record.getMessage()
    assert "Canary" not in caplog.text


@pytest.mark.parametrize(("alias", "name"), list(ALIASES.items()))
def test_an_alias_together_with_its_twin_is_an_error(alias: str, name: str) -> None:
    raw = {alias: GOOD[name], name: GOOD[name], **NEEDS.get(name, {})}
    (problem,) = problems(with_stream(raw, option=name))
    assert problem.option == name
    assert problem.next_step == f"keep {name} and remove {alias}"


@pytest.mark.parametrize(
    "option", KINESIS_OPTIONS.foreign, ids=[option.name for option in KINESIS_OPTIONS.foreign]
)
def test_options_of_others_are_refused_or_warned_of(
    option: Any, caplog: pytest.LogCaptureFixture
) -> None:
    raw = {"streamName": "orders", option.name.lower(): CANARY}
    if option.refused:
        (problem,) = problems(raw)
        assert problem.option == option.name
        assert option.advice in problem.next_step
        return
    with caplog.at_level(logging.WARNING):
        parse_options(raw)
    (record,) = caplog.records
    assert f"{option.name} ({option.advice})" in record.getMessage()
    assert "Canary" not in caplog.text


def test_no_name_means_two_things() -> None:
    names = [*SPECS, *ALIASES, *(option.name for option in KINESIS_OPTIONS.foreign)]
    assert len({name.lower() for name in names}) == len(names)


# --- Queries that come from another source -------------------------------------------------------


def test_a_query_of_databricks_source_keeps_its_options() -> None:
    options = parse_options(
        {
            "streamName": "orders,payments",
            "region": "us-west-2",
            "endpoint": "kinesis.us-west-2.amazonaws.com",
            "initialPosition": '{"at_timestamp": "06/25/2020 10:23:45 PDT", '
            '"format": "MM/dd/yyyy HH:mm:ss ZZZ"}',
            "consumerMode": "polling",
            "maxRecordsPerFetch": "5000",
            "minFetchPeriod": "400ms",
            "shardFetchInterval": "1s",
            "maxPartitions": "8",
            "awsAccessKey": "key",
            "awsSecretKey": "secret",
            "roleArn": ROLE,
            "roleExternalId": "external",
            "roleSessionName": "session",
            "stsEndpoint": "https://sts.us-west-2.amazonaws.com",
        }
    )
    assert [stream.name for stream in options.streams] == ["orders", "payments"]
    assert options.starting_position.default == AtTimestamp(millis=EpochMillis(1_593_105_825_000))
    assert (options.max_records_per_fetch, options.min_fetch_period_ms) == (5_000, 400)
    assert (options.shard_discovery_interval_ms, options.slots) == (1_000, 8)
    assert options.connection == ConnectionOptions(
        region="us-west-2",
        endpoint_url="https://kinesis.us-west-2.amazonaws.com",
        aws_access_key_id="key",
        aws_secret_access_key="secret",
        role_arn=ROLE,
        role_external_id="external",
        role_session_name="session",
        sts_endpoint_url="https://sts.us-west-2.amazonaws.com",
    )


def test_a_query_of_awslabs_connector_keeps_its_options() -> None:
    options = parse_options(
        {
            "kinesis.streamName": "orders",
            "kinesis.endpointUrl": "https://kinesis.us-east-2.amazonaws.com",
            "kinesis.consumerType": "GetRecords",
            "kinesis.startingposition": "AT_TIMESTAMP 2023-08-30T19:00:05-08:00",
            "kinesis.failOnDataLoss": "true",
            "kinesis.describeShardInterval": "50s",
            "kinesis.getRecords.numberOfRecordsPerFetch": "1000",
            "kinesis.getRecords.fetchIntervalMs": "200",
            "kinesis.clientNumRetries": "5",
            "kinesis.clientMaxRetryIntervalMs": "10000",
            "kinesis.stsRoleArn": ROLE,
            "kinesis.stsSessionName": "session",
            "kinesis.stsEndpointUrl": "https://sts.us-east-2.amazonaws.com",
            "kinesis.awsAccessKeyId": "key",
            "kinesis.awsSecretKey": "secret",
            "kinesis.sessionToken": "token",
        }
    )
    assert options.streams == (StreamRef(name=StreamName("orders")),)
    assert options.starting_position.default == AtTimestamp(millis=EpochMillis(1_693_450_805_000))
    assert (options.max_records_per_fetch, options.min_fetch_period_ms) == (1_000, 200)
    assert options.shard_discovery_interval_ms == 50_000
    assert options.connection == ConnectionOptions(
        region="us-east-2",
        endpoint_url="https://kinesis.us-east-2.amazonaws.com",
        aws_access_key_id="key",
        aws_secret_access_key="secret",
        aws_session_token="token",
        role_arn=ROLE,
        role_session_name="session",
        sts_endpoint_url="https://sts.us-east-2.amazonaws.com",
        retry_max_attempts=6,
        retry_max_backoff_ms=10_000,
    )


@pytest.mark.parametrize(
    ("raw", "option"),
    [
        ({"kinesis.consumerType": "SubscribeToShard"}, "kinesis.consumerType"),
        ({"kinesis.consumerType": "push"}, "kinesis.consumerType"),
        ({"kinesis.getRecords.fetchIntervalMs": "100"}, "kinesis.getRecords.fetchIntervalMs"),
        ({"kinesis.getRecords.fetchIntervalMs": "1s"}, "kinesis.getRecords.fetchIntervalMs"),
        ({"kinesis.clientNumRetries": "-1"}, "kinesis.clientNumRetries"),
        ({"initialPosition": "at_timestamp"}, "initialPosition"),
    ],
)
def test_an_alias_is_reported_by_its_own_name(raw: dict[str, str], option: str) -> None:
    assert [p.option for p in problems({"streamName": "orders", **raw})] == [option]


# --- Streams and their region --------------------------------------------------------------------


def test_several_streams_are_sorted_by_name() -> None:
    assert [s.name for s in parse(streamName="b, a ,C").streams] == ["C", "a", "b"]
    both = f"{ARN},{ARN.replace('orders', 'clicks')}"
    assert [s.name for s in parse(streamARN=both).streams] == ["clicks", "orders"]


@pytest.mark.parametrize(
    ("raw", "option", "found"),
    [
        ({}, "streamName", "neither streamName nor streamARN"),
        ({"streamName": "a", "streamARN": ARN}, "streamName", "together with streamARN"),
        (
            {"streamARN": f"{ARN},{ARN.replace('eu-west-1', 'us-east-1')}"},
            "streamARN",
            "2 streams named orders",
        ),
        (
            {"streamARN": f"{ARN},{ARN.replace('123456789012', '210987654321')}"},
            "streamARN",
            "2 streams named orders",
        ),
        (
            {"streamARN": f"{ARN},{ARN.replace('eu-west-1', 'us-east-1').replace('ord', 'bord')}"},
            "streamARN",
            "streams in eu-west-1 and us-east-1",
        ),
        ({"streamARN": ARN, "region": "us-east-1"}, "region", "while streamARN is in eu-west-1"),
        (
            {"streamARN": ARN, "endpointUrl": "https://kinesis.us-east-1.amazonaws.com"},
            "endpointUrl",
            "an endpoint of us-east-1, while the streams are in eu-west-1",
        ),
        (
            {"streamName": "a", "region": "eu-west-1", "endpoint": "kinesis.us-east-1.api.aws"},
            "endpoint",
            "an endpoint of us-east-1",
        ),
        (
            {"streamName": "a", "startingPosition": '{"b": {"shardId-0": "latest"}}'},
            "startingPosition",
            "the stream 'b', which this query does not read",
        ),
    ],
)
def test_streams_that_contradict_each_other(raw: dict[str, str], option: str, found: str) -> None:
    problem = problems(raw)[0]
    assert problem.option == option
    assert found in problem.found


@pytest.mark.parametrize(
    ("host", "region"),
    [
        ("kinesis.eu-west-1.amazonaws.com", "eu-west-1"),
        ("kinesis-fips.us-gov-west-1.amazonaws.com", "us-gov-west-1"),
        ("kinesis.cn-north-1.amazonaws.com.cn", "cn-north-1"),
        ("kinesis.eu-west-1.api.aws", "eu-west-1"),
        ("123456789012.data-kinesis.eu-west-1.amazonaws.com", "eu-west-1"),
        ("vpce-0a1b-c2d3.kinesis.eu-west-1.vpce.amazonaws.com", "eu-west-1"),
        ("localhost", None),
        ("kinesis.eu-west-1.example.org", None),
    ],
)
def test_an_endpoint_of_aws_names_the_region(host: str, region: str | None) -> None:
    assert parse(endpointUrl=f"https://{host}").connection.region == region


def test_an_arn_names_the_region_also_beside_a_local_endpoint() -> None:
    options = parse(streamARN=ARN, endpointUrl="http://localhost:4567")
    assert options.connection.region == "eu-west-1"


# --- Credentials ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("raw", "options"),
    [
        ({"awsAccessKeyId": CANARY}, ["awsAccessKeyId"]),
        ({"awsSecretKey": CANARY}, ["awsSecretKey"]),
        ({"awsSessionToken": CANARY}, ["awsSessionToken"]),
        ({"awsSessionToken": CANARY, "awsAccessKey": CANARY}, ["awsAccessKey"]),
        (
            {"awsProfile": "p", "awsAccessKeyId": CANARY, "awsSecretAccessKey": CANARY},
            ["awsProfile"],
        ),
        ({"roleExternalId": CANARY}, ["roleExternalId"]),
        ({"roleSessionName": "session"}, ["roleSessionName"]),
        ({"stsEndpoint": "sts.eu-west-1.amazonaws.com"}, ["stsEndpoint"]),
    ],
)
def test_credentials_that_do_not_fit_together(raw: dict[str, str], options: list[str]) -> None:
    assert [p.option for p in problems({"streamName": "orders", **raw})] == options


SECRETS = {
    "awsAccessKeyId": CANARY,
    "awsSecretAccessKey": CANARY,
    "awsSessionToken": CANARY,
    "roleExternalId": CANARY,
}


def test_secrets_are_kept_but_never_shown(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.DEBUG):
        options = parse_options(
            {"streamName": "orders", "roleArn": ROLE, "path": CANARY, "fetchBufferSize": CANARY}
            | SECRETS
        )
    for text in (repr(options), str(options), f"{options.connection}", caplog.text):
        assert "Canary" not in text
    assert repr(options.connection).count("=***") == len(SECRETS)
    copy = pickle.loads(pickle.dumps(options))
    assert copy == options
    assert copy.connection.aws_secret_access_key == CANARY
    assert hash(copy.connection) == hash(options.connection)


def test_every_secret_of_the_table_is_hidden_in_the_values() -> None:
    secret = {spec.name for spec in KINESIS_OPTIONS.specs if spec.secret}
    assert secret == set(SECRETS)
    for field in dataclasses.fields(ConnectionOptions):
        values: dict[str, Any] = {field.name: "canary"}
        shown = repr(ConnectionOptions(**values))
        name = field.name.replace("_", "")
        assert ("canary" not in shown) is (name in {text.lower() for text in secret})


@pytest.mark.parametrize("name", list(SPECS))
def test_a_secret_never_reaches_an_error_whatever_else_is_wrong(name: str) -> None:
    problems({**SECRETS, name: BAD[name][0], "streamName": "orders,orders"})


# --- Whatever else comes -------------------------------------------------------------------------

ANY_NAME = st.sampled_from(sorted({*SPECS, *ALIASES, *(o.name for o in KINESIS_OPTIONS.foreign)}))
ANY_VALUE = st.text() | st.sampled_from(sorted({v for values in BAD.values() for v in values}))
ANY_VALUE |= st.sampled_from(sorted(GOOD.values()))


@given(st.dictionaries(ANY_NAME | st.text(), ANY_VALUE, max_size=12))
def test_nothing_but_invalid_options_is_raised(raw: dict[str, str]) -> None:
    with suppress(InvalidOptionsError):
        assert parse_options(raw).streams


@given(st.lists(st.sampled_from(sorted(set(SPECS) - {"streamARN", "awsProfile"})), unique=True))
def test_good_values_go_together(names: list[str]) -> None:
    raw = {name: GOOD[name] for name in names} | {"streamName": "orders"}
    for name in names:
        raw |= {need: GOOD[need] for need in NEEDS.get(name, {})}
    first, second = parse_options(raw), parse_options(dict(reversed(raw.items())))
    assert first == second


def test_executors_do_not_load_the_parser() -> None:
    script = (
        "import sys, kinesis_source.options; "
        "print([m for m in ('pydantic', 'boto3', 'kinesis_source.parse_options', "
        "'ssp_common.options') if m in sys.modules])"
    )
    done = subprocess.run(
        [sys.executable, "-c", script],
        capture_output=True,
        check=True,
        cwd=Path(__file__).parents[2],
        text=True,
        timeout=60,
    )
    assert done.stdout == "[]\n"
