"""Credentials from a user's function: kinds that are accepted, their renewal, errors."""

from __future__ import annotations

import logging
import sys
import threading
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from types import ModuleType, SimpleNamespace
from typing import Any

import boto3
import botocore.session
import pytest
from botocore.credentials import Credentials, DeferredRefreshableCredentials, RefreshableCredentials
from botocore.exceptions import ClientError

from spark_ssp.common.aws.error_translation import (
    CredentialsProviderError,
    ProviderFailedError,
    Severity,
    refresh_error,
    severity_of,
)
from spark_ssp.common.aws.provided_credentials import (
    PLAIN_LIFETIME_S,
    Loaded,
    RenewedCredentials,
    forget_providers,
    load_provided,
    note_use,
    provided_credentials,
    renew_refused,
)
from spark_ssp.common.aws.service_calls import Retrier, RetrySettings
from tests.support.fakes.clocks import ManualTime

CANARY = "Canary/wJalrXUtnFEMI"
PATH = "my_company_aws:credentials"


@pytest.fixture
def module(monkeypatch: pytest.MonkeyPatch) -> Iterator[ModuleType]:
    """A user's module, which can be imported."""
    made = ModuleType("my_company_aws")
    monkeypatch.setitem(sys.modules, made.__name__, made)
    forget_providers()
    yield made
    forget_providers()


def keys(name: str, *, lives_s: float = 3600) -> dict[str, str]:
    return {
        "access_key": name,
        "secret_key": CANARY,
        "token": CANARY,
        "expiry_time": (datetime.now(UTC) + timedelta(seconds=lives_s)).isoformat(),
    }


def refreshable(refresh: Callable[[], Any], *, lives_s: float = 3600) -> RefreshableCredentials:
    return RefreshableCredentials.create_from_metadata(
        keys("FIRST", lives_s=lives_s), refresh, "vault"
    )


def session() -> botocore.session.Session:
    made = botocore.session.Session()
    made.set_credentials("SESSION", CANARY)
    return made


class Rotating:
    """Another library's credentials."""

    def get_frozen_credentials(self) -> Credentials:
        return Credentials("OTHER", CANARY)


def frozen(**values: object) -> object:
    """Credentials of another library, with these values."""
    return SimpleNamespace(get_frozen_credentials=lambda: SimpleNamespace(**values))


def failing(*_: object, **__: object) -> Any:
    raise LookupError(CANARY)


def access_key(path: str = PATH, arguments: str | None = None) -> str:
    key = provided_credentials(path, arguments).get_frozen_credentials().access_key
    assert isinstance(key, str)
    return key


@pytest.mark.parametrize(
    ("returned", "expected"),
    [
        (lambda: Credentials("PLAIN", CANARY), "PLAIN"),
        (lambda: refreshable(failing), "FIRST"),
        (lambda: DeferredRefreshableCredentials(lambda: keys("LATE"), "vault"), "LATE"),
        (session, "SESSION"),
        (lambda: boto3.Session(botocore_session=session()), "SESSION"),
        (Rotating, "OTHER"),
        (lambda: frozen(access_key="LIBRARY", secret_key=CANARY, token=""), "LIBRARY"),
    ],
)
def test_credentials_and_sessions_are_accepted(
    module: ModuleType, returned: Callable[[], object], expected: str
) -> None:
    vars(module)["credentials"] = returned
    assert access_key() == expected


def test_the_function_is_called_once_for_its_arguments(module: ModuleType) -> None:
    calls: list[str] = []

    def credentials(*, role: str = "none") -> Credentials:
        calls.append(role)
        return Credentials(role, CANARY)

    vars(module)["credentials"] = credentials
    assert [access_key(arguments='{"role": "reader"}') for _ in range(2)] == ["reader"] * 2
    assert access_key() == "none"
    assert calls == ["reader", "none"]


@pytest.mark.parametrize(
    ("function", "found"),
    [
        (None, "no credentials in the module"),
        (7, "an attribute of type int"),
        (failing, "a function which raised LookupError"),
        (lambda role: role, "a function which raised TypeError"),
        (lambda: None, "a function that returned None"),
        (lambda: CANARY, "a function that returned str"),
        (lambda: Rotating, "a function that returned type"),
        (
            lambda: type("Empty", (), {"get_credentials": lambda self: None})(),
            "Empty with None",
        ),
        (
            lambda: type("Broken", (), {"get_credentials": failing})(),
            "Broken raised LookupError",
        ),
        (
            lambda: type("Half", (), {"get_frozen_credentials": lambda self: keys("K")})(),
            "Half without access_key",
        ),
        (lambda: frozen(access_key="K", secret_key=CANARY), "without token"),
        (lambda: frozen(access_key="K", secret_key=CANARY, token=5), "token is of type int"),
        (
            lambda: frozen(access_key="K", secret_key=b"K", token=None),
            "secret_key is of type bytes",
        ),
        (lambda: Credentials("", ""), "access_key is empty"),
        (lambda: Credentials("K", f"{CANARY}\n"), "secret_key is empty, or has white space"),
        (lambda: Credentials("K", CANARY, f"{CANARY} {CANARY}"), "token is empty, or has white"),
        (lambda: Credentials("K", CANARY, f"{CANARY}ä"), "token is empty, or has white"),
    ],
)
def test_anything_else_is_an_error_without_a_value(
    module: ModuleType, function: object, found: str
) -> None:
    if function is not None:
        vars(module)["credentials"] = function
    with pytest.raises(CredentialsProviderError) as caught:
        access_key()
    error = caught.value
    assert error.subject == f"option credentialsProvider ({PATH})"
    assert found in error.found
    assert CANARY not in str(error)
    assert error.__cause__ is None
    assert error.__suppress_context__ or error.__context__ is None


def test_a_module_that_cannot_be_imported_is_to_be_shipped() -> None:
    with pytest.raises(CredentialsProviderError, match="ModuleNotFoundError") as caught:
        access_key("no_such_module_here:credentials")
    assert "spark.submit.pyFiles" in caught.value.next_step


def test_a_failure_is_not_kept(module: ModuleType) -> None:
    vars(module)["credentials"] = failing
    with pytest.raises(CredentialsProviderError):
        access_key()
    vars(module)["credentials"] = lambda: Credentials("LATER", CANARY)
    assert access_key() == "LATER"


# --- Renewal --------------------------------------------------------------------------------------


@pytest.mark.parametrize("fault", [LookupError(CANARY), Credentials("CUT\n", CANARY)])
def test_plain_credentials_are_requested_again_after_their_lifetime(
    caplog: pytest.LogCaptureFixture, fault: object
) -> None:
    """Those that cannot be sent, as of a file that is being written, replace no last ones."""
    now = 0.0
    answers = iter([Credentials("ONE", CANARY), fault, Credentials("TWO", CANARY)])

    def call() -> object:
        answer = next(answers)
        if isinstance(answer, Exception):
            raise answer
        return answer

    provided = RenewedCredentials(lambda: load_provided(PATH, call), monotonic=lambda: now)
    for now, expected in (
        (PLAIN_LIFETIME_S - 1, "ONE"),
        (PLAIN_LIFETIME_S, "ONE"),
        (2 * PLAIN_LIFETIME_S - 1, "ONE"),
        (2 * PLAIN_LIFETIME_S, "TWO"),
    ):
        assert provided.get_frozen_credentials().access_key == expected, now
    assert "could not renew credentials" in caplog.text
    assert CANARY not in caplog.text


def test_plain_credentials_are_renewed_by_one_thread_at_a_time() -> None:
    renewing, go_on = threading.Event(), threading.Event()
    calls: list[int] = []
    now = 0.0

    def call() -> object:
        calls.append(1)
        if len(calls) == 2:
            renewing.set()
            assert go_on.wait(30)
        return Credentials(f"K{len(calls)}", CANARY)

    provided = RenewedCredentials(lambda: load_provided(PATH, call), monotonic=lambda: now)
    now = PLAIN_LIFETIME_S
    other = threading.Thread(target=provided.get_frozen_credentials)
    other.start()
    assert renewing.wait(30)
    assert provided.get_frozen_credentials().access_key == "K1"
    go_on.set()
    other.join(30)
    assert provided.get_frozen_credentials().access_key == "K2"


FILE, ROLE = "shared-credentials-file", "iam-role"


def refusal(operation: str) -> ClientError:
    return ClientError({"Error": {"Code": "UnrecognizedClientException"}}, operation)


class Client(ManualTime):
    """A client whose credentials come from the sources of a chain, a list of (key, source): the
    next one at each load, which takes `load_s`, and the last one again."""

    def __init__(
        self, *chain: tuple[str, str], assumes_role: bool = False, load_s: float = 0.0
    ) -> None:
        super().__init__()
        self._chain = list(chain)
        self._load_s = load_s
        self.now = 0.0
        self.loads = 0
        self.pauses: list[float] = []
        self.credentials = RenewedCredentials(
            self._load, monotonic=self.monotonic, sleep=self.pauses.append
        )
        note_use(self, self.credentials, assumes_role=assumes_role)  # type: ignore[arg-type]

    def _load(self) -> Loaded:
        self.now += self._load_s
        self.loads += 1
        key, source = self._chain.pop(0) if len(self._chain) > 1 else self._chain[0]
        return Loaded(Credentials(key, CANARY), True, source)

    def is_renewed(self, operation: str = "GetRecords") -> bool:
        return renew_refused(self, refusal(operation))  # type: ignore[arg-type]

    @property
    def key(self) -> str:
        return str(self.credentials.get_frozen_credentials().access_key)


def retried(
    client: Client, call: Callable[[], str], settings: RetrySettings, *, draw: float
) -> str:
    """Call with retries, whose pauses are drawn as `draw`."""
    retrier = Retrier(settings, sleep=client.sleep, random=lambda: draw, severity_of=severity_of)
    return retrier.run(call, operation="GetRecords", subject="", client=client)  # type: ignore[arg-type]


def test_a_refusal_loads_only_the_keys_of_its_client() -> None:
    """The file of the other client is empty for a moment."""
    other = Client(("FILE", FILE), ("ROLE", ROLE))
    refused = Client(("FORMER", FILE), ("LATTER", FILE))
    assert refused.is_renewed()
    assert (refused.key, other.key) == ("LATTER", "FILE")
    assert refused.pauses == other.pauses == []


@pytest.mark.parametrize("load_s", [0.0, 20.0])
@pytest.mark.parametrize("by_age", [False, True])
def test_calls_with_the_former_keys_are_repeated_for_some_seconds(
    *, by_age: bool, load_s: float
) -> None:
    """Of threads that signed while another one loaded the latter, however long that took."""
    client = Client(("FORMER", FILE), ("LATTER", FILE), load_s=load_s)
    if by_age:
        client.now += PLAIN_LIFETIME_S
        assert client.key == "LATTER"
    assert [client.is_renewed() for _ in range(3)] == [True] * 3
    assert client.key == "LATTER"
    client.now += 30
    assert not client.is_renewed()


def test_a_slow_load_does_not_fail_the_calls_that_wait_for_it() -> None:
    client = Client(("FORMER", FILE), ("LATTER", FILE), load_s=20)
    assert client.is_renewed()
    client.now += 2
    assert client.is_renewed()
    assert client.loads == 3


@pytest.mark.parametrize("by_age", [False, True])
@pytest.mark.parametrize("between", [[], [("ROLE", ROLE)]], ids=["written", "empty for a moment"])
def test_keys_that_were_read_while_a_tool_wrote_them_are_read_again(
    between: list[tuple[str, str]], *, by_age: bool
) -> None:
    """With the shortest pauses, by a call among those of many threads."""
    client = Client(("FORMER", FILE), ("MIXED", FILE), *between, ("LATTER", FILE))
    if by_age:
        client.now += PLAIN_LIFETIME_S

    def call() -> str:
        if client.key == "LATTER":
            return "done"
        for _ in range(128):
            client.is_renewed()
        raise refusal("GetRecords")

    assert retried(client, call, RetrySettings(max_attempts=8, max_backoff=10), draw=0.0) == "done"
    assert client.loads == 3 + len(between)


def test_no_pause_is_longer_than_the_longest() -> None:
    """Which the calls of a lease agent need: each has a third of the failover time."""
    client = Client(("FORMER", FILE), ("LATTER", FILE))

    def call() -> str:
        if client.key == "LATTER":
            return "done"
        raise refusal("UpdateItem")

    assert retried(client, call, RetrySettings(max_attempts=2, max_backoff=0.1), draw=1.0) == "done"
    assert client.slept == [0.1]


@pytest.mark.parametrize(
    ("second", "expected"), [(("LATTER", FILE), "LATTER"), (("ROLE", ROLE), "ROLE")]
)
def test_another_source_replaces_refused_keys_if_the_first_has_none_twice(
    second: tuple[str, str], expected: str
) -> None:
    client = Client(("FORMER", FILE), ("ROLE", ROLE), second)
    assert client.is_renewed()
    assert client.key == expected
    assert len(client.pauses) == 1


def test_a_refused_session_of_a_role_loads_no_keys() -> None:
    client = Client(("FORMER", FILE), ("LATTER", FILE), assumes_role=True)
    assert not client.is_renewed()
    assert client.key == "FORMER"
    assert client.is_renewed("AssumeRole")
    assert client.key == "LATTER"


def test_a_failed_refresh_passes_and_no_text_of_it_is_logged(
    module: ModuleType, capfd: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    answers: Iterator[Callable[[], object]] = iter([failing, lambda: keys("SECOND")])
    vars(module)["credentials"] = lambda: refreshable(lambda: next(answers)(), lives_s=1)
    with caplog.at_level(logging.DEBUG), pytest.raises(ProviderFailedError) as caught:
        access_key()
    assert severity_of(caught.value) is Severity.FAULT
    error = refresh_error(caught.value)
    assert error.found == "LookupError when its credentials were refreshed"
    assert access_key() == "SECOND"
    assert "Refreshing temporary credentials failed" in caplog.text
    for text in (str(caught.value), str(error), caplog.text, *capfd.readouterr()):
        assert CANARY not in text
