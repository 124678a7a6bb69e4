"""Calls without I/O: what a call is made of, and what is done when it fails.

A flow is a generator.  It yields an `ApiRequest`, and is given the answer or thrown the failure,
or a `Pause`; what it returns is the result.  So each flow stands once (`relay_client._flows`), and
the two clients only drive them: `drive` with a socket that blocks, `drive_async` with one that does
not.

Promises: a call that may be repeated is repeated while its relay is away or overloaded, up to its
deadline, and then fails with `Unreachable` or `Refused`.  One that may not is sent again only where
it never reached the relay.  What answers and is no relay is `Refused`, whatever it says.  Where the
other side cannot be trusted, or speaks no TLS, the first try is the last.
"""

from __future__ import annotations

import ssl
import time
from collections.abc import Callable, Generator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar, Union

import anyio
import httpx

from relay_client.errors import Refused, RelayError, Unreachable

T = TypeVar("T")

__tracebackhide__ = True  # a test that fails shows the test

RETRY_TIMEOUT = 10.0
"""Seconds for which a call is repeated that has no deadline of its own."""

GRACE = 5.0
"""Seconds by which the answer to a wait may be late."""

_REPLY = 30.0  # s until an answer begins
_CONNECT = 5.0  # s until there is a connection
_LEAST = 0.05  # s that a try gets, however late it is
_FIRST_PAUSE, _LAST_PAUSE = 0.05, 1.0  # s between two tries
_RETRYABLE_STATUSES = frozenset({429, 502, 503, 504})


@dataclass(frozen=True)
class ApiRequest:
    """One request."""

    method: str
    path: str
    params: Mapping[str, str | float] = field(default_factory=dict[str, str])
    body: object | None = None
    headers: Mapping[str, str] = field(default_factory=dict[str, str])
    long_poll: float | None = None
    """Seconds for which the relay may keep its answer back, if it is to."""
    idempotent: bool = True
    """Whether it may be repeated though it may have been heard."""
    within: float | None = None
    """Seconds that its caller can spare for it, where that is less than it may take by itself."""


@dataclass(frozen=True)
class Pause:
    """A rest of so many seconds."""

    seconds: float


Flow = Generator[Union[ApiRequest, Pause], Any, T]


def call(
    request: ApiRequest | Callable[[], ApiRequest], deadline: float | None = None
) -> Flow[httpx.Response]:
    """Make a call until it is answered; return the answer if it is a good one.

    `deadline` is of `time.monotonic()`; no try outlasts it, but for one that may keep its answer
    back; without one a call is repeated for `RETRY_TIMEOUT`.  What differs from try to try is made
    anew for each.
    """
    began = time.monotonic()
    bounded = deadline is not None
    if deadline is None:
        deadline = began + RETRY_TIMEOUT
    pause = _FIRST_PAUSE
    while True:
        failure: Refused | Unreachable
        rest = pause
        one = request if isinstance(request, ApiRequest) else request()
        if bounded and one.long_poll is None:
            one = replace(one, within=max(_LEAST, deadline - time.monotonic()))
        try:
            answer: httpx.Response = yield one
        except httpx.TransportError as error:
            seconds = time.monotonic() - began
            where = _where(error.request.url)
            hopeless = _hopeless(error)
            failure = Unreachable(
                f"no TLS connection to {where}: {hopeless}"
                if hopeless
                else f"the relay does not answer {one.method} {where}"
                f" (for {seconds:.1f} s: {error or type(error).__name__})"
            )
            failure.__cause__ = error
            # What could not connect was not heard.
            repeats = not hopeless and (
                one.idempotent or isinstance(error, (httpx.ConnectError, httpx.ConnectTimeout))
            )
        else:
            if answer.is_success:
                return answer
            failure = refused(answer)
            repeats = answer.status_code in _RETRYABLE_STATUSES and (
                one.idempotent or answer.status_code == 429
            )
            rest = max(pause, failure.retry_after)
        if not repeats or time.monotonic() + rest > deadline:
            raise failure
        yield Pause(rest)
        pause = min(2 * pause, _LAST_PAUSE)


def refused(answer: httpx.Response) -> Refused:
    """Return what a relay said, or whatever stands in front of it."""
    try:
        problem = answer.json()
        return Refused(
            answer.status_code,
            str(problem["type"]).rpartition(":")[2].rpartition("/")[2],
            str(problem["detail"]),
            [str(error) for error in problem.get("errors", ())],
            _retry_after(answer),
        )
    except (ValueError, LookupError, TypeError, AttributeError):
        return _no_relay(answer)


def call_json(
    request: ApiRequest | Callable[[], ApiRequest], deadline: float | None = None
) -> Flow[Any]:
    """Make a call, and return what its answer says."""
    return decoded((yield from call(request, deadline)))


def decoded(answer: httpx.Response) -> Any:
    """Return what a good answer says; `Refused` if that is no JSON."""
    try:
        return answer.json()
    except ValueError:
        raise _no_relay(answer) from None


def _no_relay(answer: httpx.Response) -> Refused:
    said = repr(answer.text[:200].strip())
    if answer.has_redirect_location:
        said = f"it leads to {answer.headers['Location']}"
    detail = f"no relay answered: {said}"
    return Refused(answer.status_code, "unknown", detail, retry_after=_retry_after(answer))


def _hopeless(error: BaseException) -> ssl.SSLError | None:
    """Return why no try will do better: a certificate that is not trusted, or no TLS at all.

    A connection that ends within a handshake is neither.
    """
    ended = (ssl.SSLEOFError, ssl.SSLZeroReturnError, ssl.SSLSyscallError)
    why: BaseException | None = error
    while why is not None:
        if isinstance(why, ssl.SSLError):
            return None if isinstance(why, ended) or "EOF" in str(why.reason) else why
        why = why.__cause__ or why.__context__
    return None


def _where(url: httpx.URL) -> str:
    path = url.raw_path.partition(b"?")[0]
    return f"{url.scheme}://{url.netloc.decode()}{path.decode()}"


def _retry_after(answer: httpx.Response) -> float:
    try:
        return float(answer.headers.get("Retry-After", "0"))
    except ValueError:
        return 0.0


def _request(http: httpx.Client | httpx.AsyncClient, request: ApiRequest) -> httpx.Request:
    most = _REPLY if request.within is None else min(_REPLY, request.within)
    return http.build_request(
        request.method,
        request.path,
        params=dict(request.params) or None,
        json=request.body,
        headers=dict(request.headers),
        timeout=httpx.Timeout(
            most,
            connect=min(_CONNECT, most),
            read=most if request.long_poll is None else request.long_poll + GRACE,
        ),
    )


def _failure(http: httpx.Client | httpx.AsyncClient, error: Exception) -> Exception:
    """Return what a flow is thrown: httpx has no error of its own for a client that is closed."""
    if isinstance(error, RuntimeError) and http.is_closed:
        return RelayError("the client is closed")
    return error


def drive(http: httpx.Client, flow: Flow[T]) -> T:
    """Carry a flow out."""
    try:
        step = next(flow)
        while True:
            try:
                if isinstance(step, Pause):
                    time.sleep(step.seconds)
                    came = None
                else:
                    came = http.send(_request(http, step))
            except (httpx.TransportError, RuntimeError) as error:
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
            try:
                if isinstance(step, Pause):
                    await anyio.sleep(step.seconds)
                    came = None
                else:
                    came = await http.send(_request(http, step))
            except (httpx.TransportError, RuntimeError) as error:
                step = flow.throw(_failure(http, error))
            else:
                step = flow.send(came)
    except StopIteration as end:
        result: T = end.value
        return result


def shielded(seconds: float) -> anyio.CancelScope:
    """Return what lets its block run for so long, though all around it is cancelled."""
    return anyio.move_on_after(seconds, shield=True)
