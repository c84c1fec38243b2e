"""Credentials from a function of the user, which the option `credentialsProvider` names.

The function is imported and called once in each process. Exceptions of the user's code are neither
quoted nor chained, since their text may contain a secret.
"""

from __future__ import annotations

import importlib
import json
import logging
import os
import threading
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from ssp_common.aws.error_translation import (
    CredentialsProviderError,
    ProviderFailedError,
    code_of,
    provider_error,
)

if TYPE_CHECKING:
    from botocore.credentials import ReadOnlyCredentials

_log = logging.getLogger(f"spark_ssp.{__name__}")

PLAIN_LIFETIME_S: Final = 60.0
"""The age at which credentials that cannot refresh themselves are requested again."""

_EXPECTED: Final = (
    "botocore credentials, a boto3 or botocore session that has some, or an object with "
    "get_frozen_credentials()"
)
_RETURN_STEP: Final = "return refreshable credentials of botocore from the function"


class _Loaded(NamedTuple):
    credentials: Any
    is_plain: bool
    loaded_at: float


class ProvidedCredentials:
    """The credentials of a provider, with the methods of botocore's `Credentials`. Thread-safe.

    Those that refresh themselves are kept. Plain ones, whose end is unknown, are requested again
    from the provider when they are used after `PLAIN_LIFETIME_S`.
    """

    method: Final = "credentialsProvider"

    def __init__(
        self,
        path: str,
        call: Callable[[], object],
        *,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        """Call the provider. Raises CredentialsProviderError."""
        self._path = path
        self._call = call
        self._monotonic = monotonic
        self._renewing = threading.Lock()
        self._loaded = self._load()

    def get_frozen_credentials(self) -> ReadOnlyCredentials:
        """Return valid keys. Raises ProviderFailedError if they cannot be refreshed, and
        CredentialsProviderError if there are none."""
        loaded = self._current()
        try:
            frozen = loaded.credentials.get_frozen_credentials()
        except Exception as error:  # noqa: BLE001  (the user's code)
            raise ProviderFailedError(self._path, _name_of(error)) from None
        for name in ("access_key", "secret_key"):
            if not isinstance(getattr(frozen, name, None), str):
                raise provider_error(
                    self._path,
                    f"credentials of type {_type_of(loaded.credentials)} without {name}",
                    _EXPECTED,
                    _RETURN_STEP,
                )
        return frozen  # type: ignore[no-any-return]

    def get_deferred_property(self, name: str) -> Callable[[], Any]:
        """Return a function that returns a property of the current keys, as botocore requires."""
        return lambda: getattr(self.get_frozen_credentials(), name, None)

    def _current(self) -> _Loaded:
        loaded = self._loaded
        if self._is_fresh(loaded) or not self._renewing.acquire(blocking=False):
            return loaded
        try:
            if not self._is_fresh(self._loaded):
                self._loaded = self._load()
        except CredentialsProviderError as error:
            # The last ones may still be valid; the service decides.
            _log.warning("could not renew credentials, using the last ones: %s", error)
            self._loaded = loaded._replace(loaded_at=self._monotonic())
        finally:
            self._renewing.release()
        return self._loaded

    def _is_fresh(self, loaded: _Loaded) -> bool:
        return not loaded.is_plain or self._monotonic() - loaded.loaded_at < PLAIN_LIFETIME_S

    def _load(self) -> _Loaded:
        loaded_at = self._monotonic()
        returned = _guarded(self._path, self._call, "which raised", "call it with the arguments")
        credentials = returned
        if not _can(credentials, "get_frozen_credentials") and _can(returned, "get_credentials"):
            credentials = _guarded(
                self._path,
                returned.get_credentials,
                f"whose {_type_of(returned)} raised",
                "call its get_credentials()",
            )
        if not _can(credentials, "get_frozen_credentials"):
            of_session = "" if credentials is returned else f" with {_type_of(credentials)}"
            raise provider_error(
                self._path,
                f"a function that returned {_type_of(returned)}{of_session}",
                _EXPECTED,
                _RETURN_STEP,
            )
        return _Loaded(credentials, _is_plain(credentials), loaded_at)


def _is_plain(credentials: object) -> bool:
    from botocore.credentials import Credentials, RefreshableCredentials

    return isinstance(credentials, Credentials) and not isinstance(
        credentials, RefreshableCredentials
    )


def _can(value: object, method: str) -> bool:
    return not isinstance(value, type) and callable(getattr(value, method, None))


def _type_of(value: object) -> str:
    if value is None:
        return "None"
    kind = type(value)
    return kind.__name__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__name__}"


def _name_of(error: Exception) -> str:
    if isinstance(error, RuntimeError) and "still expired" in str(error):
        return "refreshed credentials that are expired"
    return code_of(error)


def _guarded(path: str, call: Callable[[], Any], what: str, attempt: str) -> Any:
    try:
        return call()
    except Exception as error:  # noqa: BLE001  (the user's code)
        raise provider_error(
            path,
            f"a function {what} {_name_of(error)}",
            _EXPECTED,
            f"{attempt} in a Python of the driver and of an executor to see the error, whose text "
            "is not shown, since it may contain secrets",
        ) from None


# --- One for each process -------------------------------------------------------------------------

_provided: dict[tuple[int, str, str | None], ProvidedCredentials] = {}
_loading = threading.Lock()


def provided_credentials(path: str, arguments: str | None) -> ProvidedCredentials:
    """Return the credentials of a provider (`module:function`), called with the JSON object
    `arguments`, which this process keeps. Raises CredentialsProviderError."""
    key = (os.getpid(), path, arguments)
    with _loading:
        found = _provided.get(key)
        if found is None:
            function = _imported(path)
            keywords = json.loads(arguments or "{}")
            _hide_exceptions()
            found = _provided[key] = ProvidedCredentials(path, lambda: function(**keywords))
    return found


def forget_providers() -> None:
    """Forget the credentials of this process. For tests."""
    _provided.clear()


def _imported(path: str) -> Callable[..., object]:
    module_name, _, name = path.partition(":")
    try:
        module = importlib.import_module(module_name)
    except Exception as error:  # noqa: BLE001  (the user's code)
        raise provider_error(
            path,
            f"a module that cannot be imported ({_name_of(error)})",
            "a module that the driver and every executor can import",
            "check its name, and install it on all machines, or add it to the driver's PYTHONPATH "
            "and ship it to the executors (spark.submit.pyFiles)",
        ) from None
    function = getattr(module, name, None)
    if not callable(function):
        exists = hasattr(module, name)
        raise provider_error(
            path,
            f"an attribute of type {_type_of(function)}" if exists else f"no {name} in the module",
            "a function of the module",
            "check its name",
        )
    return function  # type: ignore[no-any-return]


class _WithoutException(logging.Filter):
    """Removes the traceback of a failed refresh, whose text may contain secrets."""

    def filter(self, record: logging.LogRecord) -> bool:
        record.exc_info = record.exc_text = None
        return True


_without_exception: Final = _WithoutException()


def _hide_exceptions() -> None:
    logging.getLogger("botocore.credentials").addFilter(_without_exception)


def _after_fork() -> None:
    # Another thread may have held the lock during the fork; in the child nothing would release it.
    global _loading
    _loading = threading.Lock()


os.register_at_fork(after_in_child=_after_fork)
