"""The options references say what the tables of options say."""

from __future__ import annotations

import re
import sys
import time
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import ModuleType
from typing import Any, Final

import pytest

from spark_ssp.common.options.spec import OptionTable
from spark_ssp.kafka_source.options.client_properties import PREFIX, TokenProvider
from spark_ssp.kafka_source.options.login_tokens import provided_token
from spark_ssp.kafka_source.options.parse import parse_options as parse_kafka_options
from spark_ssp.kafka_source.options.property_names import (
    COMBINED,
    CONSUMER,
    PRODUCER,
    PropertyNames,
)
from spark_ssp.kafka_source.options.values import KAFKA_OPTIONS, QueryKind
from spark_ssp.kafka_source.sink.parse import SINK_OPTIONS, parse_sink_options
from spark_ssp.kinesis_source.options.parse import parse_options as parse_kinesis_options
from spark_ssp.kinesis_source.options.values import KINESIS_OPTIONS
from spark_ssp.kinesis_source.sink.options import SINK_OPTIONS as KINESIS_SINK_OPTIONS
from website.option_tables import reference_tables, with_tables

GUIDE: Final = Path(__file__).parents[3] / "docs" / "guide"
KINESIS: Final = GUIDE / "kinesis-options.md"
KAFKA: Final = GUIDE / "kafka-options.md"
KINESIS_NAMES: Final = GUIDE / "kinesis-option-names.md"
KINESIS_START: Final = GUIDE / "kinesis-start.md"
KAFKA_START: Final = GUIDE / "kafka-start.md"
LOGINS: Final = GUIDE / "kafka-logins.md"
TABLES: Final = reference_tables()


def _text(reference: Path) -> str:
    return reference.read_text(encoding="utf-8")


def _section(reference: Path, title: str) -> str:
    """What stands below a heading, up to the next one of its level."""
    level = title.split(" ", 1)[0]
    return _text(reference).split(f"\n{title}\n")[1].split(f"\n{level} ")[0]


@pytest.mark.parametrize("name", TABLES)
def test_the_tables_of_a_reference_are_those_of_the_code(name: str) -> None:
    """`.venv/bin/python -m website tables` writes them."""
    text = _text(GUIDE / name)
    assert sorted(re.findall("<!-- begin (.*) -->", text)) == sorted(TABLES[name])
    assert text == with_tables(text, TABLES[name])


@pytest.mark.parametrize(
    ("reference", "source", "sink"),
    [(KINESIS, KINESIS_OPTIONS, KINESIS_SINK_OPTIONS), (KAFKA, KAFKA_OPTIONS, SINK_OPTIONS)],
)
def test_each_option_has_a_row_with_an_anchor(
    reference: Path, source: OptionTable, sink: OptionTable
) -> None:
    rows = re.findall(r'^\| <a id="([\w.-]+)"></a>`([\w.]+)` \|', _text(reference), re.MULTILINE)
    of_sink = [one.name for one in sink.options if one not in source.options]
    expected = [(f"option-{one.name}", one.name) for one in source.options]
    expected += [(f"sink-option-{name}", name) for name in of_sink]
    assert sorted(rows) == sorted(expected)


@pytest.mark.parametrize(
    ("reference", "title", "table"),
    [
        (KINESIS_NAMES, "## Unknown options", KINESIS_OPTIONS),
        (KAFKA, "## Unknown and other names", KAFKA_OPTIONS),
    ],
)
def test_every_prefix_is_documented(reference: Path, title: str, table: OptionTable) -> None:
    first = _section(reference, title).strip().split("\n\n")[0]
    assert re.findall("`([^`]+)`", first) == list(table.prefixes)


def test_every_start_of_the_kinesis_reference_is_understood() -> None:
    section = _section(KINESIS_START, "## Forms")
    starts = re.findall(r"```json\n(.*?)```", section, re.DOTALL)
    starts += re.findall(r"^\| `([^`]+)`", section, re.MULTILINE)
    starts += re.findall(r"`(\{.*format.*\})`", section)
    assert len(starts) == 9
    for start in starts:
        raw = {"streamName": "orders", "startingPosition": start}
        if '"payments"' in start:
            raw["streamName"] = "orders,payments"
        assert parse_kinesis_options(raw).starting_position.default is not None


# --- Kafka ----------------------------------------------------------------------------------------

LEAST: Final = {"kafka.bootstrap.servers": "host1:9092", "subscribe": "orders"}
SECRET: Final = "Canary-7wJalrXUtnFEMI"


def test_every_start_and_end_of_the_kafka_reference_is_understood() -> None:
    section = _section(KAFKA_START, "## Forms")
    starts = re.findall(r"^\| `(starting\w+)` \| `([^`]+)`", section, re.MULTILINE)
    assert len(starts) == 5
    for option, value in starts:
        parse_kafka_options({**LEAST, option: value})
        if value != "earliest":
            end = {option.replace("starting", "ending"): value.replace("-2", "7")}
            assert parse_kafka_options({**LEAST, **end}, QueryKind.BATCH).end is not None


@pytest.mark.parametrize("names", [CONSUMER, PRODUCER], ids=lambda names: str(names.client))
def test_every_property_is_documented(names: PropertyNames) -> None:
    every = {*names.supported, *names.aliases, *names.refused, *names.without_effect}
    text = "\n".join(TABLES["kafka-client-properties.md"].values())
    assert every <= {*text.split("`")[1::2]} | COMBINED


def _logins(monkeypatch: pytest.MonkeyPatch) -> Iterator[dict[str, str]]:
    section = _text(LOGINS)
    for name in re.findall(r'os\.environ\["(\w+)"\]', section):
        monkeypatch.setenv(name, SECRET)
    for block in re.findall(
        r"```python\n(login = .*?|password = .*?|secret = .*?)```", section, re.DOTALL
    ):
        names: dict[str, Any] = {}
        exec(f"import os\n{block}", names)
        yield names["login"]


def test_every_login_of_the_reference_is_understood(monkeypatch: pytest.MonkeyPatch) -> None:
    logins = list(_logins(monkeypatch))
    assert len(logins) == 8
    for login in logins:
        assert all(name.startswith((PREFIX, "tokenProvider")) for name in login)
        source = parse_kafka_options({**LEAST, **login}).client
        sink = parse_sink_options({"kafka.bootstrap.servers": "host1:9092", **login}).client
        for client in (source, sink):
            by_function = client.iam is not None or client.token_provider is not None
            assert {value for _, value in client.secret} == (set() if by_function else {SECRET})


def test_the_two_ways_to_write_a_login_are_one(monkeypatch: pytest.MonkeyPatch) -> None:
    clients = [parse_kafka_options({**LEAST, **login}).client for login in _logins(monkeypatch)]
    by_token = [client for client in clients if "oauthbearer.method" in repr(client)]
    assert len(by_token) == 2
    assert by_token[0].public == by_token[1].public


class _Credential:
    """What the SDKs of platforms return, as far as the guide uses it."""

    token = "ya29.c"
    service_account_email = "orders@project.iam.gserviceaccount.com"
    expiry: datetime | None = None

    def refresh(self, request: object) -> None:
        self.expiry = datetime.now(UTC).replace(tzinfo=None) + timedelta(hours=1)

    def get_token(self, scope: str) -> tuple[str, int]:
        return "eyJ.a.b", int(time.time()) + 3600


_FUNCTIONS: Final[Mapping[str, str]] = {
    "entra_token": '{"scope": "https://orders.servicebus.windows.net/.default"}',
    "google_token": "{}",
    "databricks_token": '{"name": "orders", "scope": "https://orders.servicebus.windows.net/.default"}',
}


@pytest.mark.parametrize(("name", "arguments"), _FUNCTIONS.items())
def test_functions_of_the_guide_return_tokens(
    monkeypatch: pytest.MonkeyPatch, name: str, arguments: str
) -> None:
    """With stand-ins for the SDKs of the platforms."""
    modules: Mapping[str, dict[str, Any]] = {
        "azure": {},
        "azure.identity": {"DefaultAzureCredential": _Credential},
        "google": {},
        "google.auth": {"default": lambda scopes: (_Credential(), "project")},
        "google.auth.transport": {},
        "google.auth.transport.requests": {"Request": object},
        "databricks": {},
        "databricks.service_credentials": {
            "getServiceCredentialsProvider": lambda name: _Credential()
        },
        "my_company": {},
        "my_company.kafka": {},
    }
    for module, names in modules.items():
        made = ModuleType(module)
        vars(made).update(names)
        monkeypatch.setitem(sys.modules, module, made)
        parent, _, child = module.rpartition(".")
        if parent:
            monkeypatch.setattr(sys.modules[parent], child, made, raising=False)
    (block,) = [
        block
        for block in re.findall(r"```python\n(# my_company.*?)```", _text(LOGINS), re.DOTALL)
        if f"def {name}(" in block
    ]
    exec(block, vars(sys.modules["my_company.kafka"]))
    provider = TokenProvider(path=f"my_company.kafka:{name}", secret_arguments=arguments)
    token, expires = provided_token(provider)
    assert token.count(".") == 2
    assert time.time() + 3000 < expires < time.time() + 3700


def test_a_sink_takes_the_options_of_a_source() -> None:
    known = {option.name for option in SINK_OPTIONS.foreign if not option.refused}
    own = {spec.name for spec in SINK_OPTIONS.options}
    assert known == {spec.name for spec in KAFKA_OPTIONS.options} - own
