"""Calls without I/O: what a call is made of, and what is done when it fails.

A flow is a generator.  It yields an `ApiRequest`, and is given the answer or thrown the failure,
or a `Pause`; what it returns is the result.  So each flow stands once (in `_mailboxes`, `_waiting`,
`_listing` and `_sending`), and `Relay` and `AsyncRelay` only run them (`relay_client._http`).

Promises: a call that may be repeated is repeated while its relay is away or overloaded, up to its
deadline, and then fails with `Unreachable` or `Refused`.  One that may not is sent again only where
it never reached the relay.  What answers and is no relay is `Refused`, whatever it says
(`relay_client._answers`).  Where the other side cannot be trusted, or speaks no TLS or no HTTP, the
first try is the last.
"""

from __future__ import annotations

import json
import math
import re
import ssl
import time
from collections.abc import Callable, Generator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, NoReturn, TypeVar, Union, cast

import httpx

from relay_client._answers import Shape
from relay_client._bounds import JSON_BYTES, NotHttp, beginning
from relay_client._connect import DEFAULT_URL
from relay_client.errors import Refused, Unreachable

T = TypeVar("T")

__tracebackhide__ = True  # a test that fails shows the test

RETRY_TIMEOUT = 10.0
"""Seconds for which a call is repeated that has no deadline of its own."""

ANSWER_TIMEOUT = 120.0
"""Seconds until an answer has been read."""

_MAX_LINK = 8 << 10  # bytes of the header that names a next page
_MIN_TRY = 0.05  # s that a try gets, however late it is
_FIRST_PAUSE, _LAST_PAUSE = 0.05, 1.0  # s between two tries
_EXPECTED = f"a relay's URL is that of its HTTP port, such as {DEFAULT_URL}"
_REMEDY = (
    "Set RELAY_TOKEN to a key that is made at this relay"
    " (relay key create --owner tests --scope read,send)."
)
_RETRYABLE_STATUSES = frozenset({429, 502, 503, 504})


Says = Callable[[str, str], str]
"""Is given a problem's name and what the relay says of it, and returns what is said of it."""


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
    time_limit: float | None = None
    """Seconds that its caller can spare for it, where that is less than it may take by itself."""
    max_bytes: int = JSON_BYTES
    """Bytes that a good answer may have."""
    says: Says | None = None
    """What is said of a refusal, where its caller knows more of it than the relay says."""


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
        if len(link) > _MAX_LINK:
            raise no_relay(self, f"its Link has more than {_MAX_LINK >> 10} KiB")
        found = re.search(r'<([^<>]*)>; *rel="next"', link)
        return found and found[1]


@dataclass(frozen=True)
class Pause:
    """That nothing is to be done for so many seconds."""

    seconds: float


Flow = Generator[Union[ApiRequest, Pause], Any, T]


def call(
    request: ApiRequest | Callable[[], ApiRequest],
    deadline: float | None = None,
    *,
    shared: bool = False,
) -> Flow[Answer]:
    """Make a call until it is answered; return the answer if it is a good one.

    A call is repeated up to `deadline`, an instant of `time.monotonic()`, and no try outlasts it
    but one that may keep its answer back.  Without one, or where it is `shared` by several calls of
    which this is one, it is repeated for `RETRY_TIMEOUT`.  What differs from try to try is made
    anew for each.
    """
    began = time.monotonic()
    last_start = began + RETRY_TIMEOUT
    if deadline is not None:
        last_start = min(last_start, deadline) if shared else deadline
    pause = _FIRST_PAUSE
    while True:
        failure: Refused | Unreachable
        delay = pause
        one = request if isinstance(request, ApiRequest) else request()
        if deadline is not None and one.long_poll is None:
            left = max(_MIN_TRY, deadline - time.monotonic())
            one = replace(one, time_limit=min(ANSWER_TIMEOUT, left))
        try:
            answer: Answer = yield one
        except httpx.TransportError as error:
            seconds = time.monotonic() - began
            where = address_of(error.request.url)
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
            failure = refused(answer, by_session="X-Session-Token" in one.headers, says=one.says)
            repeats = answer.status in _RETRYABLE_STATUSES and (
                one.idempotent or answer.status == 429
            )
            delay = max(pause, failure.retry_after)
        if not repeats or time.monotonic() + delay > last_start:
            raise failure
        yield Pause(delay)
        pause = min(2 * pause, _LAST_PAUSE)


def refused(answer: Answer, *, by_session: bool = False, says: Says | None = None) -> Refused:
    """Return what a relay said, or whatever stands in front of it.

    `by_session`: an inbox's own token was to open it, and no other would be of use.  `says` is the
    request's.
    """
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
    elif name == "unauthenticated" and not by_session:
        detail = f"{detail} ({answer.asked}) {_REMEDY}"
    elif says is not None:
        detail = says(name, detail)
    each = [str(one) for one in cast("list[object]", errors)] if isinstance(errors, list) else []
    title = str(said.get("title") or "")
    return Refused(answer.status, name, detail, each, _retry_after(answer), title)


def call_json(
    request: ApiRequest | Callable[[], ApiRequest],
    shape: Shape,
    deadline: float | None = None,
) -> Flow[Any]:
    """Make a call, and return what its answer says."""
    return decoded((yield from call(request, deadline)), shape)


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
            return json.loads(answer.content, parse_float=_number, parse_constant=_no_number)
        except (ValueError, RecursionError):
            pass
    return _UNREAD


def _number(written: str) -> float:
    """Return a number of JSON, which knows no two kinds: 1.0 is 1, as for the TypeScript client."""
    number = float(written)
    return int(number) if number.is_integer() else number


def _no_number(written: str) -> NoReturn:
    raise ValueError(f"JSON has no {written}")


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


def address_of(url: httpx.URL) -> str:
    """Return a call's URL without its query."""
    path = url.raw_path.partition(b"?")[0]
    return f"{url.scheme}://{url.netloc.decode()}{path.decode()}"


def _retry_after(answer: Answer) -> float:
    try:
        seconds = float(answer.headers.get("Retry-After", "0"))
    except ValueError:
        return 0.0
    return seconds if 0.0 <= seconds < math.inf else 0.0
