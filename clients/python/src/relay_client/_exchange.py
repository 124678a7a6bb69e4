"""Calls without I/O: what a call is made of, and what is done when it fails.

A flow is a generator.  It yields an `ApiRequest`, and is given the answer or thrown the failure,
or a `Pause`; what it returns is the result.  So each flow stands once (in `_mailboxes`, `_waiting`,
`_listing` and `_sending`), and `Relay` and `AsyncRelay` only drive them: `drive` with a socket that
blocks, `drive_async` with one that does not.

Promises: a call that may be repeated is repeated while its relay is away or overloaded, up to its
deadline, and then fails with `Unreachable` or `Refused`.  One that may not is sent again only where
it never reached the relay.  What answers and is no relay is `Refused`, whatever it says
(`relay_client._answers`).  Where the other side cannot be trusted, or speaks no TLS, the first try
is the last.  A try ends in its time, and takes so many bytes and no more (`relay_client._bounds`).
"""

from __future__ import annotations

import json
import math
import re
import ssl
import time
from collections.abc import Callable, Generator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar, Union, cast

import anyio
import httpx

from relay_client._answers import Shape
from relay_client._bounds import JSON_BYTES, LATE, BodyReader, NotHttp, beginning, within
from relay_client._connect import DEFAULT_URL
from relay_client._text import quoted
from relay_client.errors import Refused, RelayError, Unreachable

T = TypeVar("T")

__tracebackhide__ = True  # a test that fails shows the test

RETRY_TIMEOUT = 10.0
"""Seconds for which a call is repeated that has no deadline of its own."""

GRACE = 5.0
"""Seconds by which the answer to a wait may be late."""

_REPLY = 30.0  # s until an answer begins, or goes on
_WHOLE = 120.0  # s until it has been read
_CONNECT = 5.0  # s until there is a connection
_LINK = 8 << 10  # bytes of the header that names a next page
_MIN_TRY = 0.05  # s that a try gets, however late it is
_FIRST_PAUSE, _LAST_PAUSE = 0.05, 1.0  # s between two tries
_EXPECTED = f"a relay's URL is that of its HTTP port, such as {DEFAULT_URL}"
_RETRYABLE_STATUSES = frozenset({429, 502, 503, 504})


@dataclass(frozen=True)
class ApiRequest:
    """One request."""

    method: str
    path: str
    params: Mapping[str, str | float] = field(default_factory=dict[str, str])
    body: object | None = None
    headers: Mapping[str, str] = field(default_factory=dict[str, str], repr=False)
    long_poll: float | None = None
    """Seconds for which the relay may keep its answer back, if it is to."""
    idempotent: bool = True
    """Whether it may be repeated though it may have been heard."""
    within: float | None = None
    """Seconds that its caller can spare for it, where that is less than it may take by itself."""
    max_bytes: int = JSON_BYTES
    """Bytes that a good answer may have."""


@dataclass(frozen=True)
class Answer:
    """What came of one request."""

    status: int
    headers: httpx.Headers
    content: bytes = field(repr=False)
    fault: str | None = None
    """Why it is no relay's, where that is seen without reading it."""
    asked: str = ""
    """What it answers: the method, and the address without its query."""

    @property
    def is_good(self) -> bool:
        """Whether the status says so."""
        return 200 <= self.status < 300

    @property
    def following(self) -> str | None:
        """What `Link` says of the next page; `Refused` where it says more than any relay."""
        link = self.headers.get("Link", "")
        if len(link) > _LINK:
            raise no_relay(self, f"its Link has more than {_LINK >> 10} KiB")
        found = re.search(r'<([^<>]*)>; *rel="next"', link)
        return found and found[1]


@dataclass(frozen=True)
class Pause:
    """A rest of so many seconds."""

    seconds: float


Flow = Generator[Union[ApiRequest, Pause], Any, T]


def call(
    request: ApiRequest | Callable[[], ApiRequest],
    deadline: float | None = None,
    overall_deadline: float | None = None,
) -> Flow[Answer]:
    """Make a call until it is answered; return the answer if it is a good one.

    Deadlines are of `time.monotonic()`.  A call is repeated up to `deadline`, and no try outlasts
    it but one that may keep its answer back; without one it is repeated for `RETRY_TIMEOUT`, and no
    try outlasts `overall_deadline`, that of the calls of which it is one.  What differs from try to
    try is made anew for each.
    """
    began = time.monotonic()
    if deadline is None:
        deadline = began + RETRY_TIMEOUT
    else:
        overall_deadline = deadline
    pause = _FIRST_PAUSE
    while True:
        failure: Refused | Unreachable
        rest = pause
        one = request if isinstance(request, ApiRequest) else request()
        if overall_deadline is not None and one.long_poll is None:
            one = replace(
                one, within=min(_WHOLE, max(_MIN_TRY, overall_deadline - time.monotonic()))
            )
        try:
            answer: Answer = yield one
        except httpx.TransportError as error:
            seconds = time.monotonic() - began
            where = _where(error.request.url)
            hopeless = _hopeless(error, where)
            failure = Unreachable(
                hopeless
                or f"the relay does not answer {one.method} {where}"
                f" (for {seconds:.1f} s: {error or type(error).__name__})"
            )
            failure.__cause__ = error
            # What could not connect was not heard.
            repeats = not hopeless and (
                one.idempotent or isinstance(error, (httpx.ConnectError, httpx.ConnectTimeout))
            )
        else:
            if answer.is_good:
                if answer.fault is not None:
                    raise no_relay(answer)
                return answer
            failure = refused(answer)
            repeats = answer.status in _RETRYABLE_STATUSES and (
                one.idempotent or answer.status == 429
            )
            rest = max(pause, failure.retry_after)
        if not repeats or time.monotonic() + rest > min(deadline, overall_deadline or deadline):
            raise failure
        yield Pause(rest)
        pause = min(2 * pause, _LAST_PAUSE)


def refused(answer: Answer) -> Refused:
    """Return what a relay said, or whatever stands in front of it."""
    problem = _read(answer)
    if not isinstance(problem, dict):
        return no_relay(answer)
    said = cast("dict[str, Any]", problem)
    kind, detail, errors = (said.get(name) for name in ("type", "detail", "errors"))
    if not isinstance(kind, str) or not isinstance(detail, str):
        return no_relay(answer)
    name = kind.rpartition(":")[2].rpartition("/")[2]
    if name == "not-found" and answer.asked:
        detail = f"{detail} ({answer.asked})"
    each = [str(one) for one in cast("list[object]", errors)] if isinstance(errors, list) else []
    title = str(said.get("title") or "")
    return Refused(answer.status, name, detail, each, _retry_after(answer), title)


def call_json(
    request: ApiRequest | Callable[[], ApiRequest],
    shape: Shape,
    deadline: float | None = None,
    overall_deadline: float | None = None,
) -> Flow[Any]:
    """Make a call, and return what its answer says."""
    return decoded((yield from call(request, deadline, overall_deadline)), shape)


def decoded(answer: Answer, shape: Shape) -> Any:
    """Return what a good answer says; `Refused` if that is no JSON, or no relay's."""
    found = _read(answer)
    if found is _UNREAD or not shape(found):
        # No error has a token in it.
        opens = answer.fault is None and b'_token"' in answer.content
        raise no_relay(answer, "what it says has a token in it" if opens else None)
    return found


_UNREAD = object()


def _read(answer: Answer) -> Any:
    if answer.fault is None:
        try:
            return json.loads(answer.content)
        except (ValueError, RecursionError):
            pass
    return _UNREAD


def no_relay(answer: Answer, fault: str | None = None) -> Refused:
    """Return what is raised where no relay has answered."""
    said = fault or answer.fault or beginning(answer.content)
    if 300 <= answer.status < 400 and "Location" in answer.headers:
        said = f"it leads to {answer.headers['Location']}"
    detail = f"no relay answered: {said}" + (f" ({answer.asked})" if answer.asked else "")
    return Refused(answer.status, "unknown", detail, retry_after=_retry_after(answer))


def _hopeless(error: httpx.TransportError, where: str) -> str | None:
    """Say why no try will do better: no HTTP, a certificate that is not trusted, no TLS at all.

    A connection that ends within a handshake is none of these.
    """
    if isinstance(error, NotHttp):
        return f"no relay answers at {where}: it says {error}, which is not HTTP; {_EXPECTED}"
    ended = (ssl.SSLEOFError, ssl.SSLZeroReturnError, ssl.SSLSyscallError)
    why: BaseException | None = error
    while why is not None:
        if isinstance(why, ssl.SSLError):
            if isinstance(why, ended) or "EOF" in str(why.reason):
                return None
            return f"no TLS connection to {where}: {why}{_in_clear(why)}"
        why = why.__cause__ or why.__context__
    return None


def _in_clear(error: ssl.SSLError) -> str:
    """What is to be asked where the other side answers in clear."""
    clear = ("WRONG_VERSION_NUMBER", "PACKET_LENGTH_TOO_LONG", "RECORD_LAYER_FAILURE")
    return "; it answers without TLS: is http:// meant?" if error.reason in clear else ""


def _where(url: httpx.URL) -> str:
    path = url.raw_path.partition(b"?")[0]
    return f"{url.scheme}://{url.netloc.decode()}{path.decode()}"


def _retry_after(answer: Answer) -> float:
    try:
        seconds = float(answer.headers.get("Retry-After", "0"))
    except ValueError:
        return 0.0
    return seconds if 0.0 <= seconds < math.inf else 0.0


def _request(http: httpx.Client | httpx.AsyncClient, request: ApiRequest) -> httpx.Request:
    longest = _REPLY if request.within is None else min(_REPLY, request.within)
    return http.build_request(
        request.method,
        request.path,
        params=dict(request.params) or None,
        content=None if request.body is None else _json(request.body),
        headers={**request.headers, **({} if request.body is None else _JSON)},
        timeout=httpx.Timeout(
            longest,
            connect=min(_CONNECT, longest),
            read=longest if request.long_poll is None else request.long_poll + GRACE,
        ),
    )


_JSON = {"Content-Type": "application/json"}


def _json(body: object) -> bytes:
    """Return what httpx makes of it too, but for old ones, which send half a character."""
    return json.dumps(body, ensure_ascii=False, separators=(",", ":"), allow_nan=False).encode()


def _whole(request: ApiRequest) -> float:
    """Seconds within which a try ends, whatever the other side does."""
    if request.long_poll is not None:
        return request.long_poll + GRACE
    return _WHOLE if request.within is None else request.within


def _send(http: httpx.Client, request: ApiRequest) -> Answer:
    with within(_whole(request)):
        response = http.send(_request(http, request), stream=True)
        try:
            reader = BodyReader(response.status_code, response.headers, request.max_bytes)
            if reader.fault is None:
                for piece in response.iter_raw():
                    if not reader.takes(piece):
                        break
        finally:
            response.close()
    return _answer(response, reader)


async def _send_async(http: httpx.AsyncClient, request: ApiRequest) -> Answer:
    built = _request(http, request)
    with anyio.move_on_after(_whole(request)):
        try:
            response = await http.send(built, stream=True)
        except ssl.SSLError as error:  # as httpcore 0.17 leaves it on asyncio
            raise httpx.ConnectError(str(error), request=built) from error
        reader = BodyReader(response.status_code, response.headers, request.max_bytes)
        try:
            if reader.fault is None:
                async for piece in response.aiter_raw():
                    if not reader.takes(piece):
                        # So that the next read fails, and ends all the generators that iterate.
                        await response.aclose()
        except httpx.TransportError:
            if reader.fault is None:
                raise
        finally:
            await response.aclose()
        return _answer(response, reader)
    raise httpx.ReadTimeout(LATE, request=built)


def _answer(response: httpx.Response, reader: BodyReader) -> Answer:
    request = response.request
    asked = f"{request.method} {_where(request.url)}"
    return Answer(response.status_code, response.headers, reader.content(), reader.fault, asked)


def _failure(http: httpx.Client | httpx.AsyncClient, error: Exception) -> Exception:
    """Return what a flow is thrown.

    httpx has no error of its own for a client that is closed, and others than those of a call for
    what a caller has named that can be in no call.
    """
    if isinstance(error, RuntimeError) and http.is_closed:
        return RelayError("the client is closed")
    if isinstance(error, UnicodeEncodeError):
        what = error.object[error.start : error.end]
        if "\ud800" <= what[0] <= "\udfff":
            return RelayError(f"half a character cannot be sent: {quoted(what)}")
    if isinstance(error, httpx.LocalProtocolError) and "header" in str(error):
        return RelayError("a header of the call has characters that none can have")
    if isinstance(error, (httpx.InvalidURL, UnicodeError)):
        return RelayError(f"there is no such call: {error}")
    return error


_FAILURES = (httpx.TransportError, httpx.InvalidURL, UnicodeError, RuntimeError)
"""What a flow is told of; all else is a fault of this client's."""


def drive(http: httpx.Client, flow: Flow[T]) -> T:
    """Carry a flow out."""
    try:
        step = next(flow)
        while True:
            came: Answer | None
            try:
                if isinstance(step, Pause):
                    time.sleep(step.seconds)
                    came = None
                else:
                    came = _send(http, step)
            except _FAILURES as error:
                step = flow.throw(_failure(http, error))
            else:
                step = flow.send(came)
    except StopIteration as end:
        result: T = end.value
        return result


async def drive_async(http: httpx.AsyncClient, flow: Flow[T]) -> T:
    """Carry a flow out, on asyncio or Trio."""
    try:
        step = next(flow)
        while True:
            came: Answer | None
            try:
                if isinstance(step, Pause):
                    await anyio.sleep(step.seconds)
                    came = None
                else:
                    came = await _send_async(http, step)
            except _FAILURES as error:
                step = flow.throw(_failure(http, error))
            else:
                step = flow.send(came)
    except StopIteration as end:
        result: T = end.value
        return result


def shielded(seconds: float) -> anyio.CancelScope:
    """Return what lets its block run for so long, though all around it is cancelled."""
    return anyio.move_on_after(seconds, shield=True)
