"""The options of the Kinesis source, one by one and by their names."""

from __future__ import annotations

import logging
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spark_ssp.grouping.identifiers import StreamName
from spark_ssp.kinesis_source.model.shard import (
    ConsumerArn,
    Latest,
    StartingPosition,
    StreamRef,
    TrimHorizon,
)
from spark_ssp.kinesis_source.options.parse import parse_at_load, parse_options
from spark_ssp.kinesis_source.options.values import (
    KINESIS_OPTIONS,
    ConnectionOptions,
    ConsumerLifecycle,
    FanOutOptions,
    InvalidOptionsError,
    KinesisOptions,
    LeaseOptions,
    LeaseRole,
    SlotAssignment,
)
from tests.support.kinesis.option_examples import (
    ALIASES,
    ARN,
    BAD,
    CANARY,
    GOOD,
    NEEDS,
    ONLY_BATCH,
    PROVIDER,
    ROLE,
    SPECS,
    problems,
    with_stream,
)

# --- Each option ---------------------------------------------------------------------------------


def test_the_examples_cover_every_option() -> None:
    assert set(GOOD) == set(BAD) == set(SPECS)


def test_a_stream_alone_is_enough() -> None:
    assert parse_options({"streamname": "orders"}) == KinesisOptions(
        streams=(StreamRef(name=StreamName("orders")),),
        starting_position=StartingPosition(default=Latest()),
        connection=ConnectionOptions(),
    )


def test_every_option_reaches_its_place() -> None:
    left_out = {"streamName", "awsProfile", "consumerArn", *PROVIDER, *ONLY_BATCH}
    raw = {name: value for name, value in GOOD.items() if name not in left_out}
    assert parse_options(raw) == KinesisOptions(
        streams=(StreamRef(name=StreamName("orders"), arn=ARN),),
        starting_position=StartingPosition(default=TrimHorizon()),
        slots=16,
        slot_assignment=SlotAssignment.HASH_RANGE,
        max_records_per_trigger=100_000,
        max_bytes_per_trigger=1 << 30,
        max_bytes_per_shard=1 << 30,
        align_batches=False,
        alignment_timeout_ms=60_000,
        is_triggered_by_time=True,
        shard_discovery_interval_ms=30_000,
        max_records_per_fetch=500,
        min_fetch_period_ms=1_000,
        drop_streams=(StreamName("clicks"), StreamName("views")),
        fail_on_data_loss=False,
        deaggregate=False,
        max_bytes_in_flight=32 << 20,
        leases=LeaseOptions(
            application="orders-etl",
            table="orders-leases",
            worker_id="007",
            processor_id_generator="my_company.ids.PodName",
            failover_ms=20_000,
            max_leases=8,
            checkpoint_interval_ms=1_000,
            dynamodb_endpoint_url="http://localhost:8000",
            table_tags=(("stage", "test"), ("team", "orders")),
            table_capacity=(10, 5),
            max_outage_ms=60_000,
            role=LeaseRole(arn=ROLE, external_id=CANARY),
        ),
        fan_out=FanOutOptions(consumer_name="orders-query", lifecycle=ConsumerLifecycle.SELF),
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
    assert (
        parse_options({"streamName": "orders", "awsProfile": "reader"}).connection.aws_profile
        == "reader"
    )
    by_arn = {name: GOOD[name] for name in ("streamARN", "consumerMode", "consumerArn")}
    assert parse_options(by_arn).fan_out == FanOutOptions(
        consumer_arns=((StreamName("orders"), ConsumerArn(GOOD["consumerArn"])),),
        lifecycle=ConsumerLifecycle.SELF,
    )
    assert parse_options({"streamName": "orders", "includeRepeatKeys": "true"}).include_repeat_keys
    provided = parse_options({"streamName": "orders", **{name: GOOD[name] for name in PROVIDER}})
    assert provided.connection == ConnectionOptions(
        credentials_provider="my_company.aws:credentials",
        credentials_provider_secret_arguments=GOOD["credentialsProviderSecretArguments"],
    )


@pytest.mark.parametrize("name", list(SPECS))
def test_a_good_value_is_taken_in_any_case_of_the_name(name: str) -> None:
    raw = {name.upper(): GOOD[name], **NEEDS.get(name, {})}
    assert len(parse_at_load(with_stream(raw, option=name)).streams) == 1


@pytest.mark.parametrize(("name", "value"), [(name, v) for name in SPECS for v in BAD[name]])
def test_a_bad_value_is_reported_under_its_name(name: str, value: str) -> None:
    raw = with_stream({name.lower(): value, **NEEDS.get(name, {})}, option=name)
    assert {problem.option for problem in problems(raw)} == {name}


@pytest.mark.parametrize("name", list(SPECS))
def test_an_empty_value_is_reported(name: str) -> None:
    raw = with_stream({name: " ", **NEEDS.get(name, {})}, option=name)
    (problem,) = problems(raw)
    assert (problem.option, problem.found) == (name, "an empty value")


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


FOREIGN = KINESIS_OPTIONS.all_foreign()
KNOWN = {
    *(name.lower() for name in SPECS),
    *(name.lower() for name in ALIASES),
    *(option.name.lower() for option in FOREIGN),
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
    assert record.name == "spark_ssp.kinesis_source.options.connection"
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
    "option",
    FOREIGN,
    ids=[option.name for option in FOREIGN],
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
    names = [*SPECS, *ALIASES, *(option.name for option in FOREIGN)]
    assert len({name.lower() for name in names}) == len(names)


# --- Random options ------------------------------------------------------------------------------

ANY_NAME = st.sampled_from(sorted({*SPECS, *ALIASES, *(o.name for o in FOREIGN)}))
ANY_VALUE = st.text() | st.sampled_from(sorted({v for values in BAD.values() for v in values}))
ANY_VALUE |= st.sampled_from(sorted(GOOD.values()))


@given(st.dictionaries(ANY_NAME | st.text(), ANY_VALUE, max_size=12))
def test_nothing_but_invalid_options_is_raised(raw: dict[str, str]) -> None:
    with suppress(InvalidOptionsError):
        assert parse_options(raw).streams


ALONE = {"streamARN", "awsProfile", "consumerArn"}


@given(
    st.lists(
        st.sampled_from(sorted(set(SPECS) - ALONE - PROVIDER - ONLY_BATCH)),
        unique=True,
    )
)
def test_good_values_go_together(names: list[str]) -> None:
    raw = {name: GOOD[name] for name in names} | {"streamName": "orders"}
    for name in names:
        raw |= {need: GOOD[need] for need in NEEDS.get(name, {})}
    first, second = parse_options(raw), parse_options(dict(reversed(raw.items())))
    assert first == second


def test_executors_do_not_load_the_parser() -> None:
    script = (
        "import sys, spark_ssp.kinesis_source.options.values; "
        "print([m for m in ('pydantic', 'boto3', 'difflib', "
        "'spark_ssp.kinesis_source.options.parse') if m in sys.modules])"
    )
    done = subprocess.run(
        [sys.executable, "-c", script],
        capture_output=True,
        check=True,
        cwd=Path(__file__).parents[4],
        text=True,
        timeout=60,
    )
    assert done.stdout == "[]\n"
