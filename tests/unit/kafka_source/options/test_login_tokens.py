"""Tokens of a user's function: where they are used, their refresh, errors without a value."""

from __future__ import annotations

import gc
import itertools
import logging
import pickle
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from decimal import Decimal
from functools import partial
from types import BuiltinMethodType, ModuleType
from typing import NamedTuple, NoReturn

import pytest

from spark_ssp.common.errors import AccessError, ServiceUnavailableError
from spark_ssp.kafka_source.client.client_config import (
    TOKEN_CALLBACK,
    ClientLog,
    ClientRole,
    client_config,
)
from spark_ssp.kafka_source.client.error_translation import redact
from spark_ssp.kafka_source.group_committer import GroupOffsets
from spark_ssp.kafka_source.options import login_tokens as module
from spark_ssp.kafka_source.options.client_properties import ClientProperties, TokenProvider
from spark_ssp.kafka_source.options.login_tokens import (
    MAX_LOGINS,
    Token,
    TokenCallback,
    provided_token,
    stop_token_refresh,
    token_callback,
)
from spark_ssp.kafka_source.options.parse import parse_options
from spark_ssp.kafka_source.options.values import KafkaOptions, QueryKind
from spark_ssp.kafka_source.pipeline_system import KafkaSystem
from spark_ssp.kafka_source.reading.consumer_api import PartitionConsumer
from spark_ssp.kafka_source.reading.pool import ConsumerKey
from spark_ssp.kafka_source.sink.parse import parse_sink_options
from spark_ssp.kafka_source.sink.producer import RecordProducer
from spark_ssp.operations.inspection.topics import topic_options
from tests.support.kafka.reading import open_messages, open_native
from tests.support.waiting import until

CANARY = "Canary-wJalrXUtnFEMI"
PATH = "my_company_kafka:token"
PROVIDER = TokenProvider(path=PATH)
LOGIN = {
    "kafka.bootstrap.servers": "host1:9092",
    "kafka.security.protocol": "SASL_SSL",
    "kafka.sasl.mechanism": "OAUTHBEARER",
    "tokenProvider": PATH,
    "tokenProviderSecretArguments": f'{{"password": "{CANARY}"}}',
}
LATER = time.time() + 3600


@pytest.fixture(autouse=True)
def user(monkeypatch: pytest.MonkeyPatch) -> Iterator[ModuleType]:
    """A user's module, which can be imported."""
    made = ModuleType("my_company_kafka")
    monkeypatch.setitem(sys.modules, made.__name__, made)
    monkeypatch.setattr(module, "_PAUSES_S", (0.0, 0.0))
    monkeypatch.setattr(module, "_RETRY_S", 0.0)
    monkeypatch.setattr(module, "_MIN_WAIT_S", 0.0)
    stop_token_refresh()
    yield made
    stop_token_refresh()


def threads() -> int:
    """Return the number of threads that renew tokens."""
    return [one.name for one in threading.enumerate()].count("kafka-login-token")


def failing(*_: object, **__: object) -> Token:
    raise LookupError(CANARY)


def callback(fetch: Callable[[], Token], login: str = "login") -> TokenCallback:
    return token_callback(login, fetch, subject="the login", logger=ClientLog("admin"))


# --- Where they are used --------------------------------------------------------------------------


def _system() -> ClientProperties:
    seen: list[ClientProperties] = []

    def connect(options: KafkaOptions) -> NoReturn:
        seen.append(options.client)
        raise InterruptedError

    with pytest.raises(InterruptedError):
        KafkaSystem(LOGIN, connect=connect).partition_count("orders")
    return seen[0]


@pytest.mark.parametrize("role", ClientRole)
@pytest.mark.parametrize(
    "client",
    [
        lambda: parse_options({**LOGIN, "subscribe": "orders"}).client,
        lambda: parse_options({**LOGIN, "subscribe": "orders"}, QueryKind.BATCH).client,
        lambda: parse_sink_options(LOGIN).client,
        lambda: topic_options(["orders"], LOGIN).client,
        _system,
    ],
    ids=["source", "batch", "sink", "command", "planner"],
)
def test_every_client_has_tokens_of_the_function_also_in_another_process(
    user: ModuleType, client: Callable[[], ClientProperties], role: ClientRole
) -> None:
    vars(user)["token"] = lambda password: (f"of-{password}", LATER)
    properties = pickle.loads(pickle.dumps(client()))
    assert client_config(properties, role=role)[TOKEN_CALLBACK]("") == (f"of-{CANARY}", LATER)
    assert CANARY not in repr(properties)
    assert CANARY not in repr(properties.token_provider)


def test_clients_of_one_login_share_a_call(user: ModuleType) -> None:
    calls: list[str] = []

    def token(*, password: str | None = None) -> Token:
        calls.append(password or "none")
        return "a-token", LATER

    vars(user)["token"] = token
    for properties in (parse_sink_options(LOGIN).client,) * 2:
        client_config(properties, role=ClientRole.PRODUCER)
    other = {name: LOGIN[name] for name in LOGIN if name != "tokenProviderSecretArguments"}
    client_config(parse_sink_options(other).client, role=ClientRole.PRODUCER)
    assert calls == [CANARY, "none"]


def test_no_code_of_python_runs_in_librdkafkas_threads() -> None:
    """The garbage collector could run there, and destroy the client of the thread."""
    assert isinstance(callback(lambda: ("one", LATER)), BuiltinMethodType)


# --- Values ---------------------------------------------------------------------------------------


class AccessToken(NamedTuple):
    """As azure-core has it."""

    token: str
    expires_on: int


@pytest.mark.parametrize(
    "returned", [("a.b-c_d~e+f/g==", LATER), AccessToken("azure", int(LATER)), ("a", LATER + 1e9)]
)
def test_a_token_and_its_expiry_are_accepted(user: ModuleType, returned: Token) -> None:
    vars(user)["token"] = lambda: returned
    assert provided_token(PROVIDER) == (returned[0], float(returned[1]))


@pytest.mark.parametrize(
    ("function", "found"),
    [
        (None, "no token in the module"),
        (7, "an attribute of type int"),
        (failing, "a function which raised LookupError"),
        (lambda: sys.exit(CANARY), "a function which raised SystemExit"),
        (lambda role: role, "a function which raised TypeError"),
        (lambda: None, "a function that returned None"),
        (lambda: CANARY, "a function that returned str"),
        (lambda: [CANARY, LATER], "a function that returned list"),
        (lambda: (CANARY, LATER, "user"), "a function that returned a tuple of 3"),
        (lambda: (CANARY.encode(), LATER), "a token of type bytes"),
        (lambda: ("", LATER), "no token"),
        (lambda: (f"Bearer {CANARY}", LATER), "a token with other characters"),
        (lambda: (f"{CANARY}\n", LATER), "a token with other characters"),
        (lambda: (CANARY, None), "an expiry time of type None"),
        (lambda: (CANARY, str(LATER)), "an expiry time of type str"),
        (lambda: (CANARY, True), "an expiry time of type bool"),
        (lambda: (CANARY, Decimal(LATER)), "an expiry time of type decimal.Decimal"),
        (lambda: (CANARY, datetime.now(UTC)), "an expiry time of type datetime.datetime"),
        (lambda: (CANARY, LATER * 1000), "an expiry time that is not in seconds"),
        (lambda: (CANARY, float("nan")), "an expiry time that is not in seconds"),
        (lambda: (CANARY, time.time() - 1), "a token that has expired"),
    ],
)
def test_anything_else_is_an_error_without_a_value(
    user: ModuleType, function: object, found: str
) -> None:
    if function is not None:
        vars(user)["token"] = function
    with pytest.raises(AccessError) as caught:
        client_config(
            ClientProperties(token_provider=TokenProvider(path=PATH)), role=ClientRole.ADMIN
        )
    error = caught.value
    assert error.subject == f"option tokenProvider ({PATH})"
    assert found in error.found
    assert CANARY not in str(error)
    assert error.__cause__ is None
    assert error.__suppress_context__ or error.__context__ is None


def test_a_token_is_never_quoted() -> None:
    callback(lambda: ("ya29.opaque", LATER))
    assert redact("refused ya29.opaque by the broker") == "refused *** by the broker"


# --- Failures and refresh -------------------------------------------------------------------------


def test_a_function_that_raises_is_called_again(user: ModuleType) -> None:
    answers: Iterator[Exception | Token] = iter(
        [LookupError(CANARY), OSError(CANARY), ("one", LATER)]
    )
    pauses: list[float] = []

    def token() -> Token:
        answer = next(answers)
        if isinstance(answer, Exception):
            raise answer
        return answer

    vars(user)["token"] = token
    assert provided_token(PROVIDER, sleep=pauses.append) == ("one", LATER)
    assert pauses == [0.0, 0.0]


def test_a_failure_is_not_kept() -> None:
    def unavailable() -> Token:
        raise ServiceUnavailableError("AWS", found="f", expected="e", next_step="n")

    for fetch, kind in ((failing, LookupError), (unavailable, ServiceUnavailableError)):
        with pytest.raises(kind):
            callback(fetch)
    assert callback(lambda: ("one", LATER))(None) == ("one", LATER)


def test_tokens_are_renewed_and_a_failure_is_logged_and_tried_again(
    caplog: pytest.LogCaptureFixture,
) -> None:
    failure = AccessError("the vault", found="f", expected="e", next_step="n")
    answers: Iterator[Exception | Token] = iter(
        [("first-token", 0.0), failure, ("second-token", 0.0)]
    )
    renewed = threading.Event()

    def fetch() -> Token:
        answer = next(answers, None)
        if isinstance(answer, Exception):
            raise answer
        if answer is None:
            renewed.set()
        return answer or ("third-token", 0.0)

    with caplog.at_level(logging.DEBUG):
        found = callback(fetch)
        assert callback(fetch) == found
        assert renewed.wait(30)
    assert found(None) == found("") != ("first-token", 0.0)
    assert "no new token, using the last one: [access] the vault" in caplog.text


def test_of_many_logins_the_last_and_those_of_clients_are_renewed() -> None:
    calls: Counter[str] = Counter()

    def fetch(login: str, lifetime_s: float) -> Token:
        calls[login] += 1
        return f"{login}-{calls[login]}", time.time() + lifetime_s

    until(lambda: threads() == 0, "those of other tests end")
    used = callback(lambda: fetch("used", 0.02), "used")
    for number in range(3 * MAX_LOGINS):
        callback(partial(fetch, f"idle {number}", 3600), f"idle {number}")
    until(lambda: threads() == 1 + MAX_LOGINS, "the others end")
    before = calls["used"]
    until(lambda: calls["used"] > before + 2, "the token of a client is renewed")
    assert callback(failing, "used") == used
    newest = f"idle {3 * MAX_LOGINS - 1}"
    assert callback(failing, newest)(None) == callback(failing, newest)("")
    assert calls[newest] == 1


@pytest.fixture
def _no_collector() -> Iterator[None]:
    gc.disable()
    yield
    gc.enable()


def _reader(opened: Callable[[ConsumerKey], PartitionConsumer]) -> Callable[[], None]:
    client = parse_options({**LOGIN, "subscribe": "orders"}).client
    return opened(ConsumerKey(client=client, group_id="group")).close


def _committer() -> Callable[[], None]:
    group = GroupOffsets(parse_options({**LOGIN, "subscribe": "orders"}).client, "group")
    group.connect()
    return group.close


def _producer() -> Callable[[], None]:
    return RecordProducer(parse_sink_options(LOGIN).client).purge


@pytest.mark.usefixtures("_no_collector")
@pytest.mark.parametrize(
    "opened",
    [partial(_reader, open_native), partial(_reader, open_messages), _committer, _producer],
    ids=["native", "messages", "committer", "producer"],
)
def test_a_client_that_is_discarded_keeps_no_login(
    user: ModuleType, opened: Callable[[], Callable[[], None]]
) -> None:
    """Also before the garbage collector runs."""
    until(lambda: threads() == 0, "those of other tests end")
    vars(user)["token"] = lambda **_: ("one", LATER)
    close = opened()
    for number in range(MAX_LOGINS):
        callback(lambda: ("another", LATER), f"idle {number}")
    assert threads() == 1 + MAX_LOGINS
    close()
    del close
    until(lambda: threads() == MAX_LOGINS, "the thread of its login ends", within_s=20)


def test_a_thread_ends_wherever_it_is_when_its_tokens_are_collected() -> None:
    """The collector may run in the thread itself, within any call."""
    until(lambda: threads() == 0, "those of other tests end")
    before = threading.gettrace()
    for last in range(60):
        kept: list[TokenCallback] = []
        calls = itertools.count()

        def trace(*_: object, kept: list[TokenCallback] = kept, last: int = last) -> None:
            ours = threading.current_thread().name == "kafka-login-token"
            if ours and kept and next(calls) == last:  # noqa: B023
                kept.clear()

        threading.settrace(trace)
        kept.append(callback(lambda: ("one", 0.0)))
        threading.settrace(before)
        module._recent_logins.clear()
        until(lambda: not kept and threads() == 0, f"it ends at its call {last}", within_s=20)  # noqa: B023


def test_a_failed_refresh_is_named_and_no_text_of_it_is_logged(
    user: ModuleType, caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str]
) -> None:
    calls: list[int] = []

    def token(password: str) -> Token:
        calls.append(1)
        if len(calls) > 1:
            raise LookupError(CANARY)
        return CANARY, time.time() + 0.2

    vars(user)["token"] = token
    with caplog.at_level(logging.DEBUG):
        client_config(parse_sink_options(LOGIN).client, role=ClientRole.PRODUCER)
        until(lambda: "LookupError" in caplog.text, "the failure is logged")
    assert f"option tokenProvider ({PATH})" in caplog.text
    for text in (caplog.text, *capfd.readouterr()):
        assert CANARY not in text


def test_a_function_that_does_not_return_is_named_and_not_called_twice_at_a_time(
    user: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "PATIENCE_S", 0.05)
    calls: list[int] = []
    answered = threading.Event()

    def token() -> Token:
        calls.append(1)
        assert answered.wait(30)
        return "late", LATER

    vars(user)["token"] = token
    properties = ClientProperties(token_provider=PROVIDER)
    for _ in range(2):
        with pytest.raises(ServiceUnavailableError) as caught:
            client_config(properties, role=ClientRole.ADMIN)
        assert caught.value.subject == f"option tokenProvider ({PATH})"
    monkeypatch.setattr(module, "PATIENCE_S", 30.0)
    answered.set()
    assert client_config(properties, role=ClientRole.ADMIN)[TOKEN_CALLBACK](None)[0] == "late"
    assert calls == [1]


def test_a_refresh_that_does_not_return_is_logged(
    user: ModuleType, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    answered = threading.Event()
    calls: list[int] = []

    def token() -> Token:
        calls.append(1)
        assert len(calls) == 1 or answered.wait(30)
        return "one", time.time() + 0.2

    vars(user)["token"] = token
    client_config(ClientProperties(token_provider=PROVIDER), role=ClientRole.ADMIN)
    monkeypatch.setattr(module, "PATIENCE_S", 0.05)
    until(lambda: "no token after" in caplog.text, "the wait is logged")
    assert f"option tokenProvider ({PATH})" in caplog.text
    answered.set()
