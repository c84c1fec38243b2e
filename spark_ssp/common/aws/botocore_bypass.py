"""Sends repeated AWS requests without botocore's handlers, two thirds of the cost of a small call.

botocore builds, resolves, signs and passes each request through some forty handlers, which takes
more time than the request itself. The first call of each kind goes through botocore, and the
request it sends (URL, headers, signature) becomes the pattern of all later ones. A pattern is used
only if all its parts are recognized and signing it here gives the same signature; anything else
(another protocol, a proxy, a path, additional headers) is left to botocore. Parameters are not
validated here, and handlers registered by other code do not run.

Credentials come from botocore's signer at each call, which refreshes them; connections come from
botocore's pool, with its certificates, time-outs and limits. Errors are botocore's too.

Signatures are AWS's version 4 ("Create a signed AWS API request" in the IAM user guide), of a POST
without a query, as the JSON protocol sends.
"""

from __future__ import annotations

import hashlib
import hmac
import re
import selectors
import socket
import threading
import time
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from time import monotonic
from typing import TYPE_CHECKING, Any, Final, Generic, NamedTuple, TypeVar
from urllib.parse import urlsplit

import orjson
import urllib3.exceptions as http
from botocore.awsrequest import HeadersDict
from botocore.exceptions import (
    BotoCoreError,
    ConnectionClosedError,
    ConnectTimeoutError,
    EndpointConnectionError,
    HTTPClientError,
    ReadTimeoutError,
    SSLError,
)
from botocore.httpsession import URLLib3Session
from botocore.parsers import create_parser
from urllib3.response import HTTPResponse

from spark_ssp.common.aws.http_exchange import (
    Line,
    Response,
    header_lines,
    is_supported,
    post,
    take_lines,
)

if TYPE_CHECKING:
    from botocore.client import BaseClient
    from urllib3 import HTTPConnectionPool

Answer = Mapping[str, Any]
Request = Mapping[str, Any]
Decode = Callable[[bytes], Answer | None]
"""Parses the body of an answer with status 200, or returns None to leave it to botocore."""
Encode = Callable[[Request], bytes]
"""Returns the body of a request. Raises TypeError or ValueError to leave it to botocore."""

SEND_SECONDS: Final = "SparkSspSendSeconds"
"""The key in `ResponseMetadata` of the time that a request took to leave this machine. It is absent
if botocore has sent the request."""

# --- Signatures ----------------------------------------------------------------------------------

ALGORITHM: Final = "AWS4-HMAC-SHA256"
_END: Final = "aws4_request"


@dataclass(frozen=True, slots=True, kw_only=True)
class Scope:
    """The scope of a signature, except the day."""

    region: str
    service: str

    def on(self, day: str) -> str:
        """Return the signed form of the scope on a day (YYYYMMDD)."""
        return f"{day}/{self.region}/{self.service}/{_END}"


def signing_key(secret_key: str, day: str, scope: Scope) -> bytes:
    """The key for all signatures of a day (YYYYMMDD) in this scope."""
    key = f"AWS4{secret_key}".encode()
    for part in (day, scope.region, scope.service, _END):
        key = hmac.digest(key, part.encode(), "sha256")
    return key


class RequestSigner:
    """Signs POST requests to `path` that differ only in their bodies.

    `headers` are those to sign, by their names in lower case, without spaces at the ends of values
    or two in a row within; `host` and `x-amz-date` (YYYYMMDDTHHMMSSZ) must be among them. `key` is
    the `signing_key` of that day.
    """

    __slots__ = ("_header", "_key", "_request", "_text")

    def __init__(
        self, *, access_key: str, key: bytes, scope: Scope, path: str, headers: Mapping[str, str]
    ) -> None:
        moment = headers["x-amz-date"]
        scoped = scope.on(moment[:8])
        names = sorted(headers)
        signed = ";".join(names)
        lines = "".join(f"{name}:{headers[name]}\n" for name in names)
        self._key = key
        self._request = f"POST\n{path}\n\n{lines}\n{signed}\n"
        self._text = f"{ALGORITHM}\n{moment}\n{scoped}\n"
        self._header = (
            f"{ALGORITHM} Credential={access_key}/{scoped}, SignedHeaders={signed}, Signature="
        )

    def authorization(self, body: bytes) -> str:
        """Return the header `Authorization` of the request with this body."""
        request = self._request + hashlib.sha256(body).hexdigest()
        text = self._text + hashlib.sha256(request.encode()).hexdigest()
        return self._header + hmac.digest(self._key, text.encode(), "sha256").hex()


# --- Patterns ------------------------------------------------------------------------------------

_KEPT: Final = frozenset({"content-type", "user-agent", "x-amz-target"})
_MADE: Final = frozenset(
    {"authorization", "content-length", "host", "x-amz-date", "x-amz-security-token"}
)
_LEFT_OUT: Final = frozenset({"amz-sdk-invocation-id", "amz-sdk-request"})
"""Headers about the SDK's retries, which are off."""
_UNSIGNED: Final = frozenset({"authorization", "content-length", "user-agent"}) | _LEFT_OUT
_JSON: Final = re.compile(r"application/x-amz-json-1\.\d")
_CREDENTIAL: Final = re.compile(
    re.escape(ALGORITHM) + r" Credential=[^,]+/\d{8}/(?P<region>[^/,]+)/(?P<service>[^/,]+)/"
)
_PORTS: Final = {"http": 80, "https": 443}


@dataclass(frozen=True, slots=True, kw_only=True)
class _Pattern:
    """A request that botocore sent, from which later calls of its kind are made."""

    url: str
    sent: Mapping[str, str]
    """The headers, without those that are made for each call."""
    signed: Mapping[str, str]
    """Those of them that are signed, and `host`, by their names in lower case."""
    scope: Scope
    account: str | None
    """Of the credentials, if they know it: the host may depend on it."""
    signer: Any
    pool: HTTPConnectionPool


@dataclass(frozen=True, slots=True, kw_only=True)
class _Second:
    """The part that the requests of a pattern have in common for a second: all but the body and
    its signature."""

    pattern: _Pattern
    seconds: int
    credentials: Any = field(repr=False)
    headers: str = field(repr=False)
    """All but `Authorization` and `Content-Length`."""
    signer: RequestSigner


class Prepared(NamedTuple):
    """A signed request. Its text would show the headers, which are secret."""

    pool: HTTPConnectionPool
    url: str
    headers: str
    body: bytes

    def __repr__(self) -> str:
        return f"Prepared({self.url})"


class DirectCalls:
    """Makes the calls named in `decoders` for a botocore client that does not retry. Thread-safe.
    `encoders` are for calls whose parameters JSON cannot contain as they are, such as bytes. `now`
    is in seconds since the epoch."""

    def __init__(
        self,
        client: BaseClient,
        decoders: Mapping[str, Decode],
        *,
        encoders: Mapping[str, Encode] | None = None,
        now: Callable[[], float] = time.time,
    ) -> None:
        self._client = client
        self._decoders = decoders
        self._encoders = encoders or {}
        self._now = now
        self._patterns: dict[_Kind, _Pattern] = {}
        self._seconds: dict[_Kind, _Second] = {}
        """Those of the last requests."""
        self._signer: Any = None
        self._learned = threading.local()
        """The kind and pattern of the request that botocore sends in a thread: older versions pass
        the handlers of a request nothing that they share."""
        self._last_key: tuple[tuple[str, str, Scope], bytes] | None = None
        events = client.meta.events
        service = client.meta.service_model.service_id.hyphenize()
        for operation in decoders:
            events.register_first(f"before-call.{service}.{operation}", self._hear)
            events.register_last(f"after-call.{service}.{operation}", self._publish)
        # Handlers of a more general name run later: this is after all that may change the request.
        events.register_last("before-send", self._learn)

    def forget(self) -> None:
        """Go the long way once more: for connections that were closed."""
        self._patterns.clear()
        self._seconds.clear()

    def call(self, operation: str, request: Request) -> Answer | None:
        """Return the answer, or None if the call must go through botocore. Raises the same errors
        as the client's method."""
        prepared = self.prepare(operation, request)
        if prepared is None:
            return None
        try:
            response = post(prepared.pool, prepared.headers, prepared.body)
        except (http.HTTPError, OSError) as error:
            raise _sdk_error(error, prepared.url) from error
        return self.answer(operation, response)

    def prepare(self, operation: str, request: Request) -> Prepared | None:
        """Return the signed request of a call, or None if it must go through botocore. Raises the
        errors of `call` that precede the sending."""
        kind = _kind(operation, request)
        pattern = self._patterns.get(kind)
        if pattern is None:
            return None
        try:
            body = self._encoders.get(operation, _encode)(request)
        except (TypeError, ValueError):  # bytes, or text that is not Unicode
            return None
        credentials = _credentials(pattern.signer)
        if credentials is None or _account(credentials) != pattern.account:
            return None
        now, last = int(self._now()), self._seconds.get(kind)
        if (
            last is None
            or last.seconds != now
            or last.pattern is not pattern
            or last.credentials != credentials
        ):
            last = self._seconds[kind] = self._second(pattern, now, credentials)
        headers = f"{last.headers}Authorization: {last.signer.authorization(body)}\r\n"
        return Prepared(pattern.pool, pattern.url, headers, body)

    def _second(self, pattern: _Pattern, seconds: int, credentials: Any) -> _Second:
        moment = time.strftime("%Y%m%dT%H%M%SZ", time.gmtime(seconds))
        sent = {**pattern.sent, "X-Amz-Date": moment}
        signed = {**pattern.signed, "x-amz-date": moment}
        if credentials.token:
            sent["X-Amz-Security-Token"] = signed["x-amz-security-token"] = credentials.token
        try:
            signer = self._request_signer(pattern.scope, signed, credentials)
            header_lines({"Authorization": signer.authorization(b"")})
            headers = header_lines(sent)
        except ValueError as error:
            raise _sdk_error(error, pattern.url) from None
        return _Second(
            pattern=pattern,
            seconds=seconds,
            credentials=credentials,
            headers=headers,
            signer=signer,
        )

    def _request_signer(
        self, scope: Scope, signed: Mapping[str, str], credentials: Any
    ) -> RequestSigner:
        what = (credentials.secret_key, signed["x-amz-date"][:8], scope)
        last = self._last_key
        if last is None or last[0] != what:
            last = self._last_key = (what, signing_key(*what))
        return RequestSigner(
            access_key=credentials.access_key, key=last[1], scope=scope, path="/", headers=signed
        )

    def answer(self, operation: str, response: Response) -> Answer:
        """Return the answer that a response contains. Raises the errors of the client's method."""
        status, headers, body, send_seconds = response
        if status == 200:
            decoded = self._decoders[operation](body)
            if decoded is not None:
                kept = {"date": date} if (date := headers.get("date")) is not None else {}
                metadata = {"HTTPHeaders": kept, SEND_SECONDS: send_seconds}
                return {**decoded, "ResponseMetadata": metadata}
        model: Any = self._client.meta.service_model.operation_model(operation)
        parser: Any = create_parser(protocol_of(model.service_model))
        answer = {
            "status_code": status,
            "headers": HeadersDict(headers),
            "body": body,
            "context": {"operation_name": operation},
        }
        parsed = parser.parse(answer, model.output_shape)
        if status >= 300:
            code = parsed.get("Error", {}).get("Code")
            shape = None if code is None else model.service_model.shape_for_error_code(code)
            if shape is not None:  # such as the row that failed a condition of DynamoDB
                parsed |= parser.parse(answer, shape)
            kind: Any = self._client.exceptions.from_code(code)  # a subclass of ClientError
            raise kind(parsed, operation)
        if not isinstance(parsed, dict):  # botocore stumbles over it a little later
            raise TypeError("an answer that is not an object")
        return parsed

    # --- Learning --------------------------------------------------------------------------------

    def _hear(self, request_signer: Any, **_: object) -> None:
        self._signer = request_signer
        self._learned.pattern = None

    def _learn(self, request: Any, event_name: str, **_: object) -> None:
        """Called by botocore with a request that it is about to send."""
        operation = event_name.rpartition(".")[2]
        if operation not in self._decoders:
            return
        try:
            pattern = self._pattern_of(request)
            if pattern is not None:
                kind = _kind(operation, orjson.loads(request.body))
                self._learned.pattern = kind, pattern
        except (AttributeError, BotoCoreError, LookupError, TypeError, ValueError):
            # Private parts of botocore may have changed: its public way still works.
            return

    def _publish(self, http_response: Any, **_: object) -> None:
        """Called by botocore with an answer, which may be one that a handler made up."""
        learned = getattr(self._learned, "pattern", None)
        if learned is not None and isinstance(http_response.raw, HTTPResponse):
            kind, pattern = learned
            self._patterns[kind] = pattern

    def _pattern_of(self, request: Any) -> _Pattern | None:
        headers = {_text(name): _text(value) for name, value in request.headers.items()}
        lower = {name.lower(): value for name, value in headers.items()}
        address = urlsplit(request.url)
        found = _CREDENTIAL.match(lower.get("authorization", ""))
        usual = (
            request.method == "POST"
            and address.path == "/"
            and not address.query
            and lower.keys() <= _KEPT | _MADE | _LEFT_OUT
            and _JSON.fullmatch(lower.get("content-type", "")) is not None
        )
        pool = _pool(self._client, request.url)
        if not usual or pool is None or found is None:
            return None
        scope = Scope(region=found["region"], service=found["service"])
        credentials = _credentials(self._signer)
        host = {"host": _host(request.url)}
        signed = host | {name: lower[name] for name in lower.keys() - _UNSIGNED}
        # Credentials that were refreshed in between give another signature: the next call that goes
        # this way is as good to learn from.
        signer = self._request_signer(scope, signed, credentials)
        if signer.authorization(request.body) != lower["authorization"]:
            return None
        return _Pattern(
            url=request.url,
            sent={
                "Host": host["host"],
                **{name: value for name, value in headers.items() if name.lower() in _KEPT},
            },
            signed=host | {name: lower[name] for name in _KEPT - _UNSIGNED if name in lower},
            scope=scope,
            account=_account(credentials),
            signer=self._signer,
            pool=pool,
        )


def _encode(request: Request) -> bytes:
    return orjson.dumps(request, default=_seconds, option=orjson.OPT_PASSTHROUGH_DATETIME)


def _seconds(value: object) -> float:
    """Return a time as the JSON protocol has it: in seconds since the epoch."""
    if not isinstance(value, datetime) or value.tzinfo is None:
        raise TypeError("neither JSON nor a time")
    return value.timestamp()


_Kind = tuple[str, str | None, str | None, str | None]


def protocol_of(service_model: Any) -> str:
    """Return the protocol of a client. Before version 1.37 botocore has one for each service."""
    found = getattr(service_model, "resolved_protocol", None)
    return str(service_model.metadata["protocol"] if found is None else found)


def _kind(operation: str, request: Request) -> _Kind:
    """Calls of a kind go to one URL. It depends on these, and on the account of the credentials."""
    get = request.get
    return operation, get("StreamARN"), get("StreamId"), get("TableName")


def _credentials(signer: Any) -> Any:
    """Frozen, and refreshed before they expire; None if there are none."""
    credentials = signer._credentials
    return None if credentials is None else credentials.get_frozen_credentials()


def _account(credentials: Any) -> str | None:
    return getattr(credentials, "account_id", None)


def _pool(client: BaseClient, url: str) -> HTTPConnectionPool | None:
    """botocore's connections to this URL; None when it goes another way. Certificates are set up
    here as well: other threads may use the pool before botocore does so."""
    endpoint: Any = client._endpoint  # type: ignore[attr-defined]
    session = endpoint.http_session
    if type(session) is not URLLib3Session:
        return None
    own: Any = session
    if own._proxy_config.proxy_url_for(url) is not None:
        return None
    pool: HTTPConnectionPool = own._manager.connection_from_url(url)
    own._setup_ssl_cert(pool, url, own._verify)
    return pool if is_supported(pool) else None


def _host(url: str) -> str:
    """The header Host, as HTTP clients send it: without the default port."""
    address = urlsplit(url)
    name = address.hostname or ""
    if ":" in name:
        name = f"[{name}]"
    plain = address.port is None or address.port == _PORTS.get(address.scheme)
    return name if plain else f"{name}:{address.port}"


def _text(value: str | bytes) -> str:
    return value.decode("utf-8") if isinstance(value, bytes) else value


def _sdk_error(error: Exception, url: str) -> BotoCoreError:
    """Return the error of the SDK for one of `http_exchange`."""
    match error:
        case http.SSLError():
            return SSLError(endpoint_url=url, error=error)
        case http.NewConnectionError() | socket.gaierror():
            return EndpointConnectionError(endpoint_url=url, error=error)
        case http.ConnectTimeoutError():
            return ConnectTimeoutError(endpoint_url=url, error=error)
        case http.ReadTimeoutError():
            return ReadTimeoutError(endpoint_url=url, error=error)
        case http.ProtocolError():
            return ConnectionClosedError(endpoint_url=url, error=error)
        case ValueError():
            # About a header. Its text may contain the header, which may be a secret.
            return HTTPClientError(error="a header that cannot be sent")
        case _:
            return HTTPClientError(error=error)


# --- Many calls of one thread ---------------------------------------------------------------------

Tag = TypeVar("Tag")

_LOOK_S: Final = 0.5
"""The time between two looks at calls that may have timed out."""


class CallsInFlight(Generic[Tag]):
    """Calls that one thread sends and whose answers it awaits together, so that a call that waits
    costs nothing: threads that wait side by side take turns at Python's lock, which takes more time
    than the call. Uses connections that are open already, of which it takes up to `most` of each
    host."""

    def __init__(self, calls: DirectCalls, most: int) -> None:
        self._calls = calls
        self._most = most
        self._selector = selectors.DefaultSelector()
        self._idle: dict[HTTPConnectionPool, list[Line]] = {}
        self._sent: dict[Line, _Sent[Tag]] = {}
        self._failed: list[tuple[Tag, Exception]] = []
        self._looked_at = 0.0

    def __len__(self) -> int:
        """The number of calls that were begun and not yet returned by `answers`."""
        return len(self._sent) + len(self._failed)

    def begin(self, operation: str, request: Request, tag: Tag) -> bool:
        """Send a request. False if it must go through botocore, or no open connection is left.
        Raises the errors of `DirectCalls.call` that precede the sending."""
        prepared = self._calls.prepare(operation, request)
        if prepared is None:
            return False
        idle = self._idle.setdefault(prepared.pool, [])
        if not idle:
            idle += self._taken(prepared.pool)
        while idle and not idle[-1].is_clean():
            self._drop(idle.pop())
        if not idle:
            return False
        line = idle.pop()
        self._sent[line] = _Sent(tag, operation, prepared)
        try:
            line.send(prepared.headers, prepared.body)
        except (http.HTTPError, OSError) as error:
            self._failed.append((tag, _sdk_error(error, prepared.url)))
            self._drop(line)
        return True

    def _taken(self, pool: HTTPConnectionPool) -> list[Line]:
        """Take connections that others have left open."""
        held = sum(line.pool is pool for line in self._sent)
        lines = take_lines(pool, self._most - held)
        for line in lines:
            self._selector.register(line, selectors.EVENT_READ, line)
        return lines

    def answers(self) -> Iterator[tuple[Tag, Answer | Exception]]:
        """Wait for at least one answer, unless none is to come; return the answers, and the errors
        of `DirectCalls.call`, as they are read. Calls may be begun in between."""
        failed, self._failed = self._failed, []
        yield from failed
        is_one_read = bool(failed)
        while self._sent and not is_one_read:
            ready = [key.data for key, _ in self._selector.select(_LOOK_S)]
            for line in [line for line in ready if line not in self._sent]:
                self._idle[line.pool].remove(line)  # nothing was asked: the service closes it
                ready.remove(line)
                self._drop(line)
            for line in [*ready, *self._silent(ready)]:
                sent = self._sent[line]
                outcome = self._outcome(line, sent)
                if outcome is not None:
                    is_one_read = True
                    yield sent.tag, outcome

    def _silent(self, ready: Collection[Line]) -> list[Line]:
        """Return the lines that may have timed out, from time to time."""
        now = monotonic()
        if now - self._looked_at < _LOOK_S:
            return []
        self._looked_at = now
        return [
            line for line in self._sent if now - line.progress_at > _LOOK_S and line not in ready
        ]

    def _outcome(self, line: Line, sent: _Sent[Tag]) -> Answer | Exception | None:
        try:
            response = line.receive()
        except (http.HTTPError, OSError) as error:
            self._drop(line)
            return _sdk_error(error, sent.prepared.url)
        if response is None:
            return None
        if line.is_kept:
            del self._sent[line]
            self._idle[line.pool].append(line)
        else:
            self._drop(line)
        try:
            return self._calls.answer(sent.operation, response)
        except Exception as error:  # noqa: BLE001 - handed to the caller, never dropped
            return error

    def _drop(self, line: Line) -> None:
        self._sent.pop(line, None)
        self._selector.unregister(line)
        line.give_back()

    def close(self) -> None:
        """Give the connections back. Those of calls under way are closed."""
        for key in list(self._selector.get_map().values()):
            self._drop(key.data)
        self._idle.clear()
        self._selector.close()


class _Sent(NamedTuple, Generic[Tag]):
    """A call under way."""

    tag: Tag
    operation: str
    prepared: Prepared
