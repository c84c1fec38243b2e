"""Credentials that are loaded again while they are used: those of a function of the user, which the
option `credentialsProvider` names, and plain ones of AWS's default chain.

The function is imported once in each process. Exceptions of the user's code are neither quoted nor
chained, since their text may contain a secret.
"""

from __future__ import annotations

import json
import logging
import os
import re
import threading
import time
import weakref
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from botocore.exceptions import BotoCoreError

from spark_ssp.common.aws.error_translation import (
    ProviderFailedError,
    code_of,
    is_about_keys,
    operation_of,
    provider_error,
)
from spark_ssp.common.errors import AccessError
from spark_ssp.common.options.endpoints import KEY_PATTERN
from spark_ssp.common.options.user_code import call_guarded, import_function, type_name

if TYPE_CHECKING:
    from botocore.client import BaseClient
    from botocore.credentials import ReadOnlyCredentials

_log = logging.getLogger(__name__)

PLAIN_LIFETIME_S: Final = 60.0
"""The age at which credentials that cannot refresh themselves are loaded again."""
_REFUSALS_S: Final = 5.0
"""The time after a change of keys within which refusals may be those of calls with the former
ones."""
LOOK_PERIOD_S: Final = 1.0
"""The least time between two loads within `_REFUSALS_S`."""
_PAUSE_S: Final = 0.5
"""The time after which a source without keys is asked once more, before another one replaces it."""

_METHOD: Final = "credentialsProvider"

_EXPECTED: Final = (
    "botocore credentials, a boto3 or botocore session that has some, or an object with "
    "get_frozen_credentials()"
)
_RETURN_STEP: Final = "return refreshable credentials of botocore from the function"


class Loaded(NamedTuple):
    """Credentials, with botocore's `get_frozen_credentials`. `is_plain`: they do not refresh
    themselves, and their end is unknown. `method`: their source, as botocore names it."""

    credentials: Any
    is_plain: bool
    method: str


class RenewedCredentials:
    """Credentials with the methods of botocore's `Credentials`, loaded again while they are used.
    Thread-safe.

    Those that refresh themselves are kept. Plain ones are loaded again when they are used after
    `PLAIN_LIFETIME_S`, and when the service refuses them: a rotation may end the keys at any time.
    While it accepts them, those of another source of the chain do not replace them: a file that is
    empty while a tool writes it must not let a query continue with another identity. Another source
    that has replaced refused ones is kept until the process ends.
    """

    def __init__(
        self,
        load: Callable[[], Loaded],
        *,
        monotonic: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
        loaded: Loaded | None = None,
    ) -> None:
        """Load them, unless they were `loaded` just now. Raises the errors of `load`."""
        self._load = load
        self._monotonic = monotonic
        self._sleep = sleep
        self._renewing = threading.Lock()
        self._loaded_at = monotonic()
        self._loaded = load() if loaded is None else loaded
        self._looked_at = monotonic()
        """The time after the last load."""
        self._replaced_at: float | None = None
        """The time after the last load that led to other keys."""

    @property
    def method(self) -> str:
        """The source of the current ones, as botocore names it."""
        return self._loaded.method

    def get_frozen_credentials(self) -> ReadOnlyCredentials:
        """Return valid keys. Raises ProviderFailedError if they cannot be refreshed, and
        CredentialsProviderError if there are none."""
        return self._current().credentials.get_frozen_credentials()  # type: ignore[no-any-return]

    def get_deferred_property(self, name: str) -> Callable[[], Any]:
        """Return a function that returns a property of the current keys, as botocore requires."""
        return lambda: getattr(self.get_frozen_credentials(), name, None)

    def renew_refused(self) -> bool:
        """Load the credentials again after the service refused them, and return whether there are
        other keys to try.

        Refusals of the former keys still arrive for some seconds after a change. But the current
        ones may be refused too, as of a file that was read while a tool wrote it value by value. So
        they are loaded from the same source now and then, not for each of many threads."""
        # Also before the load of another thread, which may last.
        are_just_replaced = self._are_just_replaced()
        with self._renewing:
            are_just_replaced = are_just_replaced or self._are_just_replaced()
            is_due = self._monotonic() - self._looked_at >= LOOK_PERIOD_S
            if self._loaded.is_plain and (is_due or not are_just_replaced):
                self._reload(are_refused=not are_just_replaced)
            return are_just_replaced or self._are_just_replaced()

    def _are_just_replaced(self) -> bool:
        replaced_at = self._replaced_at
        return replaced_at is not None and self._monotonic() - replaced_at < _REFUSALS_S

    def _current(self) -> Loaded:
        if self._is_fresh() or not self._renewing.acquire(blocking=False):
            return self._loaded
        try:
            if not self._is_fresh():
                self._reload(are_refused=False)
        finally:
            self._renewing.release()
        return self._loaded

    def _is_fresh(self) -> bool:
        return not self._loaded.is_plain or self._monotonic() - self._loaded_at < PLAIN_LIFETIME_S

    def _reload(self, *, are_refused: bool) -> None:
        loaded_at = self._monotonic()
        loaded = self._load_or_reason()
        if are_refused and not self._is_of_same_source(loaded):
            # A tool may be writing the file.
            self._sleep(_PAUSE_S)
            loaded = self._load_or_reason()
        if isinstance(loaded, Loaded) and not (are_refused or self._is_of_same_source(loaded)):
            loaded = f"{self.method} has none, and those of {loaded.method} may be another's"
        # Not `loaded_at`: a slow load would use up the time of the refusals.
        self._looked_at = self._monotonic()
        if isinstance(loaded, Loaded):
            if not _same_keys(self._loaded, loaded):
                self._replaced_at = self._looked_at
            self._loaded = loaded
        else:
            # The last ones may still be valid: the service decides.
            _log.warning("could not renew credentials, using the last ones: %s", loaded)
        self._loaded_at = loaded_at

    def _load_or_reason(self) -> Loaded | str:
        """Return the credentials, or why there are none."""
        try:
            return self._load()
        except AccessError as error:
            return str(error)
        except (BotoCoreError, OSError) as error:
            # Of a file that is being written, or of a process, whose text may contain a secret.
            return type(error).__name__

    def _is_of_same_source(self, loaded: Loaded | str) -> bool:
        return isinstance(loaded, Loaded) and loaded.method == self.method


def _same_keys(one: Loaded, other: Loaded) -> bool:
    if not one.is_plain or not other.is_plain:
        return False
    keys = [each.credentials.get_frozen_credentials() for each in (one, other)]
    return (keys[0].access_key, keys[0].token) == (keys[1].access_key, keys[1].token)


class _Use(NamedTuple):
    """The use of credentials by a client: for its calls, or to assume the role of its calls."""

    credentials: RenewedCredentials
    assumes_role: bool


_uses: weakref.WeakKeyDictionary[BaseClient, _Use] = weakref.WeakKeyDictionary()


def note_use(client: BaseClient, credentials: RenewedCredentials, *, assumes_role: bool) -> None:
    """Note the credentials that a client uses, for `renew_refused`."""
    _uses[client] = _Use(credentials, assumes_role)


def renew_refused(client: BaseClient, error: Exception) -> bool:
    """Load a client's plain credentials again if the service refused its call for their keys, and
    return whether to repeat the call with others. Those of other clients may be accepted."""
    use = _uses.get(client) if is_about_keys(error) else None
    if use is None:
        return False
    # Calls with an assumed role are signed with the keys of its session.
    are_of_session = use.assumes_role and operation_of(error) != "AssumeRole"
    return not are_of_session and use.credentials.renew_refused()


class _Guarded:
    """Credentials of a provider. The text of their errors, which may contain a secret, is not
    shown."""

    def __init__(self, path: str, credentials: Any) -> None:
        self._path = path
        self._credentials = credentials

    def get_frozen_credentials(self) -> ReadOnlyCredentials:
        try:
            frozen = self._credentials.get_frozen_credentials()
        except Exception as error:  # noqa: BLE001  (the user's code)
            raise ProviderFailedError(self._path, _name_of(error)) from None
        fault = _fault_of(frozen)
        if fault is not None:
            raise provider_error(
                self._path,
                f"credentials of type {type_name(self._credentials)} {fault}",
                "an access key, a secret key and a token or None, as text without white space",
                "correct the function, which may have to strip what it reads from a file",
            )
        return frozen  # type: ignore[no-any-return]


def _fault_of(frozen: object) -> str | None:
    """Return why keys cannot be sent, without a value of them; None if they can."""
    for name in ("access_key", "secret_key", "token"):
        value = getattr(frozen, name, None)
        if name == "token" and hasattr(frozen, name) and not value:
            continue  # long-lived keys have none
        if value is None:
            return f"without {name}"
        if not isinstance(value, str):
            return f"whose {name} is of type {type_name(value)}"
        if not re.fullmatch(KEY_PATTERN, value):
            return f"whose {name} is empty, or has white space or a character that is not ASCII"
    return None


def load_provided(path: str, call: Callable[[], Any]) -> Loaded:
    """Call a provider (`module:function`) by `call`. Raises CredentialsProviderError."""
    returned = _guarded(path, call, "which raised", "call it with the arguments")
    credentials = returned
    if not _can(credentials, "get_frozen_credentials") and _can(returned, "get_credentials"):
        credentials = _guarded(
            path,
            returned.get_credentials,
            f"whose {type_name(returned)} raised",
            "call its get_credentials()",
        )
    if not _can(credentials, "get_frozen_credentials"):
        of_session = "" if credentials is returned else f" with {type_name(credentials)}"
        raise provider_error(
            path,
            f"a function that returned {type_name(returned)}{of_session}",
            _EXPECTED,
            _RETURN_STEP,
        )
    loaded = Loaded(_Guarded(path, credentials), is_plain(credentials), _METHOD)
    if loaded.is_plain:
        # Keys that cannot be sent, as of a file that is being written, replace no last ones.
        loaded.credentials.get_frozen_credentials()
    return loaded


def is_plain(credentials: object) -> bool:
    """Return whether credentials are botocore's and do not refresh themselves."""
    from botocore.credentials import Credentials, RefreshableCredentials

    return isinstance(credentials, Credentials) and not isinstance(
        credentials, RefreshableCredentials
    )


def _can(value: object, method: str) -> bool:
    return not isinstance(value, type) and callable(getattr(value, method, None))


def _name_of(error: Exception) -> str:
    if isinstance(error, RuntimeError) and "still expired" in str(error):
        return "refreshed credentials that are expired"
    return code_of(error)


def _guarded(path: str, call: Callable[[], Any], what: str, attempt: str) -> Any:
    return call_guarded(
        call,
        partial(provider_error, path),
        what=what,
        expected=_EXPECTED,
        attempt=attempt,
        name_of=_name_of,
    )


# --- One for each process -------------------------------------------------------------------------

_provided: dict[tuple[int, str, str | None], RenewedCredentials] = {}
_loading = threading.Lock()


def provided_credentials(path: str, arguments: str | None) -> RenewedCredentials:
    """Return the credentials of a provider (`module:function`), called with the JSON object
    `arguments`, which this process keeps. Raises CredentialsProviderError."""
    key = (os.getpid(), path, arguments)
    with _loading:
        found = _provided.get(key)
        if found is None:
            function = import_function(path, partial(provider_error, path))
            keywords = json.loads(arguments or "{}")
            _hide_exceptions()
            found = _provided[key] = RenewedCredentials(
                lambda: load_provided(path, lambda: function(**keywords))
            )
    return found


def forget_providers() -> None:
    """Forget the credentials of this process. For tests."""
    _provided.clear()


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
