"""Tokens of logins by OAUTHBEARER, fetched in a thread: those of the user's function that the
option `tokenProvider` names, and those that `iam_token` signs.

librdkafka requests a token in one of its threads, where Python code could start the garbage
collector, which may destroy the client of that thread and so crash the process. The callback of a
client is therefore the `get` of a dictionary, which runs no Python code; a thread for each process
and login fills it, for as long as the dictionary is referenced: by a client, or as one of the last
logins, which the next client is likely to have.
"""

from __future__ import annotations

import json
import logging
import math
import os
import queue
import re
import threading
import time
import weakref
from collections import OrderedDict, deque
from collections.abc import Callable, Hashable
from concurrent.futures import Future, wait
from functools import partial
from numbers import Real
from typing import Final, Protocol, cast

from spark_ssp.common.errors import AccessError, ServiceUnavailableError, SspError
from spark_ssp.common.options.user_code import call_guarded, import_function, type_name
from spark_ssp.common.times import seconds_text
from spark_ssp.kafka_source.options.client_properties import TokenProvider

PATIENCE_S: Final = 60.0
"""The time in which a token is expected."""
_RETRY_S: Final = 10.0
_MAX_RETRY_S: Final = 60.0
_MIN_WAIT_S: Final = 1.0
_MAX_WAIT_S: Final = 86_400.0
_PAUSES_S: Final = (1.0, 3.0, 6.0)
"""The pauses between calls of a function that raises."""
_LATEST_EXPIRY: Final = 1e11
"""An expiry time above it (about the year 5000) is not in seconds."""

Token = tuple[str, float]
"""A token and its expiry time in seconds since 1970."""
TokenCallback = Callable[[str | None], Token | None]


class Log(Protocol):
    """The part of `ClientLog` that this module uses."""

    def log(self, level: int, text: str, *values: object) -> None:
        """Write one line."""
        ...


class _LoginTokens(dict[str | None, Token]):
    """The token of a login, by argument of the callback, which references it. Renewed by a thread
    for as long as it is referenced."""

    def __init__(self, subject: str, fetch: Callable[[], Token], logger: Log) -> None:
        super().__init__()
        self.refresher = _TokenRefresher(self, subject, fetch, logger)


class _TokenRefresher:
    """Fetches the first token when it is created, and each next one halfway to the expiry of the
    last. A failure is logged and retried; the last token stays in use."""

    def __init__(
        self, tokens: _LoginTokens, subject: str, fetch: Callable[[], Token], logger: Log
    ) -> None:
        self._subject, self._fetch, self._logger = subject, fetch, logger
        self._expires_s = 0.0
        self.recent: deque[str] = deque(maxlen=2)
        """The last tokens, which no text may contain."""
        self._first: Future[None] = Future()
        # The garbage collector may run the finalizer within any call of any thread, this one too:
        # unlike an event's `set`, `put` is reentrant.
        self._stop: queue.SimpleQueue[None] = queue.SimpleQueue()
        # The thread references the tokens only while it fetches one, so that they end it.
        self._tokens = weakref.ref(tokens)
        weakref.finalize(tokens, _stop_in, os.getpid(), self._stop).atexit = False
        threading.Thread(target=self._run, name="kafka-login-token", daemon=True).start()

    def await_first(self) -> None:
        """Wait for the first token. Raises the errors of its fetch, and ServiceUnavailableError
        after PATIENCE_S."""
        if not wait((self._first,), timeout=PATIENCE_S).done:
            raise self._no_answer()
        self._first.result()

    @property
    def has_ended(self) -> bool:
        """Return whether there is no first token and will be none."""
        return self._first.done() and self._first.exception() is not None

    def stop(self) -> None:
        self._stop.put(None)

    def _run(self) -> None:
        try:
            self._renew()
        except Exception as error:  # noqa: BLE001  (raised where the client is created)
            self._first.set_exception(error)
            return
        self._first.set_result(None)
        pause_s = self._pause_s()
        while not self._is_stopped_within(pause_s):
            slow = threading.Timer(PATIENCE_S, lambda: self._log(self._no_answer()))
            slow.daemon = True
            try:
                slow.start()
                self._renew()
                pause_s = self._pause_s()
            except Exception as error:  # noqa: BLE001  (retried)
                self._log(error)
                pause_s = max(min(self._pause_s(), _MAX_RETRY_S), _RETRY_S)
            finally:
                slow.cancel()

    def _is_stopped_within(self, pause_s: float) -> bool:
        try:
            self._stop.get(timeout=pause_s)
        except queue.Empty:
            return False
        return True

    def _renew(self) -> None:
        tokens = self._tokens()
        if tokens is None:
            return
        token = self._fetch()
        self.recent.append(token[0])
        self._expires_s = token[1]
        tokens.update({None: token, "": token})

    def _pause_s(self) -> float:
        left_s = self._expires_s - time.time()
        return min(max(left_s / 2, _MIN_WAIT_S), _MAX_WAIT_S)

    def _no_answer(self) -> ServiceUnavailableError:
        return ServiceUnavailableError(
            self._subject,
            found=f"no token after {seconds_text(PATIENCE_S)}",
            expected="a token",
            next_step="check the service that issues the tokens, or give the function a timeout",
        )

    def _log(self, error: Exception) -> None:
        # Others' texts may contain a secret.
        text = str(error) if isinstance(error, SspError) else type(error).__name__
        self._logger.log(logging.WARNING, "no new token, using the last one: %s", text)


def _stop_in(process: int, stop: queue.SimpleQueue[None]) -> None:
    # The thread runs only in the process that started it, and may have held a lock of the queue
    # while another one was forked.
    if os.getpid() == process:
        stop.put(None)


MAX_LOGINS: Final = 8
"""The last logins whose tokens are renewed even while no client has them."""

_Key = tuple[int, Hashable]
_logins: weakref.WeakValueDictionary[_Key, _LoginTokens] = weakref.WeakValueDictionary()
_recent_logins: OrderedDict[_Key, _LoginTokens] = OrderedDict()
_creating = threading.Lock()


def token_callback(
    login: Hashable, fetch: Callable[[], Token], *, subject: str, logger: Log
) -> TokenCallback:
    """Return the function that a client calls for each token of a login, once there is a token.
    Raises the errors of `fetch`, and ServiceUnavailableError with `subject` if it does not end.
    `fetch` is called in a thread, one for each process and login."""
    key = (os.getpid(), login)
    with _creating:
        tokens = _logins.get(key)
        if tokens is None:
            tokens = _logins[key] = _LoginTokens(subject, fetch, logger)
        _recent_logins[key] = tokens
        _recent_logins.move_to_end(key)
        if len(_recent_logins) > MAX_LOGINS:
            _recent_logins.popitem(last=False)
    try:
        tokens.refresher.await_first()
    finally:
        # One that still waits for its first token is kept: the function is not called twice at a
        # time.
        if tokens.refresher.has_ended:
            with _creating:
                if _logins.get(key) is tokens:
                    del _logins[key]
                    _recent_logins.pop(key, None)
    return tokens.get


def tokens_in_use() -> tuple[str, ...]:
    """Return the tokens of this process, to mask them in texts."""
    return tuple(token for one in _used_logins() for token in tuple(one.refresher.recent))


def stop_token_refresh() -> None:
    """Stop fetching tokens for the clients of this process. For tests."""
    for tokens in _used_logins():
        tokens.refresher.stop()
    _logins.clear()
    _recent_logins.clear()


def _used_logins() -> list[_LoginTokens]:
    # Another thread may add one meanwhile: only this copies them at once.
    return [tokens for ref in _logins.valuerefs() if (tokens := ref()) is not None]


def _after_fork() -> None:
    # Another thread may have held the lock during the fork; in the child nothing would release it.
    global _creating
    _creating = threading.Lock()


os.register_at_fork(after_in_child=_after_fork)


# --- Tokens of a function -------------------------------------------------------------------------

_EXPECTED: Final = "a tuple of a token and its expiry time in seconds since 1970"
_TOKEN: Final = re.compile(r"[A-Za-z0-9._~+/-]+=*")
"""The tokens that OAUTHBEARER can carry (RFC 6750, `b64token`)."""


def provided_token_callback(provider: TokenProvider, *, logger: Log) -> TokenCallback:
    """Return the callback for the tokens of a function. Raises the errors of `provided_token`, and
    ServiceUnavailableError if the function does not return."""
    return token_callback(
        provider,
        lambda: provided_token(provider),
        subject=_subject(provider),
        logger=logger,
    )


def provided_token(
    provider: TokenProvider, *, sleep: Callable[[float], None] = time.sleep
) -> Token:
    """Return the token of a function, called again if it raises. Raises AccessError, which names
    types and never values."""
    refusal = partial(_refusal, provider)
    function = import_function(provider.path, refusal)
    arguments = json.loads(provider.secret_arguments or "{}")
    for pause_s in (*_PAUSES_S, None):
        try:
            returned = call_guarded(lambda: function(**arguments), refusal, expected=_EXPECTED)
        except AccessError:
            if pause_s is None:
                raise
            sleep(pause_s)
        else:
            break
    fault = _fault(returned)
    if fault is not None:
        raise refusal(fault, _EXPECTED, "correct what the function returns")
    token, expires = cast("tuple[str, float]", returned)
    return token, float(expires)


def _fault(returned: object) -> str | None:
    """Return what is wrong with a function's result, without its value."""
    if not isinstance(returned, tuple):
        return f"a function that returned {type_name(returned)}"
    if len(returned) != 2:
        return f"a function that returned a tuple of {len(returned)}"
    token, expires = returned
    if not isinstance(token, str):
        return f"a token of type {type_name(token)}"
    if not _TOKEN.fullmatch(token):
        return "a token with other characters than tokens have (RFC 6750)" if token else "no token"
    if isinstance(expires, bool) or not isinstance(expires, Real):
        return f"an expiry time of type {type_name(expires)}"
    expires_s = float(expires)
    if not math.isfinite(expires_s) or expires_s > _LATEST_EXPIRY:
        return "an expiry time that is not in seconds since 1970"
    return "a token that has expired" if expires_s <= time.time() else None


def _subject(provider: TokenProvider) -> str:
    return f"option tokenProvider ({provider.path})"


def _refusal(provider: TokenProvider, found: str, expected: str, next_step: str) -> AccessError:
    return AccessError(_subject(provider), found=found, expected=expected, next_step=next_step)
