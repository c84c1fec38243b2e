"""Options that name code, files or commands, and how the owner of a driver restricts them."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from spark_ssp.checkpoint.worker_identity import Query, load_generator
from spark_ssp.common.errors import InvalidOptionsError
from spark_ssp.common.options.endpoints import PROVIDER_OPTIONS
from spark_ssp.common.options.spec import BadValueError
from spark_ssp.common.options.user_code import CLASSES, PATHS, check_class, check_path
from spark_ssp.kafka_source.options.parse import parse_options
from spark_ssp.kafka_source.sink.parse import parse_sink_options

LEAST = {"kafka.bootstrap.servers": "host1:9092", "subscribe": "orders"}


def _problem(**options: str) -> tuple[str, str]:
    with pytest.raises(InvalidOptionsError) as refusal:
        parse_options({**LEAST, **options})
    (problem,) = refusal.value.problems
    return problem.option, problem.found


@pytest.mark.parametrize(
    ("listed", "allowed"),
    [
        (None, True),
        ("", False),
        ("ids.PodName", True),
        ("other.Ids, ids.PodName", True),
        ("ids.*", True),
        ("ids", False),
        ("ids.Pod*", False),
        ("*", False),
        ("ids.PodNames", False),
    ],
)
def test_classes_are_those_that_are_listed(listed: str | None, allowed: bool) -> None:
    environment = {} if listed is None else {CLASSES: listed}
    if allowed:
        check_class("ids.PodName", environment)
        return
    with pytest.raises(BadValueError) as refusal:
        check_class("ids.PodName", environment)
    assert CLASSES in refusal.value.faults[0].next_step


def test_a_class_that_is_not_allowed_is_not_even_imported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "ids_of_others.py").write_text("raise SystemExit('imported')\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setenv(CLASSES, "spark_ssp.*")
    query = Query(application="orders-etl", name="orders")
    with pytest.raises(InvalidOptionsError, match="processorIdGenerator"):
        load_generator("ids_of_others.PodName", query)
    assert "ids_of_others" not in sys.modules
    load_generator("spark_ssp.UuidGenerator", query)
    assert _problem(partitionExpansionAlgorithm="ids_of_others.Modulo")[0] == (
        "partitionExpansionAlgorithm"
    )


def test_paths_are_those_below_a_folder_that_is_listed(tmp_path: Path) -> None:
    allowed, secret = tmp_path / "certificates", tmp_path / "secret"
    allowed.mkdir()
    secret.touch()
    (allowed / "link").symlink_to(secret)
    environment = {PATHS: f"/nowhere:{allowed}"}
    check_path(str(secret), {})
    check_path(str(allowed), environment)
    check_path(str(allowed / "ca" / "ca.pem"), environment)
    for path in (secret, allowed / "link", allowed / ".." / "secret", f"{allowed}-2"):
        with pytest.raises(BadValueError) as refusal:
            check_path(str(path), environment)
        assert PATHS in refusal.value.faults[0].next_step
    with pytest.raises(BadValueError):
        check_path(str(allowed), {PATHS: ""})


@pytest.mark.parametrize(
    "option",
    [
        "kafka.ssl.ca.location",
        "kafka.ssl.key.location",
        "kafka.ssl.keystore.location",
        "kafka.sasl.oauthbearer.assertion.file",
        "kafka.sasl.oauthbearer.assertion.private.key.file",
        "kafka.sasl.kerberos.keytab",
        "assignmentStore",
    ],
)
def test_every_option_that_names_a_file_is_restricted(
    option: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    prefix = "file://" if option == "assignmentStore" else ""
    raw = {option: f"{prefix}/etc/files/one"}
    assert parse_options({**LEAST, **raw}) is not None
    monkeypatch.setenv(PATHS, "/etc/certificates")
    assert _problem(**raw)[0] == option
    if option.startswith("kafka."):
        with pytest.raises(InvalidOptionsError, match=option):
            parse_sink_options({"kafka.bootstrap.servers": "host1:9092", **raw})
    monkeypatch.setenv(PATHS, "/etc/certificates:/etc/files")
    assert parse_options({**LEAST, **raw}) is not None


def test_the_certificates_of_the_system_need_no_path(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(PATHS, "")
    assert parse_options({**LEAST, "kafka.ssl.ca.location": "probe"}) is not None


@pytest.mark.parametrize("sign", [*";&|<>$`()'\"\n *?\\"])
@pytest.mark.parametrize("name", ["keytab", "principal", "service.name"])
def test_no_value_adds_a_command_to_that_of_kerberos(name: str, sign: str) -> None:
    option = f"kafka.sasl.kerberos.{name}"
    assert parse_options({**LEAST, option: "spark/host-1.example.com@EXAMPLE.COM"}) is not None
    assert _problem(**{option: f"a{sign}b"})[0] == option


def test_a_command_is_refused_where_the_driver_is_restricted(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    raw = {"kafka.sasl.kerberos.kinit.cmd": "kinit -k %{sasl.kerberos.principal}"}
    assert parse_options({**LEAST, **raw}) is not None
    monkeypatch.setenv(CLASSES, "")
    option, found = _problem(**raw)
    assert (option, found) == (next(iter(raw)), "a command, which this driver does not allow")


def test_a_provider_of_credentials_is_listed_by_its_dotted_path(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv(CLASSES, "my_company.aws.credentials,vaults.*")
    provider = PROVIDER_OPTIONS[0]
    for path in ("my_company.aws:credentials", "vaults:any"):
        assert provider.convert(path) == path
    for path in ("my_company.aws:other", "vaults.more:any", "os:getcwd"):
        with pytest.raises(BadValueError):
            provider.convert(path)
